"""What a scenario asks for: jobs, each a call of the same body with its resources.

Both sides know them: who measures and the peers' processes. The standard library alone is imported.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESOURCES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """seconds   how long the body sleeps"""

    number: int
    exclusive: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    seconds: float = 0.0


def plain(count: int) -> list[Job]:
    return [Job(number=number) for number in range(count)]


def exclusive(count: int, seed: int = 1) -> list[Job]:
    """Each with one of 50 resources."""
    draw = random.Random(seed)
    return [Job(number=number, exclusive=_drawn(draw, 1)) for number in range(count)]


def mixed(count: int, seed: int = 1) -> list[Job]:
    """Each with three exclusive and two shared ones of 50."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        names = _drawn(draw, 5)
        found.append(Job(number=number, exclusive=names[:3], shared=names[3:]))
    return found


def serial(count: int) -> list[Job]:
    """All with the same exclusive resource."""
    return [Job(number=number, exclusive=("resource:0",)) for number in range(count)]


def _drawn(draw: random.Random, count: int) -> tuple[str, ...]:
    return tuple(f"resource:{number}" for number in draw.sample(range(RESOURCES), count))


def save(jobs: Iterable[Job], file: Path) -> None:
    file.write_text("".join(json.dumps(asdict(job)) + "\n" for job in jobs))


def load(file: Path) -> Sequence[Job]:
    found = []
    for line in file.read_text().splitlines():
        values = json.loads(line)
        for name in ("exclusive", "shared"):
            values[name] = tuple(values[name])
        found.append(Job(**values))
    return found
