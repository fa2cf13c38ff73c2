"""Signals to a worker: what runs, what waits, and what stays behind."""

import signal
import time
from pathlib import Path

import pytest

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State
from tests.support.processes import (
    Worker,
    Workers,
    message,
    refreshed,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks
from tests.testapp.models import Run


def no_worker_is_left() -> bool:
    return not AppStatus.objects.filter(app_type="worker").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_idle_worker_ends_at_once_and_leaves_nothing(
    number: int, worker: Worker, locks: LockManager
) -> None:
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    asked_at = time.monotonic()
    assert worker.stop(number) == 0
    assert time.monotonic() - asked_at < 2
    assert no_worker_is_left()
    assert_nothing_is_left(locks)
    assert locks.owners() == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_busy_worker_finishes_what_runs_and_starts_nothing_new(
    number: int, worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    busy = [dispatch(tasks.record_until, [f"{n}", str(gate)], exclusive=[f"{n}"]) for n in "ab"]
    wait_until(lambda: Run.objects.count() == 2, what="both bodies to begin")
    waiting = [dispatch(tasks.record, ["later"], exclusive=["a"]), dispatch(tasks.record, ["free"])]
    worker.send(number)
    worker.wait_for_log("stopping")
    gate.touch()
    assert worker.wait() == 0
    assert [refreshed(task).state for task in busy] == [State.COMPLETED] * 2
    assert [refreshed(task).state for task in waiting] == [State.WAITING] * 2
    assert no_worker_is_left()
    for task in waiting:
        info = locks.inspect_request(str(task.pk))
        assert info is not None
        assert info.state == "granted"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_what_outlasts_the_grace_is_aborted_and_released(
    first: int, worker: Worker, workers: Workers, locks: LockManager
) -> None:
    soft = dispatch(tasks.record, ["soft", 60], exclusive=["a"])
    hard = dispatch(tasks.stubborn, ["hard", 60], exclusive=["b"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["a", "b"])
    wait_until(lambda: Run.objects.count() == 2)
    worker.send(first)
    if first == signal.SIGTERM:
        worker.wait_for_log("stopping")
        worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    for task in (soft, hard):
        assert refreshed(task).state == State.FAILED
        assert message(task) == "Aborted during worker shutdown."
    assert refreshed(next_one).state == State.WAITING
    assert no_worker_is_left()
    assert Run.objects.get(label="soft").ended is not None, "its finally blocks ran"
    workers.start()
    wait_for_state(next_one, State.COMPLETED)
    assert_nothing_is_left(locks)


def test_a_task_that_ends_within_the_grace_is_not_aborted(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(tasks.record, ["short", 0.5], exclusive=["a"])
    wait_until(lambda: Run.objects.count() == 1)
    assert worker.stop(signal.SIGINT) == 0
    assert refreshed(task).state == State.COMPLETED


def test_a_signal_while_the_worker_starts_is_not_lost(workers: Workers, locks: LockManager) -> None:
    for _ in range(5):
        worker = workers.launch("--concurrency", "2")
        worker.wait_for_log("worker started")
        assert worker.stop(signal.SIGTERM) == 0
    assert no_worker_is_left()


def test_workers_that_come_and_go_lose_no_task(workers: Workers, locks: LockManager) -> None:
    dispatched = [dispatch(tasks.record, [f"{n}", 0.02], exclusive=["r"]) for n in range(40)]
    for _ in range(3):
        worker = workers.start("--concurrency", "2")
        wait_until(lambda: Run.objects.filter(ended=None).exists() or Run.objects.count() > 30)
        assert worker.stop(signal.SIGTERM) == 0
    workers.start("--concurrency", "2")
    assert {task.state for task in wait_until_final(dispatched)} == {State.COMPLETED}
    assert Run.objects.count() == 40, "each ran once"
    assert_nothing_is_left(locks)


def test_the_outcome_of_a_body_that_ends_by_itself_is_not_lost_to_an_abort(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = dispatch(tasks.deaf_until, ["done", str(gate)], exclusive=["r"])
    wait_until(lambda: Run.objects.count() == 1)
    worker.send(signal.SIGINT)
    worker.wait_for_log("aborting")
    gate.touch()
    assert worker.wait() == 0
    ended = refreshed(task)
    assert (ended.state, ended.result) == (State.COMPLETED, "done")
    assert_nothing_is_left(locks)
