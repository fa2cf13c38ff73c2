"""Canceling tasks of real workers."""

import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from django_task_locks import cancel_task, dispatch, hold
from django_task_locks.locks import LockManager
from django_task_locks.models import State, Task
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
from tests.support.refusals import refused_transition
from tests.testapp import tasks
from tests.testapp.models import Run

OF_OTHERS = 0.5  # seconds that the tests beside it may take from the machine


def begun(task: Task) -> Run:
    return wait_until(lambda: Run.objects.filter(task_id=task.pk).first())


def test_a_waiting_task_is_canceled_at_once_and_those_behind_it_move_up(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    busy = dispatch(tasks.record_until, ["busy", str(gate)], shared=["r"])
    begun(busy)
    waiting = dispatch(tasks.record, ["canceled"], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], shared=["r"])
    assert cancel_task(waiting).state == State.CANCELED
    wait_for_state(behind, State.COMPLETED, timeout=5)
    gate.touch()
    wait_for_state(busy, State.COMPLETED)
    assert waiting.pk not in runs_of([waiting])
    assert message(waiting) == "Canceled before it started."
    assert_nothing_is_left(locks)


@pytest.mark.parametrize(
    "body",
    [
        tasks.record,
        tasks.arecord,
        tasks.burn,
        tasks.stubborn,
        tasks.match_for_ever,
        tasks.calculate_for_ever,
        tasks.sleep_in_c,
    ],
)
def test_a_running_task_stops_within_a_second(
    body: object, worker: Worker, locks: LockManager
) -> None:
    task = dispatch(body, ["victim", 60.0], exclusive=["r"])  # type: ignore[arg-type]
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    run = begun(task)
    asked_at = time.monotonic()
    assert cancel_task(task.pk).state == State.CANCELING
    wait_for_state(next_one, State.COMPLETED, timeout=5)
    next_began = runs_of([next_one])[next_one.pk].began
    assert next_began - asked_at < 1.0 + OF_OTHERS
    assert refreshed(task).state == State.CANCELED
    run.refresh_from_db()
    assert run.ended is None or run.ended < next_began
    assert_nothing_is_left(locks)


