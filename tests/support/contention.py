"""One process of a crowd that holds random resources and watches, in memory that all share, that
nobody else holds what conflicts. Run as a program: `python -m tests.support.contention ...`.

Each member of the crowd has a cell for each resource, which nobody else writes: 0, SHARED or
EXCLUSIVE. A member that has its locks writes its cells, then reads everybody's.
"""

import asyncio
import json
import mmap
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

RESOURCES, SHARED, EXCLUSIVE = 10, 1, 2


@dataclass
class Member:
    number: int
    cells: mmap.mmap
    members: int
    holds: int = 0
    longest_wait: float = 0.0
    overlaps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.number * 7919 + time.time_ns())

    def demand(self) -> tuple[list[str], list[str]]:
        names = self.chance.sample([f"r{n}" for n in range(RESOURCES)], self.chance.randint(1, 3))
        cut = self.chance.randint(0, len(names))
        return names[:cut], names[cut:]

    def pause(self) -> float:
        return self.chance.choice([0.0, 0.0, 0.001, 0.003])

    def enter(self, exclusive: list[str], shared: list[str]) -> None:
        self.holds += 1
        self._write(exclusive, EXCLUSIVE)
        self._write(shared, SHARED)
        self.look(exclusive, shared)

    def look(self, exclusive: list[str], shared: list[str]) -> None:
        for names, forbidden in ((exclusive, (SHARED, EXCLUSIVE)), (shared, (EXCLUSIVE,))):
            for name in names:
                start = int(name[1:]) * self.members
                row = self.cells[start : start + self.members]
                for other, value in enumerate(row):
                    if other != self.number and value in forbidden:
                        self.overlaps.append(f"{name}: {self.number} and {other}")

    def leave(self, exclusive: list[str], shared: list[str]) -> None:
        self.look(exclusive, shared)
        self._write(exclusive + shared, 0)

    def _write(self, names: list[str], value: int) -> None:
        for name in names:
            self.cells[int(name[1:]) * self.members + self.number] = value


def in_thread(member: Member, until: float) -> None:
    from django_task_locks import hold

    while time.monotonic() < until:
        exclusive, shared = member.demand()
        asked_at = time.monotonic()
        with hold(exclusive, shared):
            member.longest_wait = max(member.longest_wait, time.monotonic() - asked_at)
            member.enter(exclusive, shared)
            time.sleep(member.pause())
            member.leave(exclusive, shared)


async def in_loop(members: list[Member], until: float) -> None:
    from django_task_locks import ahold

    async def one(member: Member) -> None:
        while time.monotonic() < until:
            exclusive, shared = member.demand()
            asked_at = time.monotonic()
            async with ahold(exclusive, shared):
                member.longest_wait = max(member.longest_wait, time.monotonic() - asked_at)
                member.enter(exclusive, shared)
                await asyncio.sleep(member.pause())
                member.leave(exclusive, shared)

    await asyncio.gather(*map(one, members))


def main(memory: str, first: int, threads: int, tasks: int, members: int, seconds: float) -> None:
    import django

    django.setup()
    with Path(memory).open("r+b") as file:
        cells = mmap.mmap(file.fileno(), 0)
    mine = [Member(first + n, cells, members) for n in range(threads + tasks)]
    until = time.monotonic() + seconds
    running = [threading.Thread(target=in_thread, args=(m, until)) for m in mine[:threads]]
    for thread in running:
        thread.start()
    asyncio.run(in_loop(mine[threads:], until))
    for thread in running:
        thread.join()
    print(  # noqa: T201 - its answer to who started it
        json.dumps(
            {
                "holds": sum(member.holds for member in mine),
                "least": min(member.holds for member in mine),
                "longest_wait": max(member.longest_wait for member in mine),
                "overlaps": [text for member in mine for text in member.overlaps],
            }
        )
    )


if __name__ == "__main__":
    memory, *numbers, seconds = sys.argv[1:]
    main(memory, *map(int, numbers), float(seconds))  # type: ignore[call-arg]
