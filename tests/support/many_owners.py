"""Many processes with an incarnation each, forked from one that has loaded everything: so many real
workers would be too many for a small machine.

    python -m tests.support.many_owners hold 150      takes locks, says so, and waits to be killed
    python -m tests.support.many_owners restart 150   cleans up after these, all at once
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LOCKS = 5


def name(number: int) -> str:
    return f"owner-{number}"


def resource(number: int, lock: int) -> str:
    return f"{name(number)}/{lock}"


# -- as a test calls it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Restarted:
    """seconds: until the last of them had cleaned up; statuses: of their processes"""

    seconds: float
    statuses: list[int]


def leave_dead(count: int) -> None:
    """So many owners with their locks, killed."""
    command = [sys.executable, "-m", __name__, "hold", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline() or "[]")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        parent.wait(60)
    assert len(pids) == count


def restart(count: int) -> Restarted:
    """Incarnations of the same names start together; each ends when it has cleaned up."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, "restart", str(count)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=True,
    )
    return Restarted(**json.loads(done.stdout))


# -- in a process of its own -----------------------------------------------------------------------


def _fork(count: int, run: Callable[[int, int], Any]) -> tuple[list[int], Callable[[], None]]:
    """Children that call run(number, descriptor to read), all of them when the returned function
    is called: only then the end of file can be read."""
    from django_task_locks.worker.children import die_with

    read, write = os.pipe()
    parent, pids = os.getpid(), []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with(parent, signal.SIGKILL)
                os.close(write)
                os.read(read, 1)
                run(number, read)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    return pids, lambda: os.close(write)


def _prepared(number: int) -> Any:
    from django_task_locks import presence
    from django_task_locks.models import AppStatus

    me = presence.prepare(name(number), AppStatus.AppType.WORKER)
    presence.register(me)
    return me


def _hold(count: int) -> None:
    from django.db import connections

    from django_task_locks.connections import get_lock_manager
    from django_task_locks.locks import LockRequest

    read, write = os.pipe()

    def hold(number: int, _: int) -> None:
        me = _prepared(number)
        for lock in range(LOCKS):
            names = (resource(number, lock),)
            get_lock_manager().request(
                LockRequest(id=f"{me.owner}/{lock}", exclusive=names, claimant=me.claimant)
            )
        connections.close_all()
        os.write(write, b".")
        signal.pause()

    pids, go = _fork(count, hold)
    go()
    ready = 0
    while ready < count:
        ready += len(os.read(read, count))
    sys.stdout.write(f"{json.dumps(pids)}\n")
    sys.stdout.flush()
    for pid in pids:
        os.waitpid(pid, 0)


def _restart(count: int) -> None:
    from django_task_locks import presence, recovery

    def clean(number: int, _: int) -> None:
        me = _prepared(number)
        report = recovery.clean_predecessors(me.status, is_name_unique=False)
        assert not report.failures
        assert len(report.steps) == 1 + LOCKS
        presence.withdraw(me)

    pids, go = _fork(count, clean)
    began = time.monotonic()
    go()
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.stdout.write(json.dumps({"seconds": time.monotonic() - began, "statuses": statuses}))


if __name__ == "__main__":
    import logging

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    logging.getLogger("django_task_locks").setLevel(logging.ERROR)
    {"hold": _hold, "restart": _restart}[sys.argv[1]](int(sys.argv[2]))
