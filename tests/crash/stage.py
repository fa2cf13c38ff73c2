"""The stage of one point: a clean database, a prefix, and processes forked from the lane, which is
warm, so that none of them costs an import.
"""

import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
from django.conf import settings
from django.db import connection, connections
from django.test import override_settings
from redis import Redis

from django_task_locks import epochs, presence, rebuilding, schedules
from django_task_locks.connections import close_connections
from django_task_locks.locks.keys import Keys
from django_task_locks.models import Task
from django_task_locks.states import State
from django_task_locks.worker.executor import Orders
from django_task_locks.worker.supervisor import Options, Supervisor
from tests.crash import evidence
from tests.crash.evidence import Stay
from tests.crash.lock_record import LockRecord, Span
from tests.support.proxy import POSTGRES, REDIS, Count, Plan, Proxy

T = TypeVar("T")

PREFIX = "crash"
TTL = 1.0
LOCKS = {
    "ttl": TTL,
    "cleanup_interval": 0.5,
    "shutdown_grace": 0.5,
}
# Of processes that are not to hear of a loss before the one under test.
SLOW = {"ttl": 3.0, "heartbeat_interval": 0.5}
# Of the process under test alone: nothing else is to take a busy machine for a fault.
IMPATIENCE = {"connect_timeout": 1.0, "reply_timeout": 0.4, "retries": 2}
# Longer than a client of Redis waits, and than a process may be silent.
HOLD = {REDIS: 1.0, POSTGRES: 1.7 * TTL}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """What processes leave behind that die becomes this one's, who can end it."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Process:
    """A child of the lane."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self._status: int | None = None

    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def has_ended(self) -> bool:
        return self.status() is not None

    def send(self, number: int) -> None:
        if not self.has_ended():
            os.kill(self.pid, number)


