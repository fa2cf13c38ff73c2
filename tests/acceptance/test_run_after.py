"""Tasks that run later, or again, with real workers."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import State, Task
from tests.support.processes import Worker, wait_for_state, wait_until
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import retried, tasks
from tests.testapp.models import Run
from tests.testapp.retried import Unreachable

PUNCTUAL = timedelta(seconds=1)


def start_of(task: Task) -> datetime:
    found = wait_for_state(task, State.COMPLETED).started_at
    assert found is not None
    return found


@pytest.mark.parametrize("seconds", [0.3, 1.5, 2.7])
def test_an_idle_worker_starts_a_task_at_its_time(
    worker: Worker, locks: LockManager, seconds: float
) -> None:
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    moment = timezone.now() + timedelta(seconds=seconds)

    task = dispatch(tasks.add, [1], exclusive=["r"], run_after=moment)

    assert moment <= start_of(task) < moment + PUNCTUAL
    assert_nothing_is_left(locks)


def test_those_that_come_first_are_not_held_up_by_those_dispatched_first(
    worker: Worker, locks: LockManager
) -> None:
    moment = timezone.now() + timedelta(seconds=3)
    later = dispatch(tasks.add, [1], exclusive=["r"], run_after=moment)
    sooner = dispatch(tasks.add, [1], exclusive=["r"], run_after=moment - timedelta(seconds=1.5))
    now = dispatch(tasks.add, [1], exclusive=["r"])

    assert start_of(now) < moment - timedelta(seconds=1.5)
    assert start_of(sooner) < moment - timedelta(seconds=1.5) + PUNCTUAL
    assert moment <= start_of(later) < moment + PUNCTUAL


def test_an_executor_that_works_leaves_the_watch_to_an_idle_one(
    worker: Worker, locks: LockManager
) -> None:
    busy = dispatch(tasks.record, ["busy", 4.0])
    wait_until(lambda: Run.objects.filter(task_id=busy.pk).exists())
    moment = timezone.now() + timedelta(seconds=1)
    task = dispatch(tasks.add, [1], run_after=moment)
    assert moment <= start_of(task) < moment + PUNCTUAL


def test_a_failing_task_is_run_again_until_it_works(worker: Worker, locks: LockManager) -> None:
    task = dispatch(
        retried.fail_first,
        ["", 2],
        exclusive=["r"],
        max_attempts=3,
        retry_on=[Unreachable],
        retry_delay=0.2,
    )
    found = wait_for_state(task, State.COMPLETED)
    assert (found.result, found.attempt, found.error) == (3, 3, None)
    assert Run.objects.filter(task_id=task.pk).count() == 3
    assert worker.log().count("failed; another attempt follows") == 2
    assert_nothing_is_left(locks)


def test_a_task_that_never_works_fails_with_its_last_error(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(retried.afail_first, [9], max_attempts=3, retry_on=[OSError], retry_delay=0.1)
    found = wait_for_state(task, State.FAILED)
    assert found.error is not None
    assert (found.attempt, found.error["message"]) == (3, "attempt 3")
    assert_nothing_is_left(locks)


def test_others_use_its_resources_between_the_attempts(worker: Worker, locks: LockManager) -> None:
    task = dispatch(
        retried.fail_first,
        ["", 1],
        exclusive=["r"],
        max_attempts=2,
        retry_on=[Unreachable],
        retry_delay=30,
    )
    wait_until(lambda: Task.objects.filter(pk=task.pk, attempt=2).exists())
    other = dispatch(tasks.add, [1], exclusive=["r"])
    wait_for_state(other, State.COMPLETED, timeout=5)


def test_an_immediate_task_that_fails_is_run_again_by_a_worker(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(
        retried.fail_first,
        ["", 1],
        exclusive=["r"],
        immediate=True,
        max_attempts=2,
        retry_on=[Unreachable],
        retry_delay=0.1,
    )
    assert task.state == State.WAITING
    assert wait_for_state(task, State.COMPLETED).result == 2
    assert_nothing_is_left(locks)
