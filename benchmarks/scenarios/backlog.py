"""A task on a free resource behind many that wait for busy ones."""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from statistics import median

from benchmarks.jobs import Job
from benchmarks.peers.catalog import OURS
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Figure, Section, Target
from benchmarks.scenarios import common
from benchmarks.stage import PeerFailed, Run, Stage
from benchmarks.turns import Turns, take_turns

HELP = "a task on a free resource behind a backlog on busy ones: seconds until it begins"
RUNS = 1
LEAST = Locks.ONE

_BUSY = 1000
_PROBES = 10
_IN_ONE_STEP = 5000
_SETTLES = 2.0
_MOST = 0.1  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backlogs", default="100,100000", help="numbers of waiting tasks")
    parser.add_argument(
        "--fill-seconds", type=float, default=60.0, help="so long a peer may take to make them"
    )
    parser.add_argument(
        "--give-up", type=float, default=15.0, help="seconds to wait for a task to begin"
    )


def check(arguments: argparse.Namespace) -> None:
    common.counts("--backlogs", arguments.backlogs)
    common.check_positive(arguments, "runs", "fill_seconds", "give_up")


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Sequence[Section]:
    return tables(
        {
            backlog: take_turns(
                stage,
                peers,
                partial(_turn, stage, backlog=backlog, arguments=arguments),
                rounds=arguments.runs,
                seed=arguments.seed,
                what=f"backlog of {backlog:,}",
            )
            for backlog in common.counts("--backlogs", arguments.backlogs)
        }
    )


def _turn(stage: Stage, run: Run, backlog: int, arguments: argparse.Namespace) -> dict[str, float]:
    if "occupy" not in run.client.can:
        raise PeerFailed("has no way to make a resource busy")
    busy = [f"busy:{number}" for number in range(_BUSY)]
    run.client.occupy(busy)
    how = "bulk" if "dispatch_bulk" in run.client.can else "transaction"
    jobs = [Job(number=number, exclusive=(busy[number % _BUSY],)) for number in range(backlog)]
    waiting = run.fill(jobs, arguments.fill_seconds, how, _IN_ONE_STEP)
    run.start(1)
    # It has begun to work when it has run a task on another free resource.
    first = backlog + _PROBES
    run.dispatch([Job(number=first, exclusive=("free:first",))])
    run.wait_for(first, arguments.give_up)
    time.sleep(_SETTLES)
    statements = stage.statements(run)
    latencies = []
    for number in range(backlog, backlog + _PROBES):
        done = run.dispatched([Job(number=number, exclusive=(f"free:{number}",))])
        began_at = run.wait_for(number, arguments.give_up).began_at
        latencies.append(began_at - done.began_at)
    return {
        "latency": median(latencies) * 1e3,
        "slowest": max(latencies) * 1e3,
        "statements": (stage.statements(run) - statements) / _PROBES,
        "waiting": len(waiting),
    }


def tables(measured: dict[int, Turns]) -> list[Section]:
    def section(name: str, title: str, unit: str) -> Section:
        figures = []
        for backlog, turns in measured.items():
            for peer in common.by_value(turns, name, reverse=False):
                is_ours = peer == OURS
                target = Target(_MOST * 1e3, of="value") if is_ours and name == "latency" else None
                figures.append(
                    Figure(
                        peer,
                        common.spread(turns, peer, name),
                        None if is_ours else common.ratio(turns, peer, name),
                        target,
                        f"{backlog:,} waiting tasks",
                        _remark(turns, peer, backlog),
                    )
                )
        return Section(f"backlog-{name}", title, unit, "ours : it", figures, spread="min - max")

    title = "Behind a backlog on 1,000 busy resources, from the dispatch of a task on a free one"
    return [
        section("latency", f"{title} until it begins (median of {_PROBES})", "ms"),
        section("slowest", f"{title} until it begins (slowest of {_PROBES})", "ms"),
        section("statements", "The same: statements to the database for each such task", ""),
    ]


def _remark(turns: Turns, peer: str, backlog: int) -> str:
    if peer in turns.failures:
        return turns.failures[peer]
    waiting = min(turns.of(peer, "waiting"))
    return f"{waiting:,} were made in the time" if waiting < backlog else ""
