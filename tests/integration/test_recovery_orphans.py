"""What names a process that has no record, or no process at all: cleaned one TTL after it was first
seen so, because it may be in the making."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings

from django_task_locks import cancel_task, dispatch, presence
from django_task_locks.lock_files import LockFile
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.presence import Presence
from django_task_locks.recovery import clean_up
from django_task_locks.reports import Report
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.locks.snapshot import snapshot
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.testapp import tasks

TTL = 0.3


@pytest.fixture(autouse=True)
def _short_ttl(locks: LockManager, settings: Settings) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "ttl": TTL * 2, "heartbeat_interval": 0.05}


@pytest.fixture
def worker(locks: LockManager) -> HandWorker:
    return HandWorker(locks, AppStatusFactory.create(ttl=timedelta(seconds=TTL)))


def until_something_was_done() -> Report:
    """Clean-ups follow each other until one acts."""

    def probe() -> Report | None:
        report = clean_up()
        return report if report.steps else None

    return wait_until(probe, 10, "a clean-up that acts")


class TestOwnerWithoutRecord:
    def test_a_process_that_ends_while_it_is_looked_at_leaves_no_trace(
        self, locks: LockManager, worker: HandWorker, tmp_path: Path
    ) -> None:
        locks.beat(worker.owner, TTL)
        process = Presence(worker.status, LockFile(tmp_path, worker.owner))
        has_ended = False

        def end_first(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            nonlocal has_ended
            if not has_ended and worker.status.pk.hex in str(params).replace("-", ""):
                has_ended = True
                presence.withdraw(process)
            return execute(sql, params, many, context)

        with connection.execute_wrapper(end_first):
            assert clean_up().steps == []

        assert has_ended
        assert leftovers(locks) == set()

    def test_L13_A2_it_is_cleaned_one_ttl_after_it_was_first_seen(
        self, locks: LockManager, worker: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive=["a", "b"])
        behind = dispatch(tasks.record, exclusive="a")
        task = worker.run()
        AppStatus.objects.all().delete()

        assert clean_up().steps == []
        assert refreshed(task).state == State.RUNNING
        report = until_something_was_done()

        assert (refreshed(task).state, message(task)) == (State.FAILED, "Worker has gone missing.")
        found = info(locks, behind)
        assert found.state == "granted"
        assert worker.owner not in locks.owners()
        assert [step.kind for step in report.steps] == ["process", "task"]
        assert report.steps[0].reason.startswith("no record of this process for ")
        assert clean_up().steps == []

    def test_L13_A2_what_it_claimed_and_what_it_held_is_found_too(
        self, locks: LockManager, worker: HandWorker
    ) -> None:
        task = dispatch(tasks.record, exclusive="a")
        worker.claim()
        claimant = Claimant(owner=worker.owner, ttl=TTL)
        locks.request(LockRequest(id="hold", exclusive=("b",), claimant=claimant))
        AppStatus.objects.all().delete()

        clean_up()
        until_something_was_done()

        assert HandWorker(locks).run() == task
        assert locks.inspect_resource("b").holder_count == 0

    def test_it_is_spared_when_its_process_beats_meanwhile(
        self, locks: LockManager, worker: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        task = worker.run()
        AppStatus.objects.all().delete()
        clean_up()
        assert locks.suspect(worker.owner)[1] == TTL
        wait_until(lambda: locks.suspect(worker.owner)[0] > TTL)

        locks.beat(worker.owner, TTL)
        AppStatusFactory.create(id=worker.status.pk, name=worker.status.name)

        assert clean_up().steps == []
        assert refreshed(task).state == State.RUNNING

    def test_one_that_only_a_row_names_is_cleaned_after_the_ttl_of_the_settings(
        self, locks: LockManager
    ) -> None:
        task = TaskFactory.create(running_by=AppStatusFactory.build(), exclusive=["a"])

        assert clean_up().steps == []
        until_something_was_done()

        assert (refreshed(task).state, message(task)) == (State.FAILED, "Worker has gone missing.")

    def test_owner_in_the_making_is_left_alone(self, locks: LockManager) -> None:
        """Its row may be in a transaction that has not committed."""
        claimant = Claimant(owner=AppStatusFactory.build().owner, ttl=60)
        locks.request(LockRequest(id="hold", exclusive=("a",), claimant=claimant))

        for _ in range(3):
            assert clean_up().steps == []
        assert locks.inspect_resource("a").holder_count == 1

    def test_owner_whose_name_is_no_name_of_ours_is_cleaned_too(self, locks: LockManager) -> None:
        claimant = Claimant(owner="written by hand", ttl=TTL)
        locks.request(LockRequest(id="hold", exclusive=("a",), claimant=claimant))

        clean_up()
        until_something_was_done()

        assert leftovers(locks) == set()

    def test_queues_are_no_processes(self, locks: LockManager) -> None:
        dispatch(tasks.record, queue="a@b")
        before = leftovers(locks)

        assert clean_up().steps == []
        assert leftovers(locks) == before


class TestTaskWithoutOwner:
    def test_L22_running_one_fails_one_ttl_after_it_was_first_seen(
        self, locks: LockManager
    ) -> None:
        task = TaskFactory.create(state=State.RUNNING, exclusive=["a"])

        assert clean_up().steps == []
        assert refreshed(task).state == State.RUNNING
        until_something_was_done()

        assert refreshed(task).state == State.FAILED
        assert message(task) == "It ran without a process that owns it."
        assert leftovers(locks) == set()
        assert clean_up().steps == []

    def test_L22_L26_canceling_one_ends_as_canceled(self, locks: LockManager) -> None:
        task = TaskFactory.create(state=State.RUNNING)
        assert cancel_task(task).state == State.CANCELING

        clean_up()
        until_something_was_done()

        assert refreshed(task).state == State.CANCELED

    def test_L22_its_locks_are_released(self, locks: LockManager) -> None:
        worker = HandWorker(locks)
        dispatch(tasks.record, exclusive="a")
        task = worker.run()
        Task.objects.filter(pk=task.pk).update(app_lock=None)

        clean_up()
        until_something_was_done()

        assert refreshed(task).state == State.FAILED
        assert locks.inspect_resource("a").holder_count == 0
        assert AppStatus.objects.get() == worker.status

    def test_L22_one_that_ends_meanwhile_is_left_alone(self, locks: LockManager) -> None:
        task = TaskFactory.create(state=State.RUNNING)
        clean_up()
        task.finish(State.COMPLETED, token=0, result=42)
        wait_until(lambda: locks.suspect(f"task/{task.pk}")[0] > TTL * 2)

        assert clean_up().steps == []
        assert refreshed(task).result == 42

    def test_L26_canceling_one_of_a_missing_process_is_canceled_at_once(
        self, locks: LockManager, worker: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        task = worker.run()
        cancel_task(task)
        AppStatus.objects.update(last_heartbeat=AppStatusFactory.build(stale=True).last_heartbeat)

        clean_up()

        assert refreshed(task).state == State.CANCELED
        assert leftovers(locks) == set()


class TestTwoDeployments:
    def test_E2_prefixes_on_one_redis_never_meet(
        self, locks: LockManager, worker: HandWorker
    ) -> None:
        """All of the other's owners are unknown to our database."""
        others = LockManager(locks.client, "staging")
        claimant = Claimant(owner=worker.owner, ttl=0.001)
        others.request(LockRequest(id="hold", exclusive=("a",), claimant=claimant))
        others.request(LockRequest(id="task", exclusive=("a",)))
        before = snapshot(locks.client, "staging")
        dispatch(tasks.record, exclusive="a")
        task = worker.run()
        AppStatus.objects.all().delete()

        clean_up()
        until_something_was_done()
        clean_up()

        assert refreshed(task).state == State.FAILED
        assert snapshot(locks.client, "staging") == before
