"""Clean-up of processes that are missing: their tasks are decided once, their locks are released,
and nobody else's are touched."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections

from django_task_locks import dispatch
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.recovery import clean_up
from django_task_locks.reports import Report
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.integration.cleaning import everything
from tests.locks.support import request_all
from tests.support.processes import message, refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks

MISSING = "Worker has gone missing."
LONG = 500_000  # microseconds that a call to Redis must not take, on a busy machine either


def kinds(report: Report) -> Counter[tuple[str, str]]:
    return Counter((step.kind, step.status) for step in report.steps)


def assert_is_gone(locks: LockManager, worker: HandWorker) -> None:
    assert not AppStatus.objects.filter(pk=worker.status.pk).exists()
    assert locks.registry(worker.owner) == set()
    assert worker.owner not in locks.owners()
    assert not any(worker.owner in key for key in leftovers(locks))


class TestTasks:
    def test_running_one_fails_and_its_locks_are_released(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive=["a", "b"], shared="c")
        behind = dispatch(tasks.record, exclusive="a")
        task = dead.run()

        report = clean_up()

        found = refreshed(task)
        assert (found.state, message(task), found.app_lock) == (State.FAILED, MISSING, None)
        assert found.worker_name == dead.status.name
        assert found.finished_at is not None
        assert info(locks, behind).state == "granted"
        assert_is_gone(locks, dead)
        assert kinds(report) == {("process", "done"): 1, ("task", "done"): 1}

    def test_canceling_one_ends_as_canceled(self, locks: LockManager, dead: HandWorker) -> None:
        dispatch(tasks.record, exclusive="a")
        task = dead.run()
        task.request_cancel()

        clean_up()

        assert refreshed(task).state == State.CANCELED
        assert message(task) == "Canceled while it ran."
        assert leftovers(locks) == set()

    def test_one_that_may_have_another_attempt_keeps_its_place(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a", on_worker_loss="requeue", max_attempts=2)
        task = dead.run()
        score = info(locks, task).score
        behind = dispatch(tasks.record, exclusive="a")

        clean_up()

        found = refreshed(task)
        assert (found.state, found.attempt, found.app_lock) == (State.WAITING, 2, None)
        assert (info(locks, task).score, info(locks, task).owner) == (score, "queue/default")
        assert info(locks, behind).state == "waiting"
        assert alive.run() == task
        assert_is_gone(locks, dead)

    def test_attempts_come_to_an_end(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive="a", on_worker_loss="requeue", max_attempts=3)

        for attempt in (1, 2, 3):
            assert refreshed(task).state == State.WAITING
            worker = HandWorker(locks, AppStatusFactory.create(stale=True))
            assert worker.run().attempt == attempt
            clean_up()

        assert (refreshed(task).state, refreshed(task).attempt) == (State.FAILED, 3)
        assert message(task) == MISSING
        assert leftovers(locks) == set()

    def test_immediate_one_that_may_be_deferred_is_handed_to_workers(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = immediate_of(dead, on_worker_loss="requeue", max_attempts=2)

        clean_up()

        assert refreshed(task).state == State.WAITING
        assert (info(locks, task).state, info(locks, task).owner) == ("granted", "queue/default")

    def test_immediate_one_that_may_not_be_deferred_fails(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = immediate_of(dead, on_worker_loss="requeue", max_attempts=2, deferred=False)

        clean_up()

        assert (refreshed(task).state, message(task)) == (State.FAILED, MISSING)
        assert leftovers(locks) == set()

    def test_L15_claimed_one_that_never_started_waits_again_in_its_place(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        task, behind = (dispatch(tasks.record, exclusive="a") for _ in range(2))
        claimed = dead.claim()
        score = info(locks, task).score
        Task.objects.filter(pk=task.pk).update(app_lock=dead.status)

        clean_up()

        assert (refreshed(task).state, refreshed(task).attempt) == (State.WAITING, 1)
        assert (info(locks, task).state, info(locks, task).score) == ("granted", score)
        assert info(locks, behind).state == "waiting"
        assert dead.start(claimed) is None, "a late start is refused"
        assert alive.run() == task
        assert not AppStatus.objects.filter(pk=dead.status.pk).exists()

    def test_one_that_was_canceled_after_its_claim_is_released(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = dispatch(tasks.record, exclusive="a")
        dead.claim()
        Task.objects.filter(pk=task.pk).update(state=State.CANCELED)

        clean_up()

        assert leftovers(locks) == set()

    def test_L4_one_that_ended_before_its_release_is_released(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        task = dead.run()
        Task.objects.filter(pk=task.pk).update(state=State.COMPLETED, result=42, app_lock=None)

        clean_up()

        assert (refreshed(task).state, refreshed(task).result) == (State.COMPLETED, 42)
        assert leftovers(locks) == set()

    def test_one_that_was_ended_behind_the_state_machine_s_back_is_released(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        """Its row still names the process, whose record goes all the same."""
        dispatch(tasks.record, exclusive="a")
        task = dead.run()
        Task.objects.filter(pk=task.pk).update(state=State.CANCELED)

        clean_up()

        assert (refreshed(task).state, refreshed(task).app_lock) == (State.CANCELED, None)
        assert leftovers(locks) == set()
        assert_is_gone(locks, dead)

    def test_one_whose_row_is_gone_is_released(self, locks: LockManager, dead: HandWorker) -> None:
        dispatch(tasks.record, exclusive="a")
        task = dead.run()
        Task.objects.filter(pk=task.pk)._raw_delete("default")

        clean_up()

        assert leftovers(locks) == set()

    def test_hold_of_a_dead_process_is_released(self, locks: LockManager, dead: HandWorker) -> None:
        claimant = Claimant(owner=dead.owner, ttl=4)
        locks.request(LockRequest(id="hold-1", exclusive=("a",), claimant=claimant))
        locks.request(LockRequest(id="hold-2", exclusive=("a",), claimant=claimant))

        clean_up()

        assert leftovers(locks) == set()
        assert_is_gone(locks, dead)

    @pytest.mark.slow
    def test_C5_one_that_held_fifty_thousand_locks_is_cleaned_in_short_steps(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        """No call to Redis keeps the others waiting, their heartbeats among them."""
        claimant = Claimant(owner=dead.owner, ttl=4)
        for number in range(5):
            names = tuple(f"{number}-{resource}" for resource in range(9_000))
            locks.request(LockRequest(id=f"large-{number}", exclusive=names, claimant=claimant))
        small = (
            LockRequest(id=f"small-{number}", exclusive=(f"{number}",), claimant=claimant)
            for number in range(5_000)
        )
        request_all(locks, small)
        locks.client.config_set("slowlog-log-slower-than", LONG)
        locks.client.slowlog_reset()

        assert clean_up().failures == []

        found = locks.client.slowlog_get()
        locks.client.config_set("slowlog-log-slower-than", 10_000)
        assert found == []
        assert leftovers(locks) == set()
        assert_is_gone(locks, dead)

    def test_row_that_redis_does_not_know_is_decided_all_the_same(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = TaskFactory.create(running_by=dead.status, lock_token=3)

        clean_up()

        assert refreshed(task).state == State.FAILED
        assert_is_gone(locks, dead)

    def test_request_that_was_taken_over_by_a_living_process_is_kept(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        """Its entry in the dead one's registry is all that goes."""
        dispatch(tasks.record, exclusive="a")
        task = alive.run()
        locks.client.sadd(locks.keys.owner(dead.owner), str(task.pk))

        clean_up()

        assert refreshed(task).state == State.RUNNING
        assert info(locks, task).owner == alive.owner
        assert_is_gone(locks, dead)


