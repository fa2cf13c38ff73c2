"""What a worker does at each signal in each situation: the matrix."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from django_task_locks import dispatch
from django_task_locks.dispatching import send_request
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.factories import TaskFactory
from tests.support import suite
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

GRACEFUL = (signal.SIGTERM, signal.SIGHUP)
SIGNALS = [*GRACEFUL, signal.SIGINT, signal.SIGKILL]
SITUATIONS = ["idle", "between grant and start", "running", "finishing", "twice"]


@contextmanager
def row_locked(task: Task) -> Iterator[None]:
    """Nobody else can write the task's row: on PostgreSQL this one, on SQLite none at all."""
    if settings.DATABASES["default"]["ENGINE"].endswith("postgresql"):
        with suite.postgres.client("test_task_locks") as other:
            other.execute("BEGIN")
            other.execute(
                "SELECT 1 FROM django_task_locks_task WHERE id = %s FOR UPDATE", [str(task.pk)]
            )
            yield
            other.execute("ROLLBACK")
        return
    other_file = sqlite3.connect(settings.DATABASES["default"]["NAME"], isolation_level=None)
    other_file.execute("BEGIN IMMEDIATE")
    yield
    other_file.execute("ROLLBACK")
    other_file.close()


def is_held(locks: LockManager, task: Task) -> bool:
    info = locks.inspect_request(str(task.pk))
    return info is not None and info.state == "held"


class Scene:
    """A worker in a situation, and what is expected of it after a signal."""

    def __init__(self, worker: Worker, locks: LockManager, directory: Path) -> None:
        self.worker = worker
        self.locks = locks
        self.gate = directory / "gate"

    def send(self, number: int) -> None:
        self.worker.send(number)
        if number == signal.SIGKILL:
            self.worker.process.wait()
        else:
            self.worker.wait_for_log("stopping")

    def idle(self, number: int) -> tuple[Task, set[str]]:
        task = wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
        self.send(number)
        return task, {State.COMPLETED}

    def between_grant_and_start(self, number: int) -> tuple[Task, set[str]]:
        task = TaskFactory.create(name="tests.testapp.tasks.add", args=[1], exclusive=["r"])
        with row_locked(task):
            send_request(task)
            wait_until(lambda: is_held(self.locks, task), what="the claim")
            self.send(number)
        # A start that was on its way when the worker was killed may have come through.
        return task, {State.WAITING} if number != signal.SIGKILL else {
            State.COMPLETED,
            State.FAILED,
        }

    def running(self, number: int) -> tuple[Task, set[str]]:
        task = dispatch(tasks.until, [str(self.gate)], exclusive=["r"])
        wait_until(Path(f"{self.gate}.began").exists)
        self.send(number)
        if number in GRACEFUL:
            self.gate.touch()
            return task, {State.COMPLETED}
        return task, {State.FAILED}

    def finishing(self, number: int) -> tuple[Task, set[str]]:
        task = dispatch(tasks.until, [str(self.gate)], exclusive=["r"])
        wait_until(Path(f"{self.gate}.began").exists)
        with row_locked(task):
            self.gate.touch()
            wait_until(Path(f"{self.gate}.ended").exists)
            self.send(number)
        # Its outcome may have been on its way when it was killed.
        late = {State.FAILED} if number == signal.SIGKILL else set()
        return task, {State.COMPLETED} | late

    def twice(self, number: int) -> tuple[Task, set[str]]:
        task = dispatch(tasks.stubborn, ["stubborn", 60.0], exclusive=["r"])
        wait_until(lambda: Run.objects.exists())
        self.send(number)
        if number != signal.SIGKILL:
            self.send(number)
        return task, {State.FAILED}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal(
    number: signal.Signals, situation: str, workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    worker = workers.start("--name", "w")
    family = worker.descendants()
    scene = Scene(worker, locks, tmp_path)
    task, expected = getattr(scene, situation.replace(" ", "_"))(number)
    assert worker.wait() == (-number if number == signal.SIGKILL else 0)
    assert psutil.wait_procs(family, timeout=5)[1] == [], "nothing of it lives on"
    if number == signal.SIGKILL:
        workers.start("--name", "w")  # it cleans up after its predecessor
        ended = wait_until_final([task])[0]
    else:
        assert not AppStatus.objects.filter(app_type="worker").exists()
        ended = refreshed(task)
    assert ended.state in expected
    if ended.state == State.FAILED:
        assert message(task) == (
            "Worker has gone missing."
            if number == signal.SIGKILL
            else "Aborted during worker shutdown."
        )
    if ended.state == State.WAITING:
        workers.start("--name", "other")
        assert wait_for_state(task, State.COMPLETED).attempt == 1
    assert_nothing_is_left(locks)


def may_unshare() -> str:
    """Why this process may not make a PID namespace; empty if it may."""
    try:
        done = subprocess.run(
            ["unshare", "--pid", "--fork", "--mount-proc", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


class TestAsProcess1:
    """As in a container without an init: signals that have no handler are ignored there, and
    whatever loses its parent becomes a child of the worker.
    """

    @pytest.fixture
    def container(self, locks: LockManager, tmp_path: Path) -> Iterator[Worker]:
        if reason := may_unshare():
            pytest.skip(f"no PID namespace can be made here: {reason}")
        worker = Worker(
            tmp_path / "worker.log",
            "--name",
            "container",
            program=["unshare", "--pid", "--fork", "--mount-proc", sys.executable],
        )
        worker.wait_until_started()
        yield worker
        for process in worker.descendants():
            process.kill()
        worker.kill()

    @pytest.mark.parametrize("number", [*GRACEFUL, signal.SIGINT], ids=lambda number: number.name)
    def test_it_ends_on_a_signal_and_leaves_nothing(
        self, number: int, container: Worker, locks: LockManager, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        task = dispatch(tasks.until, [str(gate)], exclusive=["r"])
        wait_until(Path(f"{gate}.began").exists)
        (supervisor,) = psutil.Process(container.pid).children()
        assert AppStatus.objects.get(name="container").pid == 1
        supervisor.send_signal(number)
        container.wait_for_log("stopping")
        gate.touch()
        assert container.wait() == 0
        assert refreshed(task).state == State.COMPLETED
        assert_nothing_is_left(locks)

    def test_what_tasks_leave_behind_is_no_zombie_for_ever(
        self, container: Worker, locks: LockManager
    ) -> None:
        for _ in range(3):
            wait_for_state(dispatch(tasks.leave_a_daemon, [0.1]), State.COMPLETED)
        (supervisor,) = psutil.Process(container.pid).children()
        wait_until(
            lambda: (
                not any(
                    child.status() == psutil.STATUS_ZOMBIE
                    for child in supervisor.children(recursive=True)
                )
            ),
            what="zombies to be waited for",
        )
        os.kill(supervisor.pid, signal.SIGTERM)
        assert container.wait() == 0
