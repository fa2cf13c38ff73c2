"""dispatch(max_attempts=..., retry_on=...): another attempt after an exception."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_task_locks import adispatch, cancel_task, dispatch, execution, recovery, retrying
from django_task_locks.execution import Outcome
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.settling import settle_request
from django_task_locks.states import State
from tests.factories import TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import rolled_back
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import retried, tasks
from tests.testapp.retried import Unreachable

FAILED = Outcome.raised(Unreachable("no route"))
RETRIED: dict[str, Any] = {"retry_on": Unreachable, "max_attempts": 3, "retry_delay": 3600}


def started(worker: HandWorker, **options: Any) -> Task:
    dispatch(tasks.record, exclusive=["r"], **RETRIED | options)
    return worker.run()


def lost_without_a_word(worker: HandWorker, task: Task) -> None:
    """What remains of its executor is settled."""
    settle_request(str(task.pk), worker.owner, "gone")


class TestRow:
    def test_says_what_is_retried_so_that_any_worker_knows(self, locks: LockManager) -> None:
        task = refreshed(
            dispatch(
                tasks.record,
                max_attempts=5,
                retry_on=[Unreachable, "builtins.KeyError"],
                retry_delay=2,
            )
        )
        assert task.retry_on == ["builtins.KeyError", "tests.testapp.retried.Unreachable"]
        assert (task.max_attempts, task.retry_delay) == (5, 2.0)

    def test_goes_back_to_waiting_with_its_error(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        task = started(alive)

        assert retrying.put_back(task, FAILED)

        found = refreshed(task)
        assert (found.state, found.attempt, found.app_lock) == (State.WAITING, 2, None)
        assert found.error is not None
        assert found.error["message"] == "no route"
        assert found.run_after is not None
        assert found.run_after <= timezone.now() + timedelta(hours=1)

    def test_without_a_delay_it_is_its_turn_at_once(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        """By every clock: also by that of a Redis that is behind this one."""
        task = started(alive, run_after=timedelta(), retry_delay=0)

        retrying.put_back(task, FAILED)
        retrying.hand_back(locks, task, alive.owner)

        found = refreshed(task)
        assert (found.run_after, info(locks, task).state) == (None, "granted")
        assert found.error is not None

    def test_the_error_is_gone_when_an_attempt_works(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        task = started(alive, retry_delay=0)
        retrying.put_back(task, FAILED)
        retrying.hand_back(locks, task, alive.owner)
        again = alive.run()
        execution.record(again, Outcome.returned(7))
        found = refreshed(task)
        assert (found.state, found.result, found.error) == (State.COMPLETED, 7, None)
        assert found.attempt == 2


class TestLocks:
    def test_they_are_free_between_the_attempts(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        task = started(alive)
        other = dispatch(tasks.record, exclusive=["r"])
        retrying.put_back(task, FAILED)

        retrying.hand_back(locks, task, alive.owner)

        assert info(locks, other).state == "granted"
        found, row = info(locks, task), refreshed(task)
        assert row.run_after is not None
        assert found.state == "due"
        assert found.run_after == pytest.approx(row.run_after.timestamp(), abs=0.1)
        assert locks.registry(alive.owner) == set()

    def test_a_repeated_call_changes_nothing(self, locks: LockManager, alive: HandWorker) -> None:
        task = started(alive)
        retrying.put_back(task, FAILED)
        for _ in range(2):
            retrying.hand_back(locks, task, alive.owner)
        assert info(locks, task).state == "due"

    def test_the_late_release_of_an_earlier_attempt_is_refused(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        """L27"""
        task = started(alive)
        retrying.put_back(task, FAILED)
        retrying.hand_back(locks, task, alive.owner)
        assert locks.release(str(task.pk), token=task.lock_token).status == "refused"

    def test_a_task_that_waits_for_its_attempt_is_canceled_without_a_trace(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        task = started(alive)
        retrying.put_back(task, FAILED)
        retrying.hand_back(locks, task, alive.owner)
        assert cancel_task(task).state == State.CANCELED
        assert leftovers(locks) == set()


class TestNoOtherAttempt:
    @pytest.mark.parametrize(
        ("options", "outcome"),
        [
            ({}, Outcome.raised(ValueError("another kind"))),
            ({}, Outcome.failed("no exception")),
            ({}, Outcome.returned(1)),
            ({"retry_on": ()}, FAILED),
        ],
        ids=["another kind", "no exception", "success", "nothing to retry on"],
    )
    def test_is_earned(
        self, locks: LockManager, alive: HandWorker, options: Any, outcome: Outcome
    ) -> None:
        task = started(alive, **options)
        assert not retrying.put_back(task, outcome)
        assert refreshed(task).state == State.RUNNING

    def test_is_left(self, locks: LockManager, alive: HandWorker) -> None:
        task = started(alive, max_attempts=2)
        task.attempt = 2
        assert not retrying.put_back(task, FAILED)

    def test_follows_once_it_is_being_canceled(self, locks: LockManager, alive: HandWorker) -> None:
        """L26"""
        task = started(alive)
        cancel_task(task)
        assert not retrying.put_back(task, FAILED)
        execution.record(task, FAILED)
        assert refreshed(task).state == State.CANCELED
        assert locks.inspect_request(str(task.pk)) is None

    def test_is_given_by_a_process_that_lost_the_task(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        """L27"""
        task = started(alive)
        Task.objects.filter(pk=task.pk).update(lock_token=task.lock_token + 1)
        assert not retrying.put_back(task, FAILED)
        assert refreshed(task).attempt == 1


class TestCrash:
    def test_l4_between_the_row_and_the_lock_is_healed(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        """Not before its time, and by whoever settles what the executor left."""
        task = started(alive)
        retrying.put_back(task, FAILED)

        lost_without_a_word(alive, task)

        assert info(locks, task).state == "due"
        assert refreshed(task).attempt == 2
        assert locks.registry(alive.owner) == set()

    def test_l4_of_the_whole_worker_is_healed_by_clean_up(
        self, locks: LockManager, dead: HandWorker
    ) -> None:
        task = started(dead)
        retrying.put_back(task, FAILED)

        recovery.clean_up()

        assert info(locks, task).state == "due"
        assert refreshed(task).attempt == 2

    def test_before_the_row_is_a_lost_worker(self, locks: LockManager, dead: HandWorker) -> None:
        task = started(dead)
        recovery.clean_up()
        assert refreshed(task).state == State.FAILED

    def test_a_lost_reply_of_the_database_is_seen(
        self, locks: LockManager, alive: HandWorker
    ) -> None:
        task, again = started(alive), Task.objects.get()
        assert retrying.put_back(task, FAILED)

        assert retrying.put_back(again, FAILED)

        assert again.run_after == refreshed(task).run_after
        assert refreshed(task).attempt == 2

    def test_a_lost_request_is_sent_with_its_time(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        task = TaskFactory.create(run_after=timezone.now() + timedelta(hours=1), attempt=2)
        recovery.clean_up()
        assert info(own_locks, task).state == "due"


class TestImmediate:
    """Further attempts are a worker's."""

    def test_the_first_attempt_is_made_here(self, locks: LockManager, alive: HandWorker) -> None:
        task = dispatch(retried.fail_first, ["", 1], exclusive=["r"], immediate=True, **RETRIED)
        assert (task.state, task.attempt) == (State.WAITING, 2)
        assert task.error is not None
        assert task.error["message"] == "attempt 1"
        assert (info(locks, task).state, info(locks, task).owner) == ("due", "queue/default")
        assert info(locks, dispatch(tasks.record, exclusive=["r"])).state == "granted"

    def test_a_coroutine_too(self, locks: LockManager) -> None:
        task = async_to_sync(adispatch)(
            retried.afail_first, [1], exclusive=["r"], immediate=True, **RETRIED
        )
        assert task.state == State.WAITING
        assert info(locks, task).state == "due"

    def test_in_a_transaction_the_lock_goes_with_the_commit(self, locks: LockManager) -> None:
        with transaction.atomic():
            task = dispatch(retried.fail_first, ["", 1], exclusive=["r"], immediate=True, **RETRIED)
            assert info(locks, task).state == "held"
        assert info(locks, task).state == "due"
        assert refreshed(task).state == State.WAITING

    def test_l25_a_rollback_leaves_nothing(self, locks: LockManager) -> None:
        with rolled_back():
            dispatch(retried.fail_first, ["", 1], exclusive=["r"], immediate=True, **RETRIED)
        assert not Task.objects.exists()
        assert leftovers(locks) == set()


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"max_attempts": 1}, "retry_on .* with max_attempts 1"),
            ({"immediate": True, "deferred": False}, "retry_on .* with deferred=False"),
            ({"retry_on": 7}, "retry_on 7 of .*record: subclasses of Exception"),
            ({"retry_delay": -1}, "retry_delay -1 of .*: seconds from 0 to 604800, or None"),
            ({"retry_delay": True}, "retry_delay True"),
            ({"retry_delay": float("nan")}, "retry_delay nan"),
        ],
    )
    def test_before_anything_is_written(
        self, locks: LockManager, options: Any, problem: str
    ) -> None:
        with pytest.raises(ValueError, match=problem):
            dispatch(tasks.record, **RETRIED | options)
        assert not Task.objects.exists()
