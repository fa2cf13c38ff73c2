"""Which points are taken, and what came of them."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from tests.crash.cases import CASES
from tests.crash.harness import Harness
from tests.crash.point import Point, Result
from tests.support.proxy import Fault

# A worker's heartbeats come by the clock: it may send some more than when it was counted.
_MORE = 2
# A command is one of those that are repeated if so many before it, with itself, have come as often.
_CONTEXT, _ROUNDS = 8, 2
_HELLO, _AFTER_HELLO = "redis HELLO", ("redis CLIENT", "redis INFO")
_READS = (
    *("postgres connect", "postgres SELECT", "postgres BEGIN", _HELLO, *_AFTER_HELLO),
    *(f"redis {name}" for name in ("EXISTS", "HGETALL", "HVALS", "PTTL", "SDIFF", "SMEMBERS")),
    *(f"redis EVALSHA {name}" for name in ("look", "inspect")),
)
_TELL_EVERY = 100
_HEADINGS = (
    "SCENARIO",
    "PROCESS",
    "COMMANDS",
    "POINTS",
    "PASSED",
    "NOT REACHED",
    "NO HEARTBEAT",
    "SECONDS",
)


def chosen(scenarios: Iterable[str]) -> list[str]:
    """Cases by "scenario" or "scenario/process"; raises ValueError for what is neither."""
    found: list[str] = []
    for name in scenarios:
        cases = [id for id, case in CASES.items() if name in (id, case.scenario)]
        if not cases:
            raise ValueError(f"scenario {name!r}: accepted are {', '.join(CASES)}")
        found += cases
    return found


def all_points(
    commands: dict[str, list[str]], faults: Sequence[Fault] = tuple(Fault), *, every: bool = False
) -> list[Point]:
    """Every fault at every command that these cases send. With `every` those, too, that would show
    the same as another one:

    - A command that changes nothing at the server leaves the same behind, whether the process is
      killed or cut off before or after it.
    - What follows a HELLO belongs to the making of the same connection. In the first connections of
      a process it is struck all the same.
    - What a process repeats while it waits for others counts twice, however long the wait.
    """
    points = []
    for case, sent in commands.items():
        places = range(1, len(sent) + 1)
        more = _MORE if CASES[case].is_worker else 0
        struck = places if every else [*_distinct(sent)]
        for at in [*struck, *range(len(sent) + 1, len(sent) + 1 + more)]:
            is_read = at in places and sent[at - 1].startswith(_READS) and not every
            points += [
                Point(case=case, fault=fault, at=at)
                for fault in faults
                if not is_read or fault not in (Fault.KILL_AFTER, Fault.DROP_AFTER)
            ]
    return points


def _distinct(sent: list[str]) -> Iterator[int]:
    seen: Counter[tuple[str, ...]] = Counter()
    connections = 0
    for at, command in enumerate(sent, 1):
        context = tuple(sent[max(0, at - _CONTEXT) : at])
        seen[context] += 1
        connections += command == _HELLO
        if seen[context] <= _ROUNDS and (
            connections <= _ROUNDS or not command.startswith(_AFTER_HELLO)
        ):
            yield at


def sample(
    commands: dict[str, list[str]], seed: int, faults: Sequence[Fault] = tuple(Fault)
) -> Iterator[Point]:
    """Points by chance, without end; the first are one of each case."""
    chance = random.Random(seed)
    cases = [case for case, sent in commands.items() if sent]
    # A share of the commands, since their number differs a little from run to run.
    first = chance.sample(cases, len(cases))
    weights = [len(commands[case]) for case in cases]
    for case in chain(first, iter(lambda: chance.choices(cases, weights)[0], None)):
        share = chance.random()
        yield Point(case=case, fault=chance.choice(faults), at=1 + int(share * len(commands[case])))


@dataclass(slots=True)
class _Row:
    commands: list[str] = field(default_factory=list)
    points: int = 0
    passed: int = 0
    missed: int = 0
    silent: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Campaign:
    """Takes points, tells of each failure at once, and keeps the score."""

    harness: Harness
    failures: list[tuple[Point, Result]] = field(default_factory=list)
    _rows: dict[str, _Row] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def count(self, cases: Iterable[str]) -> dict[str, list[str]]:
        """The commands that each sends without a fault; one that fails has none."""
        # In a few lanes: a slow scene has more heartbeats in it.
        points = [Point(case=case, fault=Fault.KILL_BEFORE, at=0) for case in cases]
        self.harness.take(points, self._note, lanes=2, again=self._is_to_be_taken_again)
        return {case: row.commands for case, row in self._rows.items()}

    def take(self, points: Iterable[Point], seconds: float = inf) -> None:
        """Those that are there, or those that begin within so many seconds. What the process under
        test should have come to, and has not, is taken again.
        """
        self.harness.take(points, self._note, seconds=seconds, again=self._is_to_be_taken_again)

    def _is_to_be_taken_again(self, point: Point, result: Result) -> bool:
        """Whether, by chance, another process did what the one under test was to do."""
        if result.problems:
            return False
        if point.at == 0:
            return result.lost_heartbeat or not _does_its_part(point, result)
        row = self._rows.get(point.case)
        return not result.struck and row is not None and point.at <= len(row.commands)

    def _note(self, point: Point, result: Result) -> None:
        if point.at == 0 and not _does_its_part(point, result):
            result.problems.append(f"it has not sent {CASES[point.case].does}: another was faster")
        row = self._rows.setdefault(point.case, _Row())
        row.seconds += result.seconds
        if point.at == 0:
            row.commands = [] if result.problems else result.commands
        else:
            row.points += 1
            row.passed += not result.problems
            row.missed += not result.struck
            row.silent += result.lost_heartbeat
        if result.problems:
            self.failures.append((point, result))
            print(f"\nFAILED {described(point, result)}", flush=True)
        done = sum(row.points for row in self._rows.values())
        if done and done % _TELL_EVERY == 0:
            print(f"{done} points, {len(self.failures)} failed", flush=True)

    def commands(self) -> str:
        """Those that were counted, case by case."""
        return "\n".join(
            f"{case} {number} {command}"
            for case, row in self._rows.items()
            for number, command in enumerate(row.commands, 1)
        )

    def table(self) -> str:
        lines: list[tuple[str, ...]] = [_HEADINGS]
        total = _Row()
        for case in (case for case in CASES if case in self._rows):
            row = self._rows[case]
            lines.append((*case.split("/"), *_figures(row)))
            total.commands += row.commands
            total.points += row.points
            total.passed += row.passed
            total.missed += row.missed
            total.silent += row.silent
            total.seconds += row.seconds
        lines.append(("all", "", *_figures(total)))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        table = [
            "  ".join(
                [*map(str.ljust, line[:2], widths), *map(str.rjust, line[2:], widths[2:])]
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*table, f"Took {time.monotonic() - self._began:.0f} s."])


def _does_its_part(point: Point, result: Result) -> bool:
    return any(CASES[point.case].does in command for command in result.commands)


def _figures(row: _Row) -> tuple[str, ...]:
    figures = (
        len(row.commands),
        row.points,
        row.passed,
        row.missed,
        row.silent,
        round(row.seconds),
    )
    return tuple(map(str, figures))


def described(point: Point, result: Result) -> str:
    """A failure: where, what was wrong, how to repeat it, and what the processes said."""
    command = result.commands[point.at - 1 : point.at] if point.at else []
    where = f"{point.fault} at command {point.at}, {command[0]}" if command else "without a fault"
    return "\n".join(
        [
            f"{point.case}: {where}",
            *(f"  - {problem}" for problem in result.problems),
            f"  again: python -m tests.crash {point}",
            *(f"  | {line}" for line in result.log.splitlines()[-60:]),
        ]
    )
