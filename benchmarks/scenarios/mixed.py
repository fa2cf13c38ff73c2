"""Tasks that each need three of 50 resources for themselves, and share two."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from benchmarks import jobs
from benchmarks.peers.catalog import CELERY_LOCK, CELERY_RETRY, OURS
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Figure, Section, Spread, Target
from benchmarks.scenarios import common, exclusive, rates
from benchmarks.stage import Stage
from benchmarks.turns import Turns

HELP = "each task with three exclusive and two shared of 50 resources: rate"
RUNS = 3
_LEAST_OF_ONE = 0.75
_TARGETS = {CELERY_LOCK: 1.3, CELERY_RETRY: 1.3}
RATES = rates.Rates(
    name="mixed",
    title="Each task with three exclusive and two shared of 50 resources",
    jobs=jobs.mixed,
    tasks=2000,
    least=Locks.SEVERAL,
    targets={1: _TARGETS, 4: _TARGETS},
)
add_arguments = partial(rates.add_arguments, tasks=RATES.tasks)
LEAST = RATES.least
check = rates.check


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    measured = rates.measure(RATES, stage, peers, arguments)
    yield rates.rate_table(RATES, measured, arguments.tasks)
    yield _to_one_resource(stage, peers, arguments, measured)


def _to_one_resource(
    stage: Stage,
    peers: Sequence[Peer],
    arguments: argparse.Namespace,
    measured: Mapping[int, Turns],
) -> Section:
    """What five resources cost us more than one."""
    ours = [peer for peer in peers if peer.name == OURS]
    with_one = rates.measure(exclusive.RATES, stage, ours, arguments)
    figures = []
    for count, turns in measured.items():
        five, one = turns.of(OURS, "rate"), with_one[count].of(OURS, "rate")
        if five and one:
            ratio = Spread.of([median(five) / median(one)])
            least = Target(_LEAST_OF_ONE, is_least=True)
            figures.append(Figure(common.executors(count), Spread.of(one), ratio, least))
    title = "Ours with one exclusive resource each, for comparison"
    return Section("mixed-one", title, "tasks/s", "five : one", figures, spread="min - max")
