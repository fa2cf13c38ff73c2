"""One worker that is killed, and what follows."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import records
from benchmarks.jobs import Job
from benchmarks.processes import kill
from benchmarks.recovery.cases import Case
from benchmarks.stage import STARTS_WITHIN, PeerFailed, Run

RESOURCE = "resource:0"
_LONG, _NEXT, _PROBE = 0, 1, 2
_A_MOMENT_LATER = 1.0
# So long a worker that has just been started has the machine for itself.
_ALONE = 2.5


@dataclass(slots=True)
class Outcome:
    """Seconds until the next task began: since the kill, and since its successor was started. None
    if it did not begin in the time."""

    since_kill: float | None = None
    since_start: float | None = None


def trial(run: Run, case: Case, ttl: float, give_up: float, outcome: Outcome) -> Iterator[bool]:
    """Yields whenever it has to wait: whether nobody else may do anything meanwhile. It gives up so
    many seconds after the kill. Raises PeerFailed when it does not come to the kill.
    """
    if case == Case.ORDINARY:
        run.dispatch([Job(number=_NEXT, exclusive=(RESOURCE,))])
        started_at = time.monotonic()
        run.start(1, "first")
        yield from _begun(run, _NEXT, started_at + STARTS_WITHIN, started_at + STARTS_WITHIN)
        _conclude(run, outcome, None, started_at)
        return
    run.dispatch([Job(number=_LONG, exclusive=(RESOURCE,), seconds=3600)])
    doomed = run.start(1, "first")
    yield from _must_begin(run, _LONG)
    if case == Case.OTHER_RUNS:
        run.start(1, "second")
        run.dispatch([Job(number=_PROBE, exclusive=("resource:1",))])
        yield from _must_begin(run, _PROBE)
    run.dispatch([Job(number=_NEXT, exclusive=(RESOURCE,))])
    killed_at = kill(doomed)
    successor_at = None
    if case == Case.SAME_NAME_LATER:
        while time.monotonic() < killed_at + ttl + _A_MOMENT_LATER:
            yield False
    if case.has_successor:
        successor_at = time.monotonic()
        run.start(1, "third" if case == Case.OTHER_NAME else "first")
    alone_until = 0.0 if successor_at is None else successor_at + _ALONE
    yield from _begun(run, _NEXT, killed_at + give_up, alone_until)
    _conclude(run, outcome, killed_at, successor_at)


def _must_begin(run: Run, number: int) -> Iterator[bool]:
    deadline = time.monotonic() + STARTS_WITHIN
    yield from _begun(run, number, deadline, deadline)
    if _began_at(run, number) is None:
        raise PeerFailed(f"task {number} did not begin", run.log())


def _begun(run: Run, number: int, deadline: float, alone_until: float) -> Iterator[bool]:
    while _began_at(run, number) is None and (now := time.monotonic()) < deadline:
        yield now < alone_until


def _began_at(run: Run, number: int) -> float | None:
    found = [i.began_at for i in records.read(run.records) if i.number == number]
    return found[0] if found else None


def _conclude(
    run: Run, outcome: Outcome, killed_at: float | None, started_at: float | None
) -> None:
    began_at = _began_at(run, _NEXT)
    if began_at is None:
        return
    if killed_at is not None and began_at < killed_at:
        raise PeerFailed("the next task began before the kill: its lock had expired")
    if killed_at is not None:
        outcome.since_kill = began_at - killed_at
    if started_at is not None:
        outcome.since_start = began_at - started_at
