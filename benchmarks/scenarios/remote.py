"""The rates once more, with servers that are 1 ms away."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.peers.peer import Peer
from benchmarks.report import Section
from benchmarks.scenarios import common, exclusive, plain, rates, serial
from benchmarks.stage import Stage

HELP = "plain, exclusive and serial with a simulated round trip of 1 ms to both servers"
RUNS = 3
LEAST = None
_PARTS = (plain.RATES, exclusive.RATES, serial.RATES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--milliseconds", type=float, default=1.0, help="of the round trip")
    rates.add_arguments(parser, tasks=1000)


def check(arguments: argparse.Namespace) -> None:
    rates.check(arguments)
    common.check_positive(arguments, "milliseconds")


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Iterator[Section]:
    with stage.delayed(arguments.milliseconds / 1e3):
        for part in _PARTS:
            title = f"{part.title}, {arguments.milliseconds:g} ms away"
            away = replace(part, name=f"remote-{part.name}", title=title)
            tasks = min(arguments.tasks, part.tasks)
            chosen = argparse.Namespace(**{**vars(arguments), "tasks": tasks})
            yield from rates.tables(away, stage, peers, chosen)