class Stage:
    """directory     the lane's, with a directory for each point
    evidence      the file in which bodies leave their traces
    """

    def __init__(self, proxy: Proxy, directory: Path, number: int) -> None:
        self._proxy = proxy
        self.directory = directory / f"point-{number}"
        self.evidence = str(self.directory / "evidence")
        self.log_file = self.directory / "log"
        self._locks = {
            **LOCKS,
            "prefix": PREFIX,
            "redis": settings.CACHES["default"]["LOCATION"],
            "run_dir": str(self.directory / "run"),
        }
        self._settings = override_settings(TASK_LOCKS=self._locks)
        self._exits = ExitStack()
        self.target: Process | None = None
        self._plan: Plan | None = None

    def __enter__(self) -> "Stage":
        self.directory.mkdir()
        self._settings.enable()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            cursor.execute(
                "TRUNCATE django_task_locks_task, django_task_locks_appstatus, crash_history"
            )
        self.lose_locks()
        # An epoch of this point's own, which no process of an earlier one takes for the present.
        if not rebuilding.rebuild():
            raise RuntimeError("the point before is still at work")
        epochs.forget()
        self._record = self._exits.enter_context(LockRecord(self._proxy.server, Keys(PREFIX)))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._kill_all()
        self._exits.close()
        self._settings.disable()
        shutil.rmtree(self.directory, ignore_errors=True)

    def lose_locks(self) -> None:
        """Redis loses everything; by a connection that no fault strikes. A worker has no child for
        schedules, which are elsewhere: its other children connect in a known order.
        """
        with Redis.from_url(settings.CACHES["default"]["LOCATION"]) as client:
            pipeline = client.pipeline()
            pipeline.flushall()
            pipeline.set(Keys(PREFIX).leader(schedules.JOB), "elsewhere", ex=600)
            pipeline.execute()

    # -- processes -----------------------------------------------------------------------------

    def aim(self, run: Callable[[], object], plan: Plan, *, is_later: bool) -> Process:
        """Starts the process under test: its commands go through the proxy, which strikes as this
        plan says. If that is to be later, the commands are counted from `strike_from_now`.
        """
        read, write = os.pipe()

        def begin() -> object:
            os.close(write)
            os.read(read, 1)  # until the proxy knows whom to watch
            os.close(read)
            by_proxy = {"redis": f"unix://{self._proxy.redis}"}
            override_settings(TASK_LOCKS=self._locks | IMPATIENCE | by_proxy).enable()
            connection.settings_dict["HOST"] = str(self._proxy.directory)
            return run()

        self.target = self.fork("target", begin)
        os.close(read)
        self._plan = replace(plan, pid=self.target.pid, hold=HOLD)
        self._proxy.arm(replace(self._plan, at=0) if is_later else self._plan)
        os.close(write)
        return self.target

    def strike_from_now(self) -> None:
        assert self._plan is not None
        self._proxy.arm(self._plan)

    def fork(self, name: str, run: Callable[[], object]) -> Process:
        """A process that does this and ends, with its status where it returns a number."""
        connections.close_all()
        close_connections()
        lane = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                os.setsid()
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != lane:
                    os._exit(status)
                self._redirect(name)
                status = int(run() or 0)  # type: ignore[call-overload]
            except BaseException:
                traceback.print_exc()
                status = 1
            finally:
                with suppress(BaseException):
                    presence.leave()  # as at a process's exit
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        return Process(name, pid)

    def apart(self, run: Callable[[], object]) -> None:
        """Does this in a process of its own, of which nothing goes on."""
        process = self.fork("apart", run)
        assert self.until(process.has_ended, 10.0), "a process beside does not end"

    def worker(self, name: str, *queues: str, burst: bool = False) -> int:
        """The life of a worker with one executor; for `fork` and `aim`."""
        orders = Orders(queues=frozenset(queues) or None, burst=burst)
        return Supervisor(Options(name=name, concurrency=1, orders=orders)).run()

    def start_worker(self, name: str, *queues: str, is_slow: bool = False) -> Process:
        """A worker that no fault strikes."""

        def run() -> int:
            if is_slow:
                override_settings(TASK_LOCKS=self._locks | SLOW).enable()
            return self.worker(name, *queues)

        return self.fork(name, run)

    def start_command(self, name: str) -> Process:
        """The same by the command, in a new interpreter."""
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_TASK_LOCKS": json.dumps(self._locks),
        }
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "task_worker", "--name", name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        process.returncode = 0  # its end is waited for like that of the others
        return Process(name, process.pid)

    def _redirect(self, name: str) -> None:
        log = os.open(self.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, descriptor)
        logger = logging.getLogger("django_task_locks")
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(
            logging.Formatter(f"%(asctime)s.%(msecs)03d {name} %(message)s", "%H:%M:%S")
        )
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)

    def _kill_all(self) -> None:
        # What is killed may have children that come to us then.
        for _ in range(20):
            left = [
                process
                for process in psutil.Process().children(recursive=True)
                if process.pid != self._proxy.pid
            ]
            if not left:
                return
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            for process in left:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)

    # -- what there is -------------------------------------------------------------------------

    def count(self) -> Count:
        """Of the commands of the process under test."""
        return self._proxy.count()

    def is_over(self) -> bool:
        """Whether the process under test has met its fault, or has ended."""
        return self.has_target_ended() or (
            self.target is not None and self.count().struck_at is not None
        )

    def has_target_ended(self) -> bool:
        return self.target is not None and self.target.has_ended()

    def stays(self) -> list[Stay]:
        return evidence.read(Path(self.evidence))

    def locks(self) -> list[Span]:
        """Who had them; to be asked once, at the end."""
        return self._record.spans()

    def has_begun(self, label: str) -> bool:
        return any(stay.label == label for stay in self.stays())

    def is_final(self, task: Task) -> bool:
        return not Task.objects.filter(pk=task.pk, state__in=State.incomplete()).exists()

    def until(self, probe: Callable[[], T], seconds: float, step: float = 0.02) -> T:
        """Its first true value, or its last one when the seconds are over."""
        deadline = time.monotonic() + seconds
        while not (value := probe()) and time.monotonic() < deadline:
            time.sleep(step)
        return value

    def arguments(self, label: str, *more: Any) -> list[Any]:
        """Of a body of this name."""
        return [self.evidence, label, *more]
