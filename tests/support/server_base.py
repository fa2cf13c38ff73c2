"""A server process of the suite's own, in its own directory; servers.py has the kinds.

Constructing a server only fixes its addresses; start() makes the directory and the process. A
server ends with close(), at the exit of the process that made it, and on Linux with the death of
that process, however it dies. Start servers from the main thread: the tie of tether.py is to the
thread.
"""

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import ClassVar, Self

import psutil

# Below those that Linux (from 32768 on) and others give to connections.
_PORTS = 20_000, 32_000
_random = random.SystemRandom()  # which no test seeds

TETHER = Path(__file__).with_name("tether.py")


class ServerError(Exception):
    """A server did not start, or did something else than asked."""


def make_directory() -> Path:
    """A new directory whose path is short enough for a unix socket, and which a server that does
    not run as root can reach."""
    base = tempfile.gettempdir()
    if len(base) > 40 or os.geteuid() == 0:
        base = "/tmp"  # noqa: S108 - the directory made in it is ours alone
    directory = Path(tempfile.mkdtemp(prefix="task-locks-", dir=base))
    if os.geteuid() == 0:
        directory.chmod(0o711)  # what is in it is closed again, each for its own user
    return directory


_reserved: list[int] = []


def free_port() -> int:
    """A port that nothing else takes before its server does, or while that is down: not one of
    those from which connections get theirs, and reserved as long as this process lives from
    others that look for one.
    """
    directory = Path(tempfile.gettempdir(), f"task-locks-ports-{os.geteuid()}")
    directory.mkdir(exist_ok=True)
    while True:
        port = _random.randrange(*_PORTS)
        reservation = os.open(directory / str(port), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(reservation, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            os.close(reservation)
        else:
            _reserved.append(reservation)
            return port


def wait_until_gone(pids: Sequence[int], timeout: float) -> None:
    """Gone or a zombie: not every container has an init that reaps what it inherits."""
    deadline = monotonic() + timeout
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                if monotonic() > deadline:
                    raise ServerError(f"process {pid} did not end")
                sleep(0.005)


def tethered(command: Sequence[str | Path], death_signal: int, user: str = "") -> list[str]:
    """The command line that runs `command` tied to this process, see tether.py."""
    tie = [str(os.getpid()), str(int(death_signal)), user]
    return [sys.executable, "-I", "-S", str(TETHER), *tie, *map(str, command)]


class Startable(ABC):
    """What is started and closed; `with` does both."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Server(Startable):
    """What both servers have in common: one process, its directory, its log."""

    starts_within: ClassVar[float] = 60
    stops_within: ClassVar[float] = 30
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL
    user = ""

    def __init__(self, directory: Path | None = None, *, tcp: bool = False) -> None:
        self.directory = directory or make_directory()
        self.port = free_port() if tcp else None
        self._process: subprocess.Popen[bytes] | None = None
        self._creator = os.getpid()
        # A directory that was named belongs to whoever named it.
        self._own_directory = directory is None
        atexit.register(self.close)

    @property
    @abstractmethod
    def url(self) -> str:
        """Leads to the unix socket."""

    @property
    @abstractmethod
    def tcp_url(self) -> str:
        """Leads to the port, of a server made with tcp=True."""

    @abstractmethod
    def command(self) -> list[str | Path]: ...

    @abstractmethod
    def is_answering(self) -> bool: ...

    def prepare(self) -> None:
        """Makes what must be there before the first start."""
        self.directory.mkdir(mode=0o700, exist_ok=True)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{type(self).__name__} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Returns once the server answers."""
        if self.is_running:
            raise ServerError(f"{type(self).__name__} is running already")
        self.prepare()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(self.command(), self.death_signal, self.user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self.environment(),
                # Ctrl-C is for the tests, which then end their servers.
                start_new_session=True,
            )
        try:
            self._wait_until_answering(self._process)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Ends the server in good order; its directory stays, to start it again."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """SIGKILL, to the server and all processes of it; returns when they are gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            server = psutil.Process(self._process.pid)
            # Stopped first, or it would start new children while these are counted.
            server.suspend()
            children = server.children(recursive=True)
            for process in [*children, server]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait(self.stops_within)
            wait_until_gone([child.pid for child in children], self.stops_within)
        self._process = None

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        """Ends the server and removes what it wrote. Only in the process that made it: a forked
        child has a copy of the object, but not the server."""
        if os.getpid() != self._creator:
            return
        atexit.unregister(self.close)
        try:
            self._end(self.death_signal)
        finally:
            if self._own_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def log(self, lines: int = 20) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])

    def environment(self) -> dict[str, str]:
        """Nothing of the caller's: variables such as PGDATA or PGPORT would get in."""
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal_number)
        # A test may have frozen it.
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(self.stops_within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{type(self).__name__} did not end:\n{self.log()}") from None
        self._process = None

    def _wait_until_answering(self, process: subprocess.Popen[bytes]) -> None:
        deadline = monotonic() + self.starts_within
        while not self.is_answering():
            try:
                status = process.wait(timeout=0.02)
            except subprocess.TimeoutExpired:
                if monotonic() > deadline:
                    raise ServerError(
                        f"{type(self).__name__} does not answer:\n{self.log()}"
                    ) from None
            else:
                raise ServerError(
                    f"{type(self).__name__} ended with status {status}:\n{self.log()}"
                )
