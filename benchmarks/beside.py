"""Runs the scenarios in which task queues are measured beside each other."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from benchmarks.peers import catalog
from benchmarks.peers.peer import Locks, Peer
from benchmarks.report import Machine, Report, Section
from benchmarks.servers import SETTINGS
from benchmarks.stage import Stage

_NO_OPTIONS = ("run", "json", "check_targets")


class Scenario(Protocol):
    """A module.

    LEAST    what a peer must be able to lock to take part; None: all take part
    check    raises UsageError for arguments that make no sense
    measure  with those of these peers that the stage has
    appendix text for the end of its report; need not be there
    """

    HELP: str
    RUNS: int
    LEAST: Locks | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    check: Callable[[argparse.Namespace], None]
    measure: Callable[[Stage, Sequence[Peer], argparse.Namespace], Iterable[Section]]


def run(name: str, scenario: Scenario, arguments: argparse.Namespace) -> Report:
    """On servers of its own. Raises UsageError."""
    scenario.check(arguments)
    peers = catalog.chosen(arguments.peers, scenario.LEAST)
    with Stage(peers) as stage:
        return measured(name, scenario, stage, peers, arguments)


def measured(
    name: str,
    scenario: Scenario,
    stage: Stage,
    peers: Sequence[Peer],
    arguments: argparse.Namespace,
) -> Report:
    """On servers that are there."""
    machine = Machine()
    sections = list(scenario.measure(stage, peers, arguments))
    return Report(
        name,
        machine.as_dict(),
        stage.versions(peers),
        {key: value for key, value in vars(arguments).items() if key not in _NO_OPTIONS},
        sections,
        [
            *SETTINGS,
            *(f"{peer.name}: {stage.absent.get(peer.name, peer.setup)}" for peer in peers),
        ],
        scenario.appendix(sections) if hasattr(scenario, "appendix") else "",
    )
