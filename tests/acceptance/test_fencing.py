"""Workers that were taken for dead, and are not; and services that are away for long."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db import connections

from django_task_locks import dispatch
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.support import suite
from tests.support.intervals import runs_of
from tests.support.processes import (
    Worker,
    Workers,
    is_guard,
    message,
    refreshed,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.support.servers import ValkeyServer
from tests.support.suite import TTL
from tests.testapp import tasks
from tests.testapp.models import Run

on_postgres = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'",
    reason="on SQLite the lock file and not the heartbeat tells who lives",
)


class Frozen:
    """A worker all of whose processes are stopped, as on a machine that is suspended."""

    def __init__(self, worker: Worker) -> None:
        self.processes = [psutil.Process(worker.pid), *worker.descendants()]
        for process in self.processes:  # the supervisor first: it starts no others then
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in self.processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


def holder(locks: LockManager, resource: str) -> str:
    return locks.inspect_resource(resource).holders[0].id


@on_postgres
class TestFrozenWorker:
    @pytest.fixture
    def frozen(
        self, workers: Workers, locks: LockManager, tmp_path: Path
    ) -> Iterator[tuple[Worker, Task, Frozen]]:
        """A worker that was frozen in the middle of a task until another took over."""
        worker = workers.start("--name", "sleeper", "--concurrency", "1")
        task = dispatch(tasks.until, [str(tmp_path / "late")], exclusive=["r"])
        wait_until((tmp_path / "late.began").exists)
        frozen = Frozen(worker)
        workers.start("--name", "heir", "--queue", "default", "--concurrency", "1")
        wait_for_state(task, State.FAILED, timeout=5 * TTL)
        assert message(task) == "Worker has gone missing."
        yield worker, task, frozen
        frozen.thaw()

    def test_L27_its_late_outcome_and_release_are_refused(
        self, frozen: tuple[Worker, Task, Frozen], locks: LockManager, tmp_path: Path
    ) -> None:
        """L27: a process that was declared missing finishes late."""
        worker, task, processes = frozen
        successor = dispatch(tasks.until, [str(tmp_path / "heir")], exclusive=["r"])
        wait_until((tmp_path / "heir.began").exists)
        # Only the executor wakes, and its guard is still asleep: the body comes to its end.
        (tmp_path / "late").touch()
        executor = psutil.Process(int((tmp_path / "late.began").read_text()))
        executor.send_signal(signal.SIGCONT)
        worker.wait_for_log("outcome refused")
        wait_until(lambda: not is_alive(executor), what="the executor that is shut out to end")
        ended = refreshed(task)
        assert (ended.state, message(task)) == (State.FAILED, "Worker has gone missing.")
        assert ended.result is None
        assert holder(locks, "r") == str(successor.pk)
        assert refreshed(successor).state == State.RUNNING
        processes.thaw()
        worker.wait_for_log("starting as a new incarnation")
        assert holder(locks, "r") == str(successor.pk)
        (tmp_path / "heir").touch()
        wait_for_state(successor, State.COMPLETED)
        assert successor.lock_token < refreshed(successor).lock_token
        assert_nothing_is_left(locks)

    def test_it_fences_itself_when_it_wakes_and_goes_on_as_a_new_incarnation(
        self, frozen: tuple[Worker, Task, Frozen], workers: Workers, locks: LockManager
    ) -> None:
        worker, task, processes = frozen
        processes.thaw()
        worker.wait_for_log("starting as a new incarnation")
        assert workers.started[1].stop() == 0
        after = dispatch(tasks.record, ["after"], exclusive=["r"])
        wait_for_state(after, State.COMPLETED)
        assert refreshed(after).worker_name == "sleeper"
        assert worker.process.poll() is None
        assert message(task) == "Worker has gone missing."
        assert AppStatus.objects.filter(name="sleeper").count() == 1
        assert_nothing_is_left(locks)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@on_postgres
def test_a_worker_outlives_a_database_that_is_away_for_longer_than_its_ttl(
    workers: Workers, locks: LockManager
) -> None:
    """It fences itself in time, says so, waits, and goes on as a new incarnation."""
    worker = workers.start("--concurrency", "2")
    task = dispatch(tasks.stubborn, ["victim", 60.0], exclusive=["r"])
    waiting = dispatch(tasks.record, ["waiting"], exclusive=["r"])
    run = wait_until(lambda: Run.objects.filter(task_id=task.pk).first())
    executor = psutil.Process(run.pid)
    connections.close_all()
    suite.postgres.stop()
    try:
        wait_until(lambda: not is_alive(executor), timeout=TTL, what="the guard to act in time")
        worker.wait_for_log("starting as a new incarnation")
        worker.wait_for_log("unavailable; tried again")
        assert worker.process.poll() is None
    finally:
        suite.postgres.start()
    ended = wait_until_final([task, waiting])
    assert [task.state for task in ended] == [State.FAILED, State.COMPLETED]
    assert runs_of([waiting])
    assert worker.process.poll() is None
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


@on_postgres
def test_an_outcome_is_stored_after_a_short_outage_of_the_database(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    worker = workers.start()
    gate = tmp_path / "gate"
    task = dispatch(tasks.until, [str(gate)], exclusive=["r"])
    wait_until(Path(f"{gate}.began").exists)
    connections.close_all()
    suite.postgres.stop()
    try:
        gate.touch()
        wait_until(Path(f"{gate}.ended").exists)
        worker.wait_for_log("unavailable; tried again")
    finally:
        suite.postgres.start()
    ended = wait_for_state(task, State.COMPLETED)
    assert (ended.result, ended.error) == (str(gate), None)
    assert_nothing_is_left(locks)


def test_a_worker_outlives_redis_that_is_away_for_longer_than_its_ttl(
    workers: Workers, locks: LockManager, settings: object
) -> None:
    """Redis does not decide who lives: nothing is fenced."""
    with ValkeyServer(appendonly="yes", appendfsync="always") as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}  # type: ignore[attr-defined]
        worker = workers.start(redis=server.url)
        task = dispatch(tasks.record, ["long", 2 * TTL], exclusive=["r"])
        wait_until(lambda: Run.objects.filter(task_id=task.pk).first())
        owner = worker.status().owner
        server.kill()
        wait_for_state(task, State.COMPLETED, timeout=4 * TTL)
        server.start()
        wait_for_state(dispatch(tasks.record, ["next"], exclusive=["r"]), State.COMPLETED)
        assert worker.status().owner == owner
        assert worker.process.poll() is None
        assert "new incarnation" not in worker.log()
        assert_nothing_is_left(get_lock_manager())


def test_the_death_of_the_guard_is_noticed_and_made_good(
    worker: Worker, locks: LockManager
) -> None:
    (guard,) = filter(is_guard, worker.descendants())
    os.kill(guard.pid, signal.SIGKILL)
    wait_until(
        lambda: [p for p in worker.descendants() if p.pid != guard.pid and is_guard(p)],
        what="another guard",
    )
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
