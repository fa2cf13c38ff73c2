"""What bodies write down while they run, in a file: it takes no command of the process under test,
and says also of a body that was killed how long it ran at least. Their clock is the servers' own.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from uuid import uuid4

from tests.support.intervals import conflict

_STEP = 0.005


@dataclass(slots=True)
class Stay:
    """One time in a body: from when, until when at least, and whether it ended by itself.

    task  its id, or that of a hold
    """

    label: str
    task: str
    exclusive: list[str]
    shared: list[str]
    began: float
    last: float = 0.0
    has_ended: bool = False
    run: str = field(default_factory=lambda: uuid4().hex)

    def __str__(self) -> str:
        end = "" if self.has_ended else " (or later)"
        return f"{self.label} {self.began:.3f} to {self.last:.3f}{end}"

    def goes_with(self, other: "Stay") -> bool:
        """Whether both may be there at the same time."""
        if self.task and self.task == other.task:
            return False
        return not conflict(self, other)


@contextmanager
def recorded(
    file: str, label: str, task: str, exclusive: list[str], shared: list[str]
) -> Iterator["Stamp"]:
    stay = Stay(label, task, exclusive, shared, time.time())
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    stamp = Stamp(descriptor, stay)
    stamp.write("begin", label=label, task=task, exclusive=exclusive, shared=shared)
    try:
        yield stamp
    finally:
        stamp.write("end")
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Stamp:
    descriptor: int
    stay: Stay

    def write(self, what: str, **more: object) -> None:
        line = {"what": what, "run": self.stay.run, "at": time.time(), **more}
        os.write(self.descriptor, f"{json.dumps(line)}\n".encode())

    def go_on(self, seconds: float, until: Path | None = None) -> None:
        """For so long, or until this file is there."""
        end = time.time() + seconds
        while time.time() < end and not (until is not None and until.exists()):
            time.sleep(_STEP)
            self.write("alive")


def read(file: Path) -> list[Stay]:
    """All stays, by their beginning. What is just being written may be there in part: it does not
    count yet.
    """
    stays: dict[str, Stay] = {}
    written, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
    for line in map(json.loads, written.splitlines()):
        what, run, at = line.pop("what"), line.pop("run"), line.pop("at")
        if what == "begin":
            stays[run] = Stay(began=at, run=run, **line)
        stays[run].last = at
        stays[run].has_ended = what == "end"
    return sorted(stays.values(), key=lambda stay: stay.began)


def overlaps(stays: list[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs that were there at the same time and must not have been."""
    return [
        (one, other)
        for one, other in combinations(stays, 2)
        if other.began < one.last and not one.goes_with(other)
    ]
