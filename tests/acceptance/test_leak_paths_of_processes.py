"""What killed workers leave behind, found by those that come after them: with real processes."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_task_locks import cancel_task, dispatch
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.factories import TaskFactory
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
from tests.support.servers import ValkeyServer
from tests.support.suite import TTL
from tests.testapp import tasks
from tests.testapp.models import Run

MISSING = "Worker has gone missing."


def run_of(task: Task) -> Run | None:
    return Run.objects.filter(task_id=task.pk).first()


def killed_at_work(workers: Workers, *arguments: str, **locks: Any) -> tuple[str, Task, Task]:
    """The owner of a worker that was killed, the task that it ran, and one behind that."""
    worker = workers.start(*arguments, **locks)
    victim = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
    wait_until(lambda: run_of(victim))
    owner = worker.status().owner
    executors = worker.descendants()
    worker.kill()
    wait_until(lambda: not any(is_alive(process) for process in executors), what="their end")
    return owner, victim, behind


def is_alive(process: Any) -> bool:
    return bool(process.is_running() and process.status() != "zombie")


@pytest.fixture
def own_valkey(locks: LockManager, settings: Any) -> Iterator[ValkeyServer]:
    """A Valkey of this test's own, to freeze."""
    with ValkeyServer() as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        yield server


def test_L4_an_executor_that_dies_between_its_outcome_and_its_release_is_settled(
    own_valkey: ValkeyServer, workers: Workers, tmp_path: Any
) -> None:
    """L4: the final state is committed, the release is not sent; the worker lives."""
    worker = workers.start("--concurrency", "2", redis=own_valkey.url, cleanup_interval=3600.0)
    task = dispatch(tasks.record_until, ["first", str(tmp_path / "gate")], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
    executor = wait_until(lambda: run_of(task)).pid
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        (tmp_path / "gate").touch()
        wait_for_state(task, State.COMPLETED)
        os.kill(executor, signal.SIGKILL)
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)
    wait_for_state(behind, State.COMPLETED)
    assert refreshed(task).state == State.COMPLETED
    assert worker.process.poll() is None
    assert_nothing_is_left(get_lock_manager())


def test_L10_a_worker_cleans_up_after_a_stale_predecessor_before_its_first_task(
    workers: Workers, locks: LockManager, tmp_path: Any
) -> None:
    """L10: it restarts under the same name when the predecessor's heartbeat is stale, and nothing
    but that tells that it is dead."""
    owner, victim, behind = killed_at_work(workers, "--name", "w", run_dir=str(tmp_path / "a"))
    stale = AppStatus.objects.missing
    wait_until(stale, timeout=3 * TTL)
    restarted_at = time.monotonic()
    second = workers.start("--name", "w", run_dir=str(tmp_path / "b"), cleanup_interval=3600.0)
    wait_for_state(behind, State.COMPLETED)
    assert time.monotonic() - restarted_at < TTL + 2
    log = second.log()
    assert log.index("process declared missing") < log.index("worker started")
    assert message(victim) == MISSING
    assert AppStatus.objects.get(app_type="worker").owner != owner
    assert_nothing_is_left(locks)


def test_L13_a_killed_worker_whose_row_was_deleted_is_cleaned_one_ttl_later(
    workers: Workers, locks: LockManager
) -> None:
    """L13: by the admin, by SQL or by somebody's own clean-up of rows."""
    owner, victim, behind = killed_at_work(workers, "--name", "dead")
    AppStatus.objects.all()._raw_delete("default")
    workers.start("--name", "alive")
    wait_for_state(behind, State.COMPLETED, timeout=6 * TTL)
    assert message(victim) == MISSING
    assert owner not in locks.owners()
    assert_nothing_is_left(locks)


def test_L14_what_cannot_be_cleaned_holds_up_nothing_else_and_is_tried_again(
    workers: Workers, locks: LockManager
) -> None:
    """L14: one task's clean-up fails; the others' goes on, and the row stays for a retry."""
    first = workers.start("--name", "dead", "--concurrency", "2")
    victims = [dispatch(tasks.record, [f"v{n}", 60.0], exclusive=[f"r{n}"]) for n in range(2)]
    behind = [dispatch(tasks.record, [f"b{n}"], exclusive=[f"r{n}"]) for n in range(2)]
    wait_until(lambda: all(map(run_of, victims)))
    first.kill()
    key = locks.keys.request(str(victims[0].pk))
    kept = locks.client.dump(key)
    locks.client.set(key, "written by somebody else")
    second = workers.start("--name", "alive")
    wait_for_state(behind[1], State.COMPLETED, timeout=6 * TTL)
    second.wait_for_log("clean-up step failed")
    assert AppStatus.objects.filter(name="dead").exists()
    assert refreshed(behind[0]).state == State.WAITING
    locks.client.restore(key, 0, kept, replace=True)
    wait_for_state(behind[0], State.COMPLETED)
    wait_until(lambda: not AppStatus.objects.filter(name="dead").exists())
    assert_nothing_is_left(locks)


def test_L15_a_task_that_its_killed_worker_had_not_begun_waits_again_and_runs(
    workers: Workers, locks: LockManager
) -> None:
    """L15: the worker dies between claim and start. The task loses no attempt."""
    with refused_transition(State.RUNNING):
        first = workers.start("--name", "w")
        task = dispatch(tasks.record, ["late"], exclusive=["r"])
        first.wait_for_log("refused for a test")
        first.kill()
    second = workers.start("--name", "w")
    ended = wait_for_state(task, State.COMPLETED, timeout=6 * TTL)
    assert ended.attempt == 1
    assert second.process.poll() is None
    assert_nothing_is_left(locks)


def test_L17_a_killed_worker_whose_registry_was_lost_too_is_cleaned_all_the_same(
    workers: Workers, locks: LockManager, tmp_path: Any
) -> None:
    """L17: all that its successor can go by is the rows; the rest it finds by a look at all
    requests, and acts on that owner's alone."""
    other = workers.start("--name", "other", "--queue", "other")
    gate = tmp_path / "gate"
    bystander = dispatch(
        tasks.record_until, ["bystander", str(gate)], exclusive=["o"], queue="other"
    )
    wait_until(lambda: run_of(bystander))
    owner, victim, behind = killed_at_work(workers, "--name", "w", "--queue", "default")
    locks.client.delete(locks.keys.owner(owner), locks.keys.owner(other.status().owner))
    second = workers.start("--name", "w", "--queue", "default")
    second.wait_for_log("registry is missing")
    assert [holder.id for holder in locks.inspect_resource("o").holders] == [str(bystander.pk)]
    gate.touch()
    ended = wait_until_final([victim, behind, bystander])
    assert [task.state for task in ended] == [State.FAILED, State.COMPLETED, State.COMPLETED]
    assert message(victim) == MISSING
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("state", [State.RUNNING, State.CANCELING])
def test_L22_a_row_that_names_no_process_does_not_run_for_ever(
    state: str, worker: Worker, locks: LockManager
) -> None:
    """L22: a running or canceling row without an owner ends one TTL after it was first seen."""
    task = TaskFactory.create(state=State.RUNNING, exclusive=["r"])
    if state == State.CANCELING:
        cancel_task(task)
    expected = {State.RUNNING: State.FAILED, State.CANCELING: State.CANCELED}[State(state)]
    wait_for_state(task, expected, timeout=6 * TTL)
    assert_nothing_is_left(locks)
