"""Tasks a second, of one executor and of several: what the scenarios that measure it share.

The jobs are dispatched first; then the workers start. The first tenth does not count, as the
workers warm up meanwhile. Neither dispatching nor running takes longer than so many seconds: then
there is enough to tell.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles

from benchmarks import records
from benchmarks.jobs import Job
from benchmarks.peers import catalog
from benchmarks.peers.catalog import OURS
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Figure, Section, Spread, Target
from benchmarks.scenarios import common
from benchmarks.stage import PeerFailed, Run, Stage
from benchmarks.turns import Turns, take_turns

# By number of executors and peer: the least ratio of our rate to that of the peer.
Targets = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """
    name      of the scenario
    title     of its tables
    jobs      makes so many
    tasks     how many by default
    least     what a peer must be able to lock to take part
    gaps      by peer: the most that our gap between two bodies may be of theirs; for jobs that all
              exclude each other
    """

    name: str
    title: str
    jobs: Callable[[int], Sequence[Job]]
    tasks: int
    least: Locks = Locks.NONE
    targets: Targets = field(default_factory=dict)
    gaps: Mapping[str, float] | None = None


# The p99 of our gaps, in times their p50.
_MOST_P99 = 10.0
_IN_ONE_STEP = 250


def add_arguments(parser: argparse.ArgumentParser, tasks: int) -> None:
    parser.add_argument("--tasks", type=int, default=tasks, help="number of tasks")
    add_common_arguments(parser)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="a run ends so long after its first task began; most time to dispatch them, too",
    )
    parser.add_argument("--executors", default="1,4", help="numbers of executors")
    parser.add_argument(
        "--slow-runs", type=int, help="rounds of peers that are slow (default: all)"
    )


def check(arguments: argparse.Namespace) -> None:
    common.counts("--executors", arguments.executors)
    common.check_positive(arguments, "runs", "tasks", "seconds")


def tables(
    rates: Rates, stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    """Of those of the peers that can lock so much."""
    measured = measure(rates, stage, peers, arguments)
    yield rate_table(rates, measured, arguments.tasks)
    if rates.gaps is not None:
        yield _gap_table(rates, measured)


def measure(
    rates: Rates, stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> dict[int, Turns]:
    """By number of executors."""
    jobs = rates.jobs(arguments.tasks)
    return {
        count: take_turns(
            stage,
            [peer for peer in peers if catalog.is_able(peer, rates.least)],
            partial(_turn, jobs=jobs, executors=count, seconds=arguments.seconds),
            rounds=arguments.runs,
            slow_rounds=arguments.slow_runs,
            seed=arguments.seed,
            what=f"{rates.name}, {common.executors(count)}",
        )
        for count in common.counts("--executors", arguments.executors)
    }


def _turn(run: Run, jobs: Sequence[Job], executors: int, seconds: float) -> dict[str, float]:
    dispatched = run.fill(jobs, seconds, "single", _IN_ONE_STEP)
    run.start(executors)
    intervals = run.wait(len(dispatched), seconds)
    looked_at = time.monotonic()
    ended = sum(interval.ended_at is not None for interval in intervals)
    if ended < 3:
        raise PeerFailed(f"{ended} tasks ended within {seconds:g} s")
    # Of those that exclude each other alone the gaps mean something.
    gaps = records.gaps(intervals[len(intervals) // 10 :])
    return {
        "rate": records.rate(intervals, looked_at if ended < len(dispatched) else None),
        "ended": ended,
        "overlaps": records.overlaps(intervals, jobs),
        "gap_p50": median(gaps) * 1e3,
        "gap_p99": quantiles(gaps, n=100, method="inclusive")[98] * 1e3,
    }


def rate_table(rates: Rates, measured: Mapping[int, Turns], tasks: int) -> Section:
    figures = []
    for count, turns in measured.items():
        for peer in common.by_value(turns, "rate"):
            least = rates.targets.get(count, {}).get(peer)
            figures.append(
                Figure(
                    peer,
                    common.spread(turns, peer, "rate"),
                    common.ratio(turns, peer, "rate") if peer != OURS else None,
                    Target(least, is_least=True) if least else None,
                    group=common.executors(count),
                    remark=_remark(turns, peer, tasks),
                )
            )
    return Section(
        rates.name,
        f"{rates.title}: tasks a second",
        "tasks/s",
        "ours : it",
        figures,
        common.notes_on_use(list(measured.values())),
        spread="min - max",
    )


def _gap_table(rates: Rates, measured: Mapping[int, Turns]) -> Section:
    figures = []
    for count, turns in measured.items():
        group = common.executors(count)
        for peer in common.by_value(turns, "gap_p50", reverse=False):
            most = (rates.gaps or {}).get(peer)
            ratio = common.ratio(turns, peer, "gap_p50") if peer != OURS else None
            target = Target(most) if most and count > 1 else None
            p50 = common.spread(turns, peer, "gap_p50")
            figures.append(Figure(f"{peer}, p50", p50, ratio, target, group))
            figures.append(
                Figure(f"{peer}, p99", common.spread(turns, peer, "gap_p99"), group=group)
            )
            if peer == OURS and turns.of(peer):
                times = Spread.of_ratios(turns.of(peer, "gap_p99"), turns.of(peer, "gap_p50"))
                figures.append(Figure(f"{peer}, p99 : p50", None, times, Target(_MOST_P99), group))
    return Section(
        f"{rates.name}-gaps",
        f"{rates.title}: from one body's end to the next one's begin",
        "ms",
        "ours : it",
        figures,
        spread="min - max",
    )


def _remark(turns: Turns, peer: str, tasks: int) -> str:
    if peer in turns.failures:
        return turns.failures[peer]
    found = []
    if overlaps := sum(turns.of(peer, "overlaps")):
        found.append(f"{overlaps:g} overlaps")
    if (ended := median(turns.of(peer, "ended"))) < tasks:
        found.append(f"{ended:g} tasks in the time")
    return ", ".join(found)
