"""Tasks that each need three of 50 resources for themselves, and share two."""

import argparse
from functools import partial

from benchmarks import jobs
from benchmarks.peers.catalog import CELERY_LOCK, CELERY_RETRY
from benchmarks.peers.peer import Locks
from benchmarks.report import Report
from benchmarks.scenarios import rates

HELP = "each task with three exclusive and two shared of 50 resources: rate"
RUNS = 3
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


def run(arguments: argparse.Namespace) -> Report:
    return rates.run(RATES, arguments)
