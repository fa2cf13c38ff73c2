"""What callers and tasks get of each other across processes: results, progress, groups."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_task_locks import cancel_task, dispatch
from django_task_locks.exceptions import TaskCanceled, TaskFailed
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, TaskGroup
from django_task_locks.states import State
from tests.support.processes import Worker, Workers, refreshed, wait_for_state, wait_until
from tests.support.redis_state import leftovers
from tests.testapp import tasks


def without_signs(locks: LockManager) -> set[str]:
    """What is left, but for the signs for those who wait, which go by themselves."""
    found = leftovers(locks)
    signs = {name for name in found if name.startswith("ended:")}
    assert all(0 < locks.client.ttl(locks.keys.base + name) <= 10 for name in signs)
    return found - signs


def test_waiters_get_the_result_when_the_worker_has_it(worker: Worker, locks: LockManager) -> None:
    def result(task: Task) -> Any:
        try:
            return task.wait(20)
        finally:
            connections.close_all()

    dispatched = [dispatch(tasks.record, [f"{n}", 0.05], exclusive=["r"]) for n in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(result, dispatched)) == [f"{n}" for n in range(6)]
    wait_until(lambda: without_signs(locks) == set())


def test_a_round_trip_takes_no_polling_interval(worker: Worker, locks: LockManager) -> None:
    dispatch(tasks.add, [1]).wait(20)
    began = time.monotonic()
    for number in range(20):
        assert dispatch(tasks.add, [number]).wait(20) == number
    assert (time.monotonic() - began) / 20 < 0.5


def test_failures_and_cancels_of_a_worker_are_raised(worker: Worker, locks: LockManager) -> None:
    with pytest.raises(TaskFailed, match="ValueError: went wrong"):
        dispatch(tasks.fail, ["went wrong"]).wait(20)
    running = dispatch(tasks.record, ["long", 60.0])
    wait_for_state(running, State.RUNNING)
    cancel_task(running)
    with pytest.raises(TaskCanceled):
        running.wait(20)
    with pytest.raises(TaskFailed, match="Killed by signal 9"):
        dispatch(tasks.kill_self).wait(20)


def test_a_task_waits_for_another(worker: Worker, locks: LockManager) -> None:
    # One after the other: each occupies an executor while it waits, and there are two.
    for function, arguments in ((tasks.dispatch_and_wait, [["r"]]), (tasks.adispatch_and_wait, [])):
        task = dispatch(function, arguments, shared=["r"])
        assert task.wait(20) == "inside"
        assert refreshed(task).child_tasks.get().state == State.COMPLETED


def test_a_task_that_waits_for_another_is_canceled_at_once(
    worker: Worker, locks: LockManager
) -> None:
    busy = dispatch(tasks.record, ["busy", 60.0], exclusive=["r"])
    wait_for_state(busy, State.RUNNING)
    task = dispatch(tasks.dispatch_and_wait, [["r"]])
    wait_until(lambda: refreshed(task).child_tasks.exists())
    began = time.monotonic()
    cancel_task(task)
    wait_for_state(task, State.CANCELED)
    assert time.monotonic() - began < 2


def test_progress_is_seen_while_the_task_runs(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    task = dispatch(tasks.in_steps, [10, 0.01, str(gate)])
    wait_until(lambda: (refreshed(task).progress or {}).get("done") == 10)
    assert refreshed(task).state == State.RUNNING
    gate.touch()
    task.wait(20)
    assert task.progress == {"done": 10, "total": 10, "message": "step 10"}


def test_the_last_progress_of_a_quick_task_is_not_lost(worker: Worker, locks: LockManager) -> None:
    for _ in range(10):
        task = dispatch(tasks.in_steps, [20, 0.0])
        task.wait(20)
        assert (task.progress or {})["done"] == 20


def test_a_group_is_awaited_and_canceled(worker: Worker, locks: LockManager) -> None:
    group = TaskGroup.objects.create()
    for number in range(8):
        dispatch(tasks.record, [f"{number}", 0.02], shared=["r"], task_group=group)
    summary = group.wait(20)
    assert (summary.done, summary.counts[State.COMPLETED]) == (8, 8)
    wait_until(lambda: TaskGroup.objects.get().finished_at)

    other = TaskGroup.objects.create()
    members = [
        dispatch(tasks.record, ["long", 60.0], exclusive=["r"], task_group=other) for _ in range(3)
    ]
    wait_for_state(members[0], State.RUNNING)
    assert other.cancel() == 3
    assert other.wait(10).counts[State.CANCELED] == 3
    wait_until(lambda: without_signs(locks) == set())


def test_a_worker_leaves_alone_what_it_has_not_the_versions_for(
    workers: Workers, locks: LockManager
) -> None:
    old = workers.start("--name", "old", "--version", "app=1")
    plain = workers.start("--name", "plain")
    task = dispatch(tasks.record, ["two"], versions={"app": "2"})
    assert dispatch(tasks.record, ["one"], versions={"app": "1"}).wait(20) == "one"
    assert dispatch(tasks.record, ["any"]).wait(20) == "any"
    assert refreshed(task).state == State.WAITING
    assert (old.status().versions, plain.status().versions) == ({"app": ["1"]}, {})

    workers.start("--name", "new", "--version", "app=2", "--version", "app=3")

    assert task.wait(20) == "two"
    assert task.worker_name == "new"
