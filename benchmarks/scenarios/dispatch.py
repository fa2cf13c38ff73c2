"""How many tasks an application can hand over in a second, one by one and in bulk."""

import argparse
from collections.abc import Sequence
from functools import partial

from benchmarks import jobs
from benchmarks.peers.catalog import OURS, TASKS_DB
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Figure, Section, Target
from benchmarks.scenarios import common
from benchmarks.stage import Run, Stage
from benchmarks.turns import Turns, take_turns

HELP = "dispatch of tasks without resources, one by one and in bulk: rate"
RUNS = 3
LEAST = Locks.NONE
# Ours to django-tasks-db's one by one: as fast, within what such a comparison can tell; in bulk to
# our own one by one.
_SINGLE, _BULK = 0.9, 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=1000, help="number of tasks one by one")
    parser.add_argument(
        "--slow-runs", type=int, help="rounds of peers that are slow (default: all)"
    )
    parser.add_argument("--bulk-tasks", type=int, default=5000, help="number of tasks in bulk")


def check(arguments: argparse.Namespace) -> None:
    common.check_positive(arguments, "runs", "tasks", "bulk_tasks")


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Sequence[Section]:
    return tables(
        take_turns(
            stage,
            peers,
            partial(_turn, tasks=arguments.tasks, bulk_tasks=arguments.bulk_tasks),
            rounds=arguments.runs,
            slow_rounds=arguments.slow_runs,
            seed=arguments.seed,
            what="dispatch",
        )
    )


def _turn(run: Run, tasks: int, bulk_tasks: int) -> dict[str, float]:
    run.dispatch(jobs.plain(50))  # connections and caches are there
    found = {"single": tasks / run.dispatch(jobs.plain(tasks)), "bulk": 0.0}
    if "dispatch_bulk" in run.client.can:
        run.dispatch(jobs.plain(50), "bulk")
        found["bulk"] = bulk_tasks / run.dispatch(jobs.plain(bulk_tasks), "bulk")
    return found


def tables(turns: Turns) -> list[Section]:
    single = [
        Figure(
            peer,
            common.spread(turns, peer, "single"),
            None if peer == OURS else common.ratio(turns, peer, "single"),
            Target(_SINGLE, is_least=True) if peer == TASKS_DB else None,
            remark=turns.failures.get(peer, ""),
        )
        for peer in common.by_value(turns, "single")
    ]
    bulk = [
        Figure(
            peer,
            common.spread(turns, peer, "bulk"),
            common.ratio_within(turns, peer, "bulk", "single"),
            Target(_BULK, is_least=True) if peer == OURS else None,
        )
        for peer in common.by_value(turns, "bulk")
        if any(turns.of(peer, "bulk"))
    ]
    sections = [
        Section(
            "dispatch",
            "Dispatch, one by one",
            "tasks/s",
            "ours : it",
            single,
            common.notes_on_use([turns]),
            spread="min - max",
        )
    ]
    if bulk:
        title = "Dispatch, 1,000 in a call"
        sections.append(
            Section("dispatch-bulk", title, "tasks/s", "x one by one", bulk, spread="min - max")
        )
    return sections
