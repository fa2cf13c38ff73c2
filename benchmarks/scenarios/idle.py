"""What workers cost that have nothing to do."""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from statistics import median

import psutil

from benchmarks import records
from benchmarks.busy import cpu_seconds
from benchmarks.jobs import Job
from benchmarks.peers.catalog import OURS, PULPCORE, PULPCORE_POSTGRES
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Figure, Section, Target
from benchmarks.scenarios import common
from benchmarks.servers import CommandCount
from benchmarks.stage import PeerFailed, Run, Stage
from benchmarks.turns import Turns, take_turns

HELP = "idle workers: CPU time, database statements, Redis commands, memory"
RUNS = 1
LEAST = Locks.NONE

_WARM_UP_WITHIN = 60.0
_SETTLES = 3.0  # seconds between the last task and the measurement
_OF_PULPCORE = 0.1
_MB_EACH = 30.0
# Of us: one UPDATE for each heartbeat, which comes every 5 s; its transaction is implicit.
_STATEMENTS = 0.25
_COMMANDS_EACH = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executors", default="4,20", help="numbers of executors")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to look")


def check(arguments: argparse.Namespace) -> None:
    common.counts("--executors", arguments.executors)
    common.check_positive(arguments, "runs", "seconds")


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Sequence[Section]:
    return tables(
        {
            number: take_turns(
                stage,
                peers,
                partial(_turn, stage, executors=number, seconds=arguments.seconds),
                rounds=arguments.runs,
                seed=arguments.seed,
                what=f"idle, {common.executors(number)}",
            )
            for number in common.counts("--executors", arguments.executors)
        }
    )


def _turn(stage: Stage, run: Run, executors: int, seconds: float) -> dict[str, float]:
    run.start(executors)
    _warm_up(run, executors)
    time.sleep(_SETTLES)
    family = run.processes()
    before, statements = cpu_seconds(family), stage.statements(run)
    with CommandCount(stage.valkey, run.redis_database) as redis:
        time.sleep(seconds)
    used, called = cpu_seconds(family) - before, stage.statements(run) - statements
    # Who has run a body is an executor; who supervises them is not. Where each task had a process
    # of its own, which is gone, those that start them are.
    pids = {interval.pid for interval in records.read(run.records)}
    each = [_uss(process) for process in family if process.pid in pids]
    each = each or [_uss(process) for process in family]
    return {
        "cpu": used / seconds * 100,
        "statements": called / seconds,
        "commands": redis.count / seconds,
        "uss": median(each) / 1e6,
        "total": sum(map(_uss, family)) / executors / 1e6,
    }


def _warm_up(run: Run, executors: int) -> None:
    """Until every executor has run a task: only then it has all that it needs in memory."""
    deadline = time.monotonic() + _WARM_UP_WITHIN
    number = 0
    while len({interval.pid for interval in records.read(run.records)}) < executors:
        if time.monotonic() > deadline:
            raise PeerFailed(f"not all of {executors} executors ran a task", run.log())
        run.dispatch(Job(number=number + n, seconds=0.1) for n in range(2 * executors))
        number += 2 * executors
        time.sleep(1)
    run.wait(number, seconds=_WARM_UP_WITHIN)


def _uss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0


def tables(measured: dict[int, Turns]) -> list[Section]:
    def section(name: str, title: str, unit: str, notes: Sequence[str] = ()) -> Section:
        figures = []
        for number, turns in measured.items():
            for peer in common.by_value(turns, name, reverse=False):
                figures.append(
                    Figure(
                        peer,
                        common.spread(turns, peer, name),
                        common.ratio(turns, peer, name) if peer != OURS else None,
                        _target(name, peer, number),
                        common.executors(number),
                        turns.failures.get(peer, ""),
                    )
                )
        key = f"idle-{name}"
        return Section(key, title, unit, "ours : it", figures, notes, spread="min - max")

    return [
        section(
            "cpu",
            "Idle: CPU time of all processes of the worker",
            "% of a core",
            common.notes_on_use(list(measured.values())),
        ),
        section("statements", "Idle: statements to the database", "/s"),
        section(
            "commands",
            "Idle: commands to Redis",
            "/s",
            ["Those of clients, as MONITOR shows them; not those that scripts call."],
        ),
        section(
            "uss",
            "Idle: private memory of an executor (USS, median)",
            "MB",
            ["Of each process that has run a task, or that starts one for each task."],
        ),
        section("total", "Idle: private memory of all processes, for each executor", "MB"),
    ]


def _target(name: str, peer: str, executors: int) -> Target | None:
    if name == "cpu" and peer in (PULPCORE, PULPCORE_POSTGRES):
        return Target(_OF_PULPCORE)
    if peer != OURS:
        return None
    limits = {
        "statements": _STATEMENTS,
        "commands": _COMMANDS_EACH * executors,
        "uss": _MB_EACH,
    }
    return Target(limits[name], of="value") if name in limits else None
