"""From a release until the next waiter's hold() returns in another process, see waiter.py."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.locks import HANDOFF, PUSH, ROUND_TRIP
from django_task_locks import epochs, hold
from django_task_locks.connections import get_lock_manager, get_waiting_lock_manager
from django_task_locks.locks import LockManager

NAME = "handoff"  # of the resource, and of the list
_ROUND_TRIPS = 15
_WARM_UP = 5


def measure(handoffs: int, **unused: object) -> dict[str, list[float]]:
    """Microseconds of a hand-off, of the least that it could be, which is an LPUSH until the BLPOP
    in another process returns, and of a round trip just before them.
    """
    manager = get_waiting_lock_manager()  # what hold() waits and asks with
    sha = manager.client.script_load("return 1")

    def round_trip() -> float:
        """The median of some. The waiter goes to sleep meanwhile; the server and we do not."""
        trips = []
        for _ in range(_ROUND_TRIPS):
            started = time.monotonic_ns()
            manager.client.evalsha(sha, 0)
            trips.append((time.monotonic_ns() - started) / 1000)
        return median(trips)

    took: dict[str, list[float]] = {ROUND_TRIP: [], PUSH: [], HANDOFF: []}
    with _waiter("pop") as popping, _waiter("hold") as holding:
        for number in range(_WARM_UP + handoffs):
            _, pushed = _push(manager, popping, round_trip)
            before, handed_over = _hand_over(holding, round_trip)
            if number >= _WARM_UP:
                took[ROUND_TRIP].append(before)
                took[PUSH].append(pushed)
                took[HANDOFF].append(handed_over)
    return took


@contextmanager
def _waiter(how: str) -> Iterator["_Waiter"]:
    command = [sys.executable, "-m", "benchmarks.locks.waiter", how, NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield _Waiter(process)


class _Waiter:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    def start(self, is_waiting: Callable[[], bool]) -> None:
        """Returns when it waits, or is about to."""
        self._stdin.write(b"wait\n")
        self._stdin.flush()
        while not is_waiting():
            if self._process.poll() is not None:
                raise ChildProcessError(f"a waiter ended with status {self._process.returncode}")

    def given(self) -> int:
        """When it had what it waited for, in ns."""
        return int(self._stdout.readline())


def _push(
    manager: LockManager, waiter: _Waiter, round_trip: Callable[[], float]
) -> tuple[float, float]:
    waiter.start(lambda: manager.client.info("clients")["blocked_clients"] > 0)
    before = round_trip()
    started = time.monotonic_ns()
    manager.transport.send([("LPUSH", NAME, "")], epochs.current())
    return before, (waiter.given() - started) / 1000


def _hand_over(waiter: _Waiter, round_trip: Callable[[], float]) -> tuple[float, float]:
    locks = get_lock_manager()
    with hold(exclusive=NAME):
        waiter.start(lambda: locks.inspect_resource(NAME).exclusive_waiter_count > 0)
        before = round_trip()
        started = time.monotonic_ns()
    return before, (waiter.given() - started) / 1000
