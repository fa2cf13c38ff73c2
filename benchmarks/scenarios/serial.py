"""Tasks that all need the same resource for themselves."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks import jobs
from benchmarks.peers import catalog
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Section
from benchmarks.scenarios import rates
from benchmarks.stage import Stage

HELP = "all tasks on one exclusive resource: rate, and the gap between two bodies"
RUNS = 3
RATES = rates.Rates(
    name="serial",
    title="All tasks on one exclusive resource",
    jobs=jobs.serial,
    tasks=200,
    least=Locks.ONE,
    targets={
        # The best peer is among them.
        4: {
            name: 2.0 for name, peer in catalog.PEERS.items() if peer.locks and name != catalog.OURS
        }
    },
    gaps={catalog.PROCRASTINATE: 0.2, catalog.PULPCORE: 0.2, catalog.PULPCORE_POSTGRES: 0.2},
)
add_arguments = partial(rates.add_arguments, tasks=RATES.tasks)
LEAST = RATES.least
check = rates.check


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    return rates.tables(RATES, stage, peers, arguments)
