"""Real workers as a test sees them, and waiting for what they do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from django_task_locks.models import AppStatus, Task

T = TypeVar("T")


def wait_until(probe: Callable[[], T | None], timeout: float = 15.0, what: object = "") -> T:
    """Returns the probe's first true value; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or probe} did not come true within {timeout:g} s")
        time.sleep(0.01)
    return value


def refreshed(task: Task) -> Task:
    return Task.objects.get(pk=task.pk)


def wait_for_state(task: Task, *states: str, timeout: float = 15.0) -> Task:
    """The task as it is when it has come to one of these states."""

    def probe() -> Task | None:
        present = refreshed(task)
        return present if present.state in states else None

    return wait_until(probe, timeout, f"{task} in {' or '.join(states)}")


def message(task: Task) -> str:
    """The message of its error, as the row has it now."""
    return str((refreshed(task).error or {})["message"])


def wait_until_final(tasks: Iterable[Task], timeout: float = 30.0) -> list[Task]:
    """The tasks as they are when all have a final state."""
    pks = [task.pk for task in tasks]
    wait_until(
        lambda: not Task.objects.incomplete().filter(pk__in=pks).exists(), timeout, "the end of all"
    )
    return [Task.objects.get(pk=pk) for pk in pks]


class Worker:
    """One `manage.py task_worker`; its output is kept in a file. Another `program` than the
    interpreter may run it."""

    def __init__(
        self,
        output: Path,
        *arguments: str,
        program: Iterable[str] = (sys.executable,),
        **locks: Any,
    ) -> None:
        self.output = output
        environment = dict(os.environ)
        if locks:
            given = json.loads(environment["TEST_TASK_LOCKS"])
            environment["TEST_TASK_LOCKS"] = json.dumps(given | locks)
        environment["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*program, "-m", "django", "task_worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.output.read_text()

    def wait_for_log(self, text: str, timeout: float = 15.0) -> None:
        try:
            wait_until(lambda: text in self.log(), timeout, f"{text!r} in the worker's output")
        except AssertionError as error:
            raise AssertionError(f"{error}; it says:\n{self.log()}") from None

    def wait_until_started(self) -> "Worker":
        self.wait_for_log("worker started")
        return self

    def status(self) -> AppStatus:
        """Its row."""
        return wait_until(
            lambda: AppStatus.objects.filter(pid=self.pid, missing_at=None).last(),
            what="the worker's row",
        )

    def descendants(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the supervisor alone: what it leaves is left."""
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> int:
        """Its exit status after a signal."""
        self.send(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 15.0) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end; it says:\n{self.log()}") from None


class Workers:
    """The workers that one test has started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.started: list[Worker] = []

    def start(self, *arguments: str, **locks: Any) -> Worker:
        """A worker that has begun; keywords override TASK_LOCKS."""
        return self.launch(*arguments, **locks).wait_until_started()

    def launch(self, *arguments: str, **locks: Any) -> Worker:
        """A worker of which nothing is known yet."""
        output = self._directory / f"worker-{len(self.started)}.log"
        worker = Worker(output, *arguments, **locks)
        self.started.append(worker)
        return worker

    def end(self) -> None:
        doomed = [process for worker in self.started for process in worker.descendants()]
        for worker in self.started:
            if worker.process.poll() is None:
                worker.send(signal.SIGCONT)
                worker.send(signal.SIGTERM)
                worker.send(signal.SIGINT)
        for worker in self.started:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(5)
            worker.kill()
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=5)


def is_guard(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # a zombie has no command line
        return any("guard.py" in word for word in process.cmdline())
    return False
