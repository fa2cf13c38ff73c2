"""Processes that announce themselves, and end, fork or are killed: real ones."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from django_task_locks import lock_files
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus
from tests.support.processes import wait_until
from tests.support.redis_state import leftovers

PROGRAM = """
import os, signal, sys, time
import django
django.setup()
from django.db import connections
from django_task_locks import dispatch, presence
from django_task_locks.models import AppStatus
from tests.testapp import tasks
"""


class Program:
    """Another process of the same application; it says what it is told to, line by line."""

    def __init__(self, text: str, **locks: object) -> None:
        environment = dict(os.environ)
        given = json.loads(environment["TEST_TASK_LOCKS"])
        environment["TEST_TASK_LOCKS"] = json.dumps({**given, **locks})
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self, timeout: float = 15) -> int:
        """Lets it go on where it reads a line, and returns its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.wait()
        for pipe in (program.process.stdin, program.process.stdout):
            if pipe is not None:
                pipe.close()


class TestEndOfProcess:
    def test_normal_end_leaves_nothing(self, locks: LockManager, programs: list[Program]) -> None:
        program = Program(
            "task = dispatch(tasks.record, exclusive='a', immediate=True)\n"
            "print(task.state, AppStatus.objects.current().owner, flush=True)\n"
            "sys.stdin.read()"
        )
        programs.append(program)
        state, owner = program.line().split()
        status = AppStatus.objects.get()
        assert (state, owner) == ("completed", status.owner)

        assert program.end() == 0

        assert not AppStatus.objects.exists()
        assert not Path(status.lock_file).exists()
        assert locks.owners() == {}
        assert leftovers(locks) == set()

    def test_kill_leaves_a_record_that_becomes_missing(
        self, locks: LockManager, programs: list[Program]
    ) -> None:
        program = Program(
            "print(presence.present().owner, flush=True)\nsys.stdin.read()",
            ttl=0.6,
            heartbeat_interval=0.1,
        )
        programs.append(program)
        program.line()
        status = AppStatus.objects.get()
        assert list(AppStatus.objects.online()) == [status]

        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

        assert lock_files.is_free(status.lock_file, status.owner)
        wait_until(lambda: list(AppStatus.objects.missing()) == [status], what="the end of its TTL")

    def test_living_one_never_becomes_missing(
        self, locks: LockManager, programs: list[Program]
    ) -> None:
        program = Program(
            "presence.present()\nprint('here', flush=True)\nsys.stdin.read()",
            ttl=0.6,
            heartbeat_interval=0.1,
        )
        programs.append(program)
        program.line()
        first = AppStatus.objects.get().last_heartbeat

        wait_until(
            lambda: AppStatus.objects.filter(last_heartbeat__gt=first + timedelta(seconds=1))
        )

        assert AppStatus.objects.missing().count() == 0


class TestFork:
    def test_child_is_announced_as_itself(
        self, locks: LockManager, programs: list[Program]
    ) -> None:
        """It beats for itself, and its end takes nothing of its parent's along."""
        program = Program(
            "parent = presence.present()\n"
            "connections.close_all()\n"
            "import warnings; warnings.simplefilter('ignore')  # a process with threads forks\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    assert AppStatus.objects.current() is None\n"
            "    task = dispatch(tasks.record, exclusive='a', immediate=True)\n"
            "    mine = presence.present()\n"
            "    assert mine.owner != parent.owner\n"
            "    assert (mine.status.pid, task.worker_name) == (os.getpid(), mine.status.name)\n"
            "    print(mine.owner, flush=True)\n"
            "    sys.exit(0)\n"
            "_, status = os.waitpid(child, 0)\n"
            "assert status == 0, status\n"
            "assert presence.present() is parent\n"
            "print(parent.owner, flush=True)\n"
            "sys.stdin.read()"
        )
        programs.append(program)
        child, parent = program.line(), program.line()

        status = AppStatus.objects.get()
        assert status.owner == parent != child
        assert lock_files.is_held(status.lock_file, parent)
        beaten = status.last_heartbeat
        wait_until(lambda: AppStatus.objects.filter(last_heartbeat__gt=beaten).exists())
        assert program.end() == 0
        assert not AppStatus.objects.exists()

    def test_child_that_uses_no_locks_leaves_its_parent_alone(
        self, locks: LockManager, programs: list[Program]
    ) -> None:
        program = Program(
            "print(presence.present().owner, flush=True)\n"
            "connections.close_all()\n"
            "import warnings; warnings.simplefilter('ignore')\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    sys.exit(0)\n"
            "os.waitpid(child, 0)\n"
            "print('ended', flush=True)\n"
            "sys.stdin.read()"
        )
        programs.append(program)
        owner = program.line()
        assert program.line() == "ended"

        status = AppStatus.objects.get()
        assert status.owner == owner
        assert lock_files.is_held(status.lock_file, owner)

    def test_lock_file_of_a_killed_parent_is_held_as_long_as_its_child_lives(
        self, locks: LockManager, programs: list[Program]
    ) -> None:
        """What the parent protects may run in the child."""
        program = Program(
            "presence.present()\n"
            "connections.close_all()\n"
            "import warnings; warnings.simplefilter('ignore')\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    sys.stdin.read()\n"
            "    os._exit(0)\n"
            "print('forked', flush=True)\n"
            "time.sleep(60)"
        )
        programs.append(program)
        assert program.line() == "forked"
        status = AppStatus.objects.get()

        program.process.kill()
        program.process.wait()

        assert lock_files.is_held(status.lock_file, status.owner)
        program.end()
        wait_until(lambda: lock_files.is_free(status.lock_file, status.owner))


def test_processes_of_one_name_are_told_apart(locks: LockManager, programs: list[Program]) -> None:
    text = "print(presence.present().owner, flush=True)\nsys.stdin.read()"
    programs.extend(Program(text) for _ in range(2))
    owners = {program.line() for program in programs}

    assert len(owners) == 2
    assert {owner.rpartition("@")[0] for owner in owners} == {socket.gethostname()}
