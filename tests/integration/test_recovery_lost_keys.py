"""Keys of ours that were lost in Redis: evicted, or deleted by hand. What nothing leads to any more
is found by a scan, which comes by itself only where it must."""

from typing import Any

import pytest

from django_task_locks import dispatch
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.recovery import clean_predecessors, clean_up
from django_task_locks.reports import Report
from django_task_locks.settling import settle_request
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.locks.snapshot import snapshot
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks


def take(locks: LockManager, owner: str, id: str, resource: str) -> None:
    claimant = Claimant(owner=owner, ttl=4)
    locks.request(LockRequest(id=id, exclusive=(resource,), claimant=claimant))


def holders(locks: LockManager, *resources: str) -> list[int]:
    return [locks.inspect_resource(resource).holder_count for resource in resources]


def scans(locks: LockManager) -> int:
    stats: Any = locks.client.info("commandstats")
    return int(stats.get("cmdstat_scan", {"calls": 0})["calls"])


class TestRegistryMissing:
    """L17: an owner's registry is missing though rows or slots say that it held something."""

    @pytest.fixture(autouse=True)
    def _counted(self, locks: LockManager) -> None:
        locks.client.config_resetstat()

    def test_L17_all_that_a_dead_process_had_is_found_all_the_same(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        """L17: what runs by its row, what was only claimed and what is held by a scan."""
        dispatch(tasks.record, exclusive="a")
        running = dead.run()
        dead.next_slot()
        claimed = dispatch(tasks.record, exclusive="b")
        dead.claim()
        take(locks, dead.owner, "hold", "c")
        take(locks, alive.owner, "hold of another", "d")
        locks.client.delete(locks.keys.owner(dead.owner), locks.keys.owner(alive.owner))

        report = clean_up()

        assert report.failures == []
        assert refreshed(running).state == State.FAILED
        assert (info(locks, claimed).state, info(locks, claimed).owner) == (
            "granted",
            "queue/default",
        )
        assert holders(locks, "a", "c") == [0, 0]
        assert holders(locks, "d") == [1], "of nobody else anything is touched"
        assert AppStatus.objects.get() == alive.status
        assert alive.run() == claimed
        assert clean_up().steps == []

    def test_L17_a_slot_alone_tells_that_there_must_be_a_registry(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = dispatch(tasks.record, exclusive="a")
        dead.claim()
        locks.client.delete(locks.keys.owner(dead.owner))

        clean_up()

        assert info(locks, task).state == "granted"
        assert not AppStatus.objects.exists()

    def test_L17_a_successor_finds_it_at_its_start(self, locks: LockManager) -> None:
        dead = HandWorker(locks, AppStatusFactory.create(name="w", stale=True))
        dispatch(tasks.record, exclusive="a")
        dead.run()
        take(locks, dead.owner, "hold", "b")
        locks.client.delete(locks.keys.owner(dead.owner))
        successor = AppStatusFactory.create(name="w")

        clean_predecessors(successor, is_name_unique=True)

        assert leftovers(locks) == set()
        assert AppStatus.objects.get() == successor

    def test_L17_an_owner_without_a_record_that_a_row_names(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        dead.run()
        take(locks, dead.owner, "hold", "b")
        AppStatus.objects.all().delete()
        locks.client.delete(locks.keys.owner(dead.owner))
        owner_without_record_is_seen(locks, dead.owner)

        clean_up()

        assert leftovers(locks) == set()

    @pytest.mark.parametrize("has_task", [True, False])
    def test_L17_a_crash_on_the_way_is_made_good_by_the_next_round(
        self,
        locks: LockManager,
        dead: HandWorker,
        monkeypatch: pytest.MonkeyPatch,
        has_task: bool,
    ) -> None:
        """What tells that a registry must have been there goes last."""
        for number in range(3):
            take(locks, dead.owner, f"hold-{number}", f"h{number}")
        dispatch(tasks.record, exclusive="a")
        if has_task:
            dead.run()
        else:
            dead.claim()
        locks.client.delete(locks.keys.owner(dead.owner))
        settled = []

        def crash_at_the_second(id: str, *args: Any, **options: Any) -> str:
            settled.append(id)
            if len(settled) == 2:
                raise KeyboardInterrupt
            return settle_request(id, *args, **options)

        monkeypatch.setattr("django_task_locks.recovery.settle_request", crash_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            clean_up()
        clean_up()

        assert holders(locks, "h0", "h1", "h2") == [0, 0, 0]
        assert not AppStatus.objects.exists()

    def test_L17_many_such_owners_cost_one_scan(self, locks: LockManager) -> None:
        def cost(count: int) -> int:
            for number in range(count):
                worker = HandWorker(locks, AppStatusFactory.create(stale=True))
                dispatch(tasks.record, exclusive=f"r{number}")
                worker.run()
                take(locks, worker.owner, f"hold {uuid7()}", f"h{number}")
                locks.client.delete(locks.keys.owner(worker.owner))
            before = scans(locks)
            assert clean_up().failures == []
            assert leftovers(locks) == set()
            return scans(locks) - before

        assert cost(1) == cost(5) > 0

    def test_L17_nothing_else_scans(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        """Neither a process with a registry, nor one that held nothing, nor a healthy one."""
        dispatch(tasks.record, exclusive="a")
        dead.run()
        AppStatusFactory.create(stale=True)
        dispatch(tasks.record, exclusive="b")
        alive.run()

        clean_up()
        clean_up()

        assert scans(locks) == 0


def owner_without_record_is_seen(locks: LockManager, owner: str) -> None:
    """As one that was seen so for an hour, by the server's clock."""
    seconds, _ = locks.client.time()
    locks.client.zadd(locks.keys.suspects, {owner: (int(seconds) - 3600) * 1000})


class TestScan:
    """What is asked for by hand: all of it."""

    def test_hold_of_a_dead_process_whose_registry_is_missing(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        """Nothing but the request itself knows of it."""
        take(locks, dead.owner, "hold", "a")
        locks.client.delete(locks.keys.owner(dead.owner))
        clean_up()
        assert holders(locks, "a") == [1]

        owner_without_record_is_seen(locks, dead.owner)
        report = clean_up(scan=True)

        assert [(step.kind, step.subject) for step in report.steps] == [
            ("process", dead.owner),
            ("request", "hold"),
        ]
        assert leftovers(locks) == set()

    def test_one_entry_of_a_registry_that_is_missing(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        take(locks, dead.owner, "hold-1", "a")
        take(locks, dead.owner, "hold-2", "b")
        locks.client.srem(locks.keys.owner(dead.owner), "hold-1")

        clean_up(scan=True)

        assert leftovers(locks) == set()

    def test_request_of_a_process_that_lives_is_told_and_left(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        take(locks, alive.owner, "hold", "a")
        locks.client.delete(locks.keys.owner(alive.owner))

        report = clean_up(scan=True)

        assert report.steps == []
        assert [(step.subject, step.action) for step in report.pending] == [
            ("hold", "leave it to its process")
        ]
        assert locks.release("hold", owner=alive.owner).is_done

    def test_request_of_a_queue_goes_if_its_task_has_ended(self, locks: LockManager) -> None:
        waiting, ended = (dispatch(tasks.record, exclusive=name) for name in "ab")
        Task.objects.filter(pk=ended.pk).update(state=State.CANCELED)
        locks.client.delete(locks.keys.owner("queue/default"))

        report = clean_up(scan=True)

        assert [step.subject for step in report.steps] == [str(ended.pk)]
        assert info(locks, waiting).state == "granted"
        assert locks.inspect_request(str(ended.pk)) is None
        assert HandWorker(locks).run() == waiting

    def test_lock_whose_request_is_lost_is_freed_once_its_task_has_ended(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a", shared="b")
        task = alive.run()
        behind = dispatch(tasks.record, exclusive=["a", "b"])
        locks.client.delete(locks.keys.request(str(task.pk)))

        assert self.freed(clean_up(scan=True)) == [], "its code runs"
        task.finish(State.COMPLETED, token=task.lock_token)
        assert info(locks, behind).state == "waiting", "nothing else leads to it"

        assert self.freed(clean_up(scan=True)) == [f"a {task.pk}", f"b {task.pk}"]
        assert info(locks, behind).state == "granted"

    def test_lock_of_a_dead_process_whose_request_is_lost_is_freed(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        take(locks, dead.owner, "hold", "a")
        locks.client.delete(locks.keys.request("hold"))

        assert self.freed(clean_up(scan=True)) == ["a hold"]
        assert leftovers(locks) == set()

    def test_lock_of_which_nothing_tells_whose_it_is_is_told_and_left(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        take(locks, alive.owner, "hold", "a")
        locks.client.delete(locks.keys.request("hold"))

        report = clean_up(scan=True)

        assert self.freed(report) == []
        assert [(step.kind, step.subject) for step in report.pending] == [("lock", "a hold")]
        assert holders(locks, "a") == [1]

    @staticmethod
    def freed(report: Report) -> list[str]:
        return [step.subject for step in report.steps if step.kind == "lock"]

    def test_all_is_well_beside_live_workers(self, locks: LockManager, alive: HandWorker) -> None:
        TaskFactory.create(state=State.COMPLETED)
        dispatch(tasks.record, exclusive="a")
        alive.run()
        dispatch(tasks.record, exclusive="a")
        take(locks, alive.owner, "hold", "b")
        before = snapshot(locks.client, locks.keys.prefix)

        report = clean_up(scan=True)

        assert report.steps == report.pending == []
        assert snapshot(locks.client, locks.keys.prefix) == before
