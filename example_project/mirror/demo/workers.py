"""The demo's worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from uuid import UUID

# Seconds that a worker may take to finish its tasks once it was asked to end.
GRACE = 10.0


class WorkerEnded(Exception):
    """A worker process ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker that was killed, and what it did at that moment."""

    worker: str
    pid: int
    incarnation: UUID
    task_ids: frozenset[UUID]
    at: int
    """When the signal was sent: CLOCK_MONOTONIC, nanoseconds."""
    gone_at: int | None
    """When the processes that ran its tasks were seen to be gone; None if they stayed."""


@dataclass(slots=True)
class Worker:
    """A worker process under a name; each start is a new incarnation."""

    name: str
    manage: Path
    log: Path
    concurrency: int = 2
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else 0

    def start(self) -> None:
        command = [sys.executable, str(self.manage), "task_worker"]
        command += ["--name", self.name, "--concurrency", str(self.concurrency)]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends its workers in order.
            self.process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises WorkerEnded, with the end of its log, if the process is not there any more."""
        if self.process is not None and self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise WorkerEnded(
                f"{self.name} ended with status {self.process.returncode}. {self.log}:\n{tail}"
            )

    def kill(self) -> int:
        """Kills the supervisor, without notice; returns when the signal was sent."""
        at = time.monotonic_ns()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        return at

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, until: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Fleet:
    """The workers, as a context manager that leaves none of them behind."""

    def __init__(self, names: Iterable[str], *, manage: Path, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.workers = {
            name: Worker(name=name, manage=manage, log=logs / f"{name}.log") for name in names
        }
        for worker in self.workers.values():
            worker.log.unlink(missing_ok=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()

    def check(self) -> None:
        for worker in self.workers.values():
            worker.check()

    def stop(self) -> None:
        """Asks all to end and kills those that have not after the grace period."""
        with uninterrupted():
            until = time.monotonic() + GRACE
            for worker in self.workers.values():
                worker.terminate()
            for worker in self.workers.values():
                worker.wait(until)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores the signals that would end the demo."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def wait_until_gone(pids: Iterable[int], timeout: float) -> int | None:
    """When all of these processes were seen to be gone; None if some outlived the timeout."""
    waiting = set(pids)
    until = time.monotonic() + timeout
    while True:
        waiting = {pid for pid in waiting if is_alive(pid)}
        if not waiting:
            return time.monotonic_ns()
        if time.monotonic() > until:
            return None
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return not Path("/proc/self").exists()
