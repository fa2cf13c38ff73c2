"""Tasks that each need one of 50 resources for themselves."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks import jobs
from benchmarks.peers.catalog import CELERY_LOCK, CELERY_RETRY, PROCRASTINATE
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Section
from benchmarks.scenarios import rates
from benchmarks.stage import Stage

HELP = "each task with one exclusive of 50 resources: rate"
RUNS = 3
_TARGETS = {CELERY_LOCK: 1.3, CELERY_RETRY: 1.3, PROCRASTINATE: 1.5}
RATES = rates.Rates(
    name="exclusive",
    title="Each task with one exclusive of 50 resources",
    jobs=jobs.exclusive,
    tasks=2000,
    least=Locks.ONE,
    targets={1: _TARGETS, 4: _TARGETS},
)
add_arguments = partial(rates.add_arguments, tasks=RATES.tasks)
LEAST = RATES.least
check = rates.check


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    return rates.tables(RATES, stage, peers, arguments)
