"""Tasks that take too long, and executors that are replaced in time."""

import time
from pathlib import Path

import pytest

from django_task_locks import cancel_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.support.intervals import runs_of
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


@pytest.mark.parametrize(
    "body", [tasks.record, tasks.arecord, tasks.burn, tasks.stubborn, tasks.sleep_in_c]
)
def test_a_task_that_outlasts_its_time_limit_is_stopped_and_fails(
    body: object, worker: Worker, locks: LockManager
) -> None:
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)  # the worker is idle by now
    limit = 0.5
    task = dispatch(body, ["long", 60.0], exclusive=["r"], time_limit=limit)  # type: ignore[arg-type]
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    wait_for_state(next_one, State.COMPLETED)
    runs = runs_of([task, next_one])
    assert 0.4 < runs[next_one.pk].began - runs[task.pk].began < limit + 1.0
    ended = refreshed(task)
    assert (ended.state, ended.time_limit) == (State.FAILED, limit)
    assert message(task) == "Time limit of 0.5 s exceeded."
    assert_nothing_is_left(locks)


def test_the_programs_of_a_task_that_took_too_long_are_stopped_too(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    task = dispatch(tasks.wait_for_program, ["p", str(alive)], exclusive=["r"], time_limit=1.0)
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    wait_for_state(next_one, State.COMPLETED)
    assert message(task) == "Time limit of 1 s exceeded."
    assert float(alive.read_text().split()[-1]) < runs_of([next_one])[next_one.pk].began


def test_a_task_that_ends_in_time_is_not_touched_and_neither_is_its_successor(
    worker: Worker, locks: LockManager
) -> None:
    limited = [dispatch(tasks.record, ["short", 0.2], time_limit=0.6) for _ in range(4)]
    unlimited = [dispatch(tasks.record, ["without", 0.8]) for _ in range(2)]
    ended = wait_until_final([*limited, *unlimited])
    assert {task.state for task in ended} == {State.COMPLETED}
    assert len({run.pid for run in Run.objects.all()}) == 2, "by the same two executors"


def test_a_body_that_ends_by_itself_after_its_limit_keeps_its_outcome(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = dispatch(tasks.deaf_until, ["done", str(gate)], time_limit=0.3)
    worker.wait_for_log("time limit exceeded; it is stopped")
    gate.touch()
    ended = wait_for_state(task, State.COMPLETED, State.FAILED)
    assert (ended.state, ended.result) == (State.COMPLETED, "done")


def test_a_task_that_took_too_long_gets_no_other_attempt(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(
        tasks.stubborn, ["again", 60.0], time_limit=0.3, on_worker_loss="requeue", max_attempts=3
    )
    ended = wait_for_state(task, State.FAILED)
    assert (ended.attempt, message(task)) == (1, "Time limit of 0.3 s exceeded.")


def test_a_canceled_task_with_a_limit_ends_as_canceled(worker: Worker, locks: LockManager) -> None:
    task = dispatch(tasks.stubborn, ["both", 60.0], time_limit=0.6)
    wait_until(lambda: Run.objects.exists())
    cancel_task(task)
    assert wait_for_state(task, State.CANCELED, State.FAILED).state == State.CANCELED


def test_an_executor_is_replaced_after_so_many_tasks(workers: Workers, locks: LockManager) -> None:
    worker = workers.start("--max-tasks-per-child", "3")
    began = time.monotonic()
    ended = wait_until_final([dispatch(tasks.own_pid, exclusive=["r"]) for _ in range(12)])
    assert {task.state for task in ended} == {State.COMPLETED}
    pids = [task.result for task in ended]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 3, 3]
    assert time.monotonic() - began < 5, "a replacement is no crash, and waits for nothing"
    assert "executor died" not in worker.log()
    assert 'after="3 tasks"' in worker.log()
    assert_nothing_is_left(locks)


def test_an_executor_that_has_grown_is_replaced(workers: Workers, locks: LockManager) -> None:
    worker = workers.start("--max-memory-per-child", "400")
    first, second = (wait_for_state(dispatch(tasks.grow, [1]), State.COMPLETED) for _ in range(2))
    assert first.result == second.result
    grown = wait_for_state(dispatch(tasks.grow, [400]), State.COMPLETED)
    assert grown.result == first.result
    third = wait_for_state(dispatch(tasks.own_pid), State.COMPLETED)
    assert third.result != first.result
    assert "MB of memory" in worker.log()


def test_burst_goes_on_until_nothing_is_left_also_when_executors_are_replaced(
    workers: Workers, locks: LockManager
) -> None:
    dispatched = [dispatch(tasks.add, [n], exclusive=["r"]) for n in range(7)]
    worker = workers.launch("--burst", "--max-tasks-per-child", "2")
    assert worker.wait() == 0
    assert {task.state for task in wait_until_final(dispatched)} == {State.COMPLETED}
    assert_nothing_is_left(locks)
