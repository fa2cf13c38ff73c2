"""All scenarios in one go, with options that let them end within half an hour on two CPUs."""

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import beside
from benchmarks.peers import catalog
from benchmarks.report import Report
from benchmarks.stage import Stage
from benchmarks.venvs import UsageError

HELP = "all scenarios, one after the other, on the same servers"

_SHORT = ["--seconds", "2", "--slow-runs", "1"]
_OPTIONS: Mapping[str, Sequence[str]] = {
    "plain": ["--runs", "3", *_SHORT],
    "exclusive": ["--runs", "3", *_SHORT],
    "mixed": ["--runs", "3", *_SHORT],
    "serial": ["--runs", "3", *_SHORT],
    "dispatch": ["--runs", "3", "--slow-runs", "1"],
    "idle": ["--runs", "1", "--seconds", "10"],
    "backlog": ["--runs", "1", "--fill-seconds", "15", "--give-up", "5"],
    "remote": ["--runs", "1", "--executors", "4", *_SHORT],
    "recovery": ["--runs", "1", "--ttl", "10", "--give-up", "30"],
    "locks": ["--runs", "100", "--transports", "unix", "--peers", "redis-py,pulpcore"],
}
_QUICK: Mapping[str, Sequence[str]] = {
    "plain": ["--tasks", "100", "--seconds", "1"],
    "exclusive": ["--tasks", "100", "--seconds", "1"],
    "mixed": ["--tasks", "100", "--seconds", "1"],
    "serial": ["--tasks", "50", "--seconds", "1"],
    "dispatch": ["--tasks", "100", "--bulk-tasks", "1000"],
    "idle": ["--seconds", "2", "--executors", "2"],
    "backlog": ["--backlogs", "100,1000", "--fill-seconds", "5", "--give-up", "3"],
    "remote": ["--tasks", "50", "--seconds", "1"],
    "recovery": ["--ttl", "4", "--give-up", "12"],
    "locks": ["--pairs", "2", "--handoffs", "5", "--foreign", "200,2000", "--peers", "none"],
}


def wanted(only: str, known: Iterable[str]) -> list[str]:
    """The scenarios that `--only` names, or all. Raises UsageError."""
    found = only.split(",") if only else list(known)
    if unknown := set(found) - set(known):
        raise UsageError(f"--only {', '.join(sorted(unknown))}: some of {', '.join(known)}")
    return found


def options(names: Iterable[str], *, quick: bool) -> dict[str, Sequence[str]]:
    """Of the command line, by scenario; what comes later counts."""
    more = {name: ["--runs", "1", *_QUICK[name]] if quick else [] for name in _QUICK}
    return {name: [*_OPTIONS[name], *more[name]] for name in names}


def reports(
    modules: Mapping[str, Any], chosen: Mapping[str, argparse.Namespace], peers: str
) -> Iterator[tuple[str, Report]]:
    """By scenario, each as soon as it is there. Raises UsageError before anything is measured."""
    taking_part = catalog.chosen(peers, None)
    together = {name: module for name, module in modules.items() if hasattr(module, "measure")}
    for name, module in together.items():
        module.check(chosen[name])
    if together:
        with Stage(taking_part) as stage:
            for name, module in together.items():
                able = catalog.chosen(peers, module.LEAST)
                started_at = time.monotonic()
                report = beside.measured(name, module, stage, able, chosen[name])
                yield name, _timed(report, started_at)
    for name, module in modules.items():
        if name not in together:
            started_at = time.monotonic()
            yield name, _timed(module.run(chosen[name]), started_at)


def _timed(report: Report, started_at: float) -> Report:
    report.options["took"] = round(time.monotonic() - started_at)
    return report
