"""From turns to tables: what all scenarios print alike."""

import argparse
from collections.abc import Sequence
from statistics import median

from benchmarks.peers.catalog import OURS
from benchmarks.report import Spread
from benchmarks.turns import Turns
from benchmarks.venvs import UsageError


def counts(option: str, value: str) -> list[int]:
    """Whole numbers from 1 on, with commas between them. Raises UsageError."""
    try:
        found = list(dict.fromkeys(int(word) for word in value.split(",")))
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(f"{option} {value!r}: numbers from 1 on, such as 1,4")
    return found


def check_positive(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        if (value := getattr(arguments, name)) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: more than 0")


def executors(count: int) -> str:
    return "1 executor" if count == 1 else f"{count} executors"


def spread(turns: Turns, peer: str, name: str) -> Spread | None:
    values = turns.of(peer, name)
    return Spread.of(values) if values else None


def ratio(turns: Turns, peer: str, name: str) -> Spread | None:
    """Of ours to the peer's, within each round; None where there is nothing to divide by."""
    pairs = [
        (ours[name], theirs[name])
        for ours, theirs in zip(turns.results[OURS], turns.results[peer], strict=True)
        if ours is not None and theirs is not None and theirs[name]
    ]
    return Spread.of_ratios(*zip(*pairs, strict=True)) if pairs else None


def ratio_within(turns: Turns, peer: str, name: str, other: str) -> Spread | None:
    """Of two values of the same peer."""
    values = turns.of(peer, name)
    return Spread.of_ratios(values, turns.of(peer, other)) if values else None


def by_value(turns: Turns, name: str, *, reverse: bool = True) -> list[str]:
    """The peers, ours first, then by their median; at last those that have none."""

    def key(peer: str) -> tuple[bool, float]:
        values = turns.of(peer, name)
        return (bool(values) == reverse, median(values) if values else 0.0)

    others = sorted((peer for peer in turns.results if peer != OURS), key=key, reverse=reverse)
    return [OURS, *others]


def notes_on_use(turns: Sequence[Turns]) -> list[str]:
    """How busy the machine was with something else."""
    found = [use for one in turns for use in one.use]
    if not found:
        return []
    others, steals = [use.other * 100 for use in found], [use.steal * 100 for use in found]
    return [
        f"Of all CPU time others had {median(others):.0f} % in the median run, {max(others):.0f} % "
        f"at most; stolen by the host: {median(steals):.0f} %, {max(steals):.0f} %."
    ]