def test_programs_that_a_canceled_task_has_started_are_stopped_too(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    task = dispatch(tasks.with_subprocess, ["parent", str(alive)], exclusive=["r"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    wait_until(lambda: alive.exists() and alive.read_text())
    cancel_task(task)
    wait_for_state(next_one, State.COMPLETED, timeout=5)
    assert refreshed(task).state == State.CANCELED
    assert float(alive.read_text().split()[-1]) < runs_of([next_one])[next_one.pk].began


def test_L26_a_lost_message_is_made_up_for_by_the_next_beat(
    worker: Worker, locks: LockManager
) -> None:
    """L26: the message of a cancel is lost."""
    task = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"])
    begun(task)
    Task.objects.filter(pk=task.pk).update(state=State.CANCELING)  # and no message at all
    wait_for_state(task, State.CANCELED, timeout=5)
    assert_nothing_is_left(locks)


def test_cancels_that_race_with_start_and_finish_leave_nothing_behind(
    worker: Worker, locks: LockManager
) -> None:
    dispatched = []
    for number in range(60):
        task = dispatch(tasks.record, [f"{number}"], exclusive=["r"], shared=["s"])
        dispatched.append(task)
        if number % 2:
            cancel_task(task)
    ended = wait_until_final(dispatched)
    assert {task.state for task in ended} <= {State.COMPLETED, State.CANCELED}
    assert all(task.state == State.COMPLETED for task in ended[::2])
    ran = runs_of(ended)
    assert all(task.pk in ran for task in ended if task.state == State.COMPLETED)
    assert_nothing_is_left(locks)


def test_canceling_one_task_does_not_touch_its_executors_next(
    worker: Worker, locks: LockManager
) -> None:
    """The message comes when its task has just ended: the slot is at the next one by then."""
    for _ in range(20):
        first = dispatch(tasks.record, ["first", 0.01], exclusive=["r"])
        second = dispatch(tasks.record, ["second", 0.05], exclusive=["r"])
        wait_for_state(first, State.COMPLETED, State.RUNNING)
        cancel_task(first)
        ended = wait_until_final([first, second])
        assert ended[0].state in (State.COMPLETED, State.CANCELED)
        assert ended[1].state == State.COMPLETED


def test_deleting_a_running_task_stops_it_before_its_locks_are_free(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(tasks.stubborn, ["deleted", 60.0], exclusive=["r"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    run = begun(task)
    asked_at = time.monotonic()
    Task.objects.filter(pk=task.pk).delete()
    wait_for_state(next_one, State.COMPLETED, timeout=5)
    assert runs_of([next_one])[next_one.pk].began - asked_at < 1.0 + OF_OTHERS
    assert not psutil.pid_exists(run.pid)
    assert not Task.objects.filter(pk=task.pk).exists()
    assert_nothing_is_left(locks)


def test_G3_a_task_whose_row_is_gone_without_a_word_is_stopped(
    worker: Worker, locks: LockManager
) -> None:
    """By SQL, of which nobody is told: the worker looks for it with each heartbeat."""
    task = dispatch(tasks.stubborn, ["gone", 60.0], exclusive=["r"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    run = begun(task)
    Task.objects.filter(pk=task.pk)._raw_delete("default")
    wait_for_state(next_one, State.COMPLETED, timeout=5)
    assert not psutil.pid_exists(run.pid)
    assert not Task.objects.filter(pk=task.pk).exists()
    assert_nothing_is_left(locks)


def test_G3_a_task_that_ends_without_its_row_is_released_and_not_made_again(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = dispatch(tasks.until, [str(gate)], exclusive=["r"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    wait_until(Path(f"{gate}.began").exists)
    Task.objects.filter(pk=task.pk)._raw_delete("default")
    gate.touch()
    wait_for_state(next_one, State.COMPLETED, timeout=5)
    assert [found.pk for found in Task.objects.all()] == [next_one.pk]
    assert worker.process.poll() is None
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("moment", ["claimed", "running"])
def test_an_immediate_task_that_was_left_to_a_worker_is_canceled_there(
    moment: str, worker: Worker, locks: LockManager
) -> None:
    """And the worker goes on, whatever it had come to."""
    refusal = refused_transition(State.RUNNING) if moment == "claimed" else nullcontext()
    with refusal:
        with hold("r"):
            task = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"], immediate=True)
            assert task.state == State.WAITING
        if moment == "claimed":
            worker.wait_for_log("refused for a test")
        else:
            begun(task)
        cancel_task(task)
        wait_for_state(task, State.CANCELED, timeout=5)
    wait_for_state(dispatch(tasks.record, ["next"], exclusive=["r"]), State.COMPLETED)
    assert worker.process.poll() is None
    assert "executor died" not in worker.log()
    assert_nothing_is_left(locks)


def test_deleting_a_waiting_task_takes_it_out_of_the_queue(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    busy = dispatch(tasks.record_until, ["busy", str(gate)], shared=["r"])
    begun(busy)
    waiting = dispatch(tasks.record, ["deleted"], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], shared=["r"])
    waiting.delete()
    wait_for_state(behind, State.COMPLETED, timeout=5)
    gate.touch()
    wait_for_state(busy, State.COMPLETED)
    assert_nothing_is_left(locks)


def test_L23_a_cancel_after_sigterm_still_stops_the_task(
    worker: Worker, locks: LockManager
) -> None:
    """L23: the worker, asked to stop, would wait for the task for ever."""
    task = dispatch(tasks.stubborn, ["victim", 60.0], exclusive=["r"])
    begun(task)
    worker.send(signal.SIGTERM)
    worker.wait_for_log("stopping")
    cancel_task(task)
    wait_for_state(task, State.CANCELED, timeout=5)
    assert worker.wait() == 0
    assert_nothing_is_left(locks)


def test_L26_a_canceling_task_of_a_killed_worker_ends_as_canceled(
    workers: Workers, locks: LockManager
) -> None:
    first = workers.start("--name", "w")
    task = dispatch(
        tasks.stubborn, ["victim", 60.0], exclusive=["r"], on_worker_loss="requeue", max_attempts=2
    )
    begun(task)
    first.send(signal.SIGSTOP)  # it does not come to it
    assert cancel_task(task).state == State.CANCELING
    first.kill()
    workers.start("--name", "w")
    wait_for_state(task, State.CANCELED, timeout=5)
    assert Run.objects.count() == 1
    assert_nothing_is_left(locks)


def test_L26_cancels_that_race_with_the_loss_of_the_executor_leave_nothing_behind(
    worker: Worker, locks: LockManager
) -> None:
    dispatched = []
    for _ in range(10):
        task = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"])
        dispatched.append(task)
        run = begun(task)
        killer = threading.Thread(target=os.kill, args=(run.pid, signal.SIGKILL))
        killer.start()
        cancel_task(task)
        killer.join()
        wait_until_final([task])
    assert {task.state for task in wait_until_final(dispatched)} <= {State.FAILED, State.CANCELED}
    assert_nothing_is_left(locks)


def test_L6_cancels_in_the_instant_of_the_start_leave_nothing_behind(
    worker: Worker, locks: LockManager
) -> None:
    """L6: a waiting task is canceled that a worker is just acquiring."""
    for number in range(40):
        task = dispatch(tasks.record, ["victim", 0.02], exclusive=["r"])
        time.sleep(number % 8 * 0.001)  # somewhere between the grant and the end
        cancel_task(task)
        ended = wait_until_final([task])[0]
        assert ended.state in (State.COMPLETED, State.CANCELED)
        if message_of(ended) == "Canceled before it started.":
            assert task.pk not in runs_of([task])
    assert_nothing_is_left(locks)


def message_of(task: Task) -> str:
    return str((task.error or {"message": ""})["message"])
