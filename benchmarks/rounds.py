"""Paired rounds: in each, every contestant has its turn, so that what disturbs the machine
disturbs all of them."""

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Contestant:
    """prepare   makes ready for so many repetitions; returns what does them, which is timed"""

    name: str
    prepare: Callable[[int], Callable[[], None]]


def paired_rounds(
    contestants: Sequence[Contestant], *, rounds: int, repetitions: int, seed: int
) -> dict[str, list[float]]:
    """Microseconds that one repetition took, by contestant, a value for each round."""
    took: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    order = list(contestants)
    shuffle = random.Random(seed).shuffle
    for contestant in contestants:
        contestant.prepare(repetitions)()
    # What is there already need not be looked at in somebody's turn.
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        shuffle(order)
        for contestant in order:
            contestant.prepare(_WARM_UP)()
            repeat = contestant.prepare(repetitions)
            started = time.perf_counter_ns()
            repeat()
            took[contestant.name].append((time.perf_counter_ns() - started) / 1000 / repetitions)
    gc.unfreeze()
    return took
