"""What the bodies leave: when each began and ended, in one file to which all of a run append.

Times are those of time.monotonic_ns, one clock for all processes of the host. A record is one
write of a few bytes, so that it costs every peer the same two microseconds.
"""

import os
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.jobs import Job

FILE = "BENCHMARK_RECORDS"  # in the environment of a peer's processes
_ENTRY = struct.Struct("<qqq")  # number, process, nanoseconds; an end has -1 - number
_descriptor: int | None = None


def body(number: int, seconds: float = 0.0) -> None:
    """What every job runs."""
    _note(number)
    if seconds:
        time.sleep(seconds)
    _note(-1 - number)


def _note(what: int) -> None:
    global _descriptor
    if _descriptor is None:  # a fork may share it: each write appends
        _descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_descriptor, _ENTRY.pack(what, os.getpid(), time.monotonic_ns()))


@dataclass(frozen=True, slots=True)
class Interval:
    """One run of a body, in seconds; `ended_at` is None for one that has not ended."""

    number: int
    pid: int
    began_at: float
    ended_at: float | None


def entries(file: Path) -> int:
    """How many there are; two for each body that has ended."""
    try:
        return file.stat().st_size // _ENTRY.size
    except FileNotFoundError:
        return 0


def read(file: Path) -> list[Interval]:
    """By their begin. A body that ran twice is there twice."""
    if not entries(file):
        return []
    data = file.read_bytes()
    whole = data[: len(data) - len(data) % _ENTRY.size]
    began: dict[tuple[int, int], float] = {}
    found = []
    for what, pid, ns in _ENTRY.iter_unpack(whole):
        if what >= 0:
            began[what, pid] = ns / 1e9
        elif (begin := began.pop((-1 - what, pid), None)) is not None:
            found.append(Interval(-1 - what, pid, begin, ns / 1e9))
    found += [Interval(number, pid, begin, None) for (number, pid), begin in began.items()]
    return sorted(found, key=lambda interval: interval.began_at)


def rate(intervals: Sequence[Interval], until: float | None = None) -> float:
    """Bodies a second, up to the last one's end, or to `until` where more were to come. The first
    tenth is left out: in it the workers warm up."""
    ended = [interval for interval in intervals if interval.ended_at is not None]
    skipped = len(ended) // 10
    if len(ended) - skipped < 2:
        raise ValueError(f"{len(ended)} bodies have ended: too few for a rate")
    last = max(interval.ended_at or 0.0 for interval in ended)
    return (len(ended) - skipped) / ((until or last) - ended[skipped].began_at)


def gaps(intervals: Sequence[Interval]) -> list[float]:
    """Seconds from one body's end to the next one's begin, of bodies that exclude each other."""
    return [
        later.began_at - earlier.ended_at
        for earlier, later in pairwise(intervals)
        if earlier.ended_at is not None
    ]


def overlaps(intervals: Iterable[Interval], jobs: Iterable[Job]) -> int:
    """How often a body began while another one ran that excludes it."""
    by_number = {job.number: job for job in jobs}
    users: dict[str, list[tuple[Interval, bool]]] = defaultdict(list)
    for interval in intervals:
        job = by_number.get(interval.number)
        for name in job.exclusive if job else ():
            users[name].append((interval, True))
        for name in job.shared if job else ():
            users[name].append((interval, False))
    found = 0
    for of_one in users.values():
        of_one.sort(key=lambda user: user[0].began_at)
        exclusive_until = any_until = 0.0
        for interval, is_exclusive in of_one:
            busy_until = any_until if is_exclusive else exclusive_until
            found += interval.began_at < busy_until
            end = float("inf") if interval.ended_at is None else interval.ended_at
            any_until = max(any_until, end)
            if is_exclusive:
                exclusive_until = max(exclusive_until, end)
    return found
