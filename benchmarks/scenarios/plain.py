"""Tasks without resources."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks import jobs
from benchmarks.peers.catalog import CELERY, CELERY_RESULTS, PROCRASTINATE, PULPCORE, TASKS_DB
from benchmarks.peers.peer import Peer
from benchmarks.report import Section
from benchmarks.scenarios import rates
from benchmarks.stage import Stage

HELP = "tasks without resources: rate"
RUNS = 3
RATES = rates.Rates(
    name="plain",
    title="Tasks without resources",
    jobs=jobs.plain,
    tasks=2000,
    targets={
        1: {PROCRASTINATE: 1.5, TASKS_DB: 1.5, CELERY_RESULTS: 1.0, CELERY: 0.6, PULPCORE: 20.0},
        4: {PROCRASTINATE: 1.5, TASKS_DB: 1.5, CELERY_RESULTS: 1.0},
    },
)
add_arguments = partial(rates.add_arguments, tasks=RATES.tasks)
LEAST = RATES.least
check = rates.check


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    return rates.tables(RATES, stage, peers, arguments)