def immediate_of(worker: HandWorker, **fields: Any) -> Task:
    """An immediate task that runs in this process."""
    task = TaskFactory.build(exclusive=["a"], immediate=True, **fields)
    claimant = Claimant(owner=worker.owner, ttl=4)
    granted = worker.locks.try_request(
        LockRequest(id=str(task.pk), exclusive=("a",), claimant=claimant)
    )
    task.app_lock, task.worker_name = worker.status, worker.status.name
    task.state, task.lock_token = State.RUNNING, granted.token  # type: ignore[union-attr, assignment]
    task.save(force_insert=True)
    return task


class TestOthers:
    def test_A6_only_the_dead_one_s_tasks_are_touched(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        lost = dead.run()
        dispatch(tasks.record, exclusive="b", shared="c")
        running = alive.run()
        dispatch(tasks.record, exclusive="d")
        claimed = alive.claim()
        before = {id: locks.inspect_request(id) for id in (str(running.pk), claimed.id)}

        clean_up()

        assert refreshed(lost).state == State.FAILED
        assert refreshed(running).state == State.RUNNING
        assert {id: locks.inspect_request(id) for id in before} == before
        assert locks.registry(alive.owner) == set(before)
        assert AppStatus.objects.get() == alive.status

    def test_L12_live_successor_of_the_same_name_is_untouched(self, locks: LockManager) -> None:
        dead = HandWorker(locks, AppStatusFactory.create(name="worker", stale=True))
        alive = HandWorker(locks, AppStatusFactory.create(name="worker"))
        dispatch(tasks.record, exclusive="a")
        lost = dead.run()
        dispatch(tasks.record, exclusive="b")
        running = alive.run()

        clean_up()

        assert refreshed(lost).state == State.FAILED
        assert refreshed(running).state == State.RUNNING
        assert info(locks, running).state == "held"
        assert AppStatus.objects.get() == alive.status

    def test_tasks_that_wait_or_are_granted_are_nobody_s(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        granted, waiting = (dispatch(tasks.record, exclusive="a") for _ in range(2))

        clean_up()

        assert (info(locks, granted).state, info(locks, waiting).state) == ("granted", "waiting")

    def test_healthy_system_gives_nothing_to_do(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        alive.run()
        dispatch(tasks.record, exclusive="a")
        before = leftovers(locks)

        assert clean_up().steps == []
        assert leftovers(locks) == before

    def test_B4_nothing_of_a_live_process_is_touched_however_often_it_is_looked_at(
        self, locks: LockManager
    ) -> None:
        """Something in each state, and so each kind of key."""
        alive = HandWorker(locks, AppStatusFactory.create(ttl=timedelta(hours=1)))
        dispatch(tasks.record, exclusive=["b", "c"], shared="s")
        running = alive.run()
        alive.next_slot()
        dispatch(tasks.record, shared="s")
        alive.run().request_cancel()
        alive.next_slot()
        dispatch(tasks.record, exclusive="d")
        alive.claim()
        immediate_of(alive)
        dispatch(tasks.record, exclusive="b", shared="d")
        dispatch(tasks.record, exclusive="e", queue="bulk")
        dispatch(tasks.record, exclusive="f", versions={"app": "2"})
        dispatch(tasks.record, exclusive="b", run_after=timedelta(hours=1))
        claimant = Claimant(owner=alive.owner, ttl=3600)
        for id in ("holds", "waits"):
            locks.request(LockRequest(id=id, exclusive=("h",), claimant=claimant))
        locks.watch(str(running.pk))
        locks.send(alive.owner, "a message")
        before = everything(locks)

        for _ in range(5):
            report = clean_up(scan=True, second_look=True)
            assert (report.steps, report.pending) == ([], [])

        assert everything(locks) == before

    def test_second_run_finds_nothing(self, locks: LockManager, dead: HandWorker) -> None:
        dispatch(tasks.record, exclusive="a")
        dead.run()
        clean_up()

        assert clean_up().steps == []

    def test_one_owner_alone_can_be_cleaned(self, locks: LockManager, dead: HandWorker) -> None:
        other = HandWorker(locks, AppStatusFactory.create(stale=True))
        dispatch(tasks.record)
        dispatch(tasks.record)
        mine, its = dead.run(), other.run()

        clean_up(owner=dead.owner)

        assert refreshed(mine).state == State.FAILED
        assert refreshed(its).state == State.RUNNING
        assert AppStatus.objects.get() == other.status

    @pytest.mark.parametrize("owner", ["nobody", "nobody@nothing", "", "@", "a@b@c"])
    def test_owner_that_there_is_not_is_no_error(
        self, locks: LockManager, dead: HandWorker, owner: str
    ) -> None:
        assert clean_up(owner=owner).steps == []

    def test_live_owner_is_not_cleaned_because_it_is_named(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        dispatch(tasks.record)
        task = alive.run()

        clean_up(owner=alive.owner)

        assert refreshed(task).state == State.RUNNING

    def test_process_that_beats_again_after_the_first_look_is_spared(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        """The look and the decision are two statements; the second one looks again."""
        dispatch(tasks.record)
        task = dead.run()

        with before_update_of_processes(lambda: beat(dead.status)):
            clean_up()

        assert refreshed(task).state == State.RUNNING
        assert AppStatus.objects.get().missing_at is None


def beat(status: AppStatus) -> None:
    AppStatus.objects.filter(pk=status.pk).update(
        last_heartbeat=AppStatusFactory.build().started_at
    )


@contextmanager
def before_update_of_processes(act: Callable[[], None]) -> Iterator[None]:
    """Does something once, right before the next UPDATE of a process's row."""
    done: list[bool] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith('UPDATE "django_task_locks_appstatus"') and not done:
            done.append(True)
            act()
        return execute(sql, params, many, context)

    with connections["default"].execute_wrapper(wrapper):
        yield
    assert done


class TestFailure:
    @contextmanager
    def foreign_value(self, locks: LockManager, task: Task) -> Iterator[None]:
        """Somebody has overwritten the task's request; afterwards it is as it was."""
        key = locks.keys.request(str(task.pk))
        kept = locks.client.dump(key)
        locks.client.set(key, "written by somebody else")
        yield
        locks.client.restore(key, 0, kept, replace=True)

    def test_L14_one_task_s_failure_stops_no_other(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        other = HandWorker(locks, AppStatusFactory.create(stale=True))
        claimant = Claimant(owner=dead.owner, ttl=4)
        for name in "abc":
            locks.request(LockRequest(id=f"hold-{name}", exclusive=(name,), claimant=claimant))
        dispatch(tasks.record, exclusive="d")
        broken = dead.run()
        dispatch(tasks.record, exclusive="e")
        others = other.run()

        with self.foreign_value(locks, broken):
            report = clean_up()

            (failure, process) = sorted(report.failures, key=lambda step: step.kind, reverse=True)
            assert (failure.kind, failure.subject) == ("request", str(broken.pk))
            assert failure.error.startswith("ForeignValue: ")
            assert (process.kind, process.subject) == ("process", dead.owner)
            assert refreshed(others).state == State.FAILED
            assert [locks.inspect_resource(name).holder_count for name in "abcde"] == [
                0,
                0,
                0,
                1,
                0,
            ]
            assert AppStatus.objects.get() == dead.status, "the row stays for another try"

        assert clean_up().failures == []
        assert leftovers(locks) == set()
        assert_is_gone(locks, dead)

    def test_error_goes_to_the_log(
        self, locks: LockManager, dead: HandWorker, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "django_task_locks")
        dispatch(tasks.record, exclusive="d")
        with self.foreign_value(locks, dead.run()):
            clean_up()

        events = [record.__dict__.get("event") for record in caplog.records]
        assert events.count("recovery.failed") == 2
        assert "recovery.finished" in events
