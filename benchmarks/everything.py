"""All scenarios in one go, with options that let them end within about half an hour on two CPUs."""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
    # Most end much sooner.
    "serial": ["--runs", "3", *_SHORT, "--seconds", "5"],
    "dispatch": ["--runs", "3", "--slow-runs", "1"],
    "idle": ["--runs", "1", "--seconds", "10"],
    "backlog": ["--runs", "1", "--fill-seconds", "10", "--give-up", "5"],
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


def options(names: Iterable[str], *, quick: bool) -> dict[str, list[str]]:
    """Of the command line, by scenario; what comes later counts."""
    found = {}
    for name in names:
        found[name] = list(_OPTIONS.get(name, ()))
        if quick:
            found[name] += ["--runs", "1", *_QUICK.get(name, ())]
    return found


def reports(
    modules: Mapping[str, Any], chosen: Mapping[str, argparse.Namespace], peers: str
) -> Iterator[tuple[str, Report]]:
    """By scenario, each as soon as it is there; one that fails is told, and the others go on.
    Raises UsageError before anything is measured."""
    taking_part = catalog.chosen(peers, None)
    together = {name: module for name, module in modules.items() if hasattr(module, "measure")}
    for name, module in together.items():
        module.check(chosen[name])
    if together:
        with Stage(taking_part) as stage:
            for name, module in together.items():
                able = catalog.chosen(peers, module.LEAST)
                report = partial(beside.measured, name, module, stage, able, chosen[name])
                yield from _reported(name, report)
    for name, module in modules.items():
        if name not in together:
            yield from _reported(name, partial(module.run, chosen[name]))


def _reported(name: str, measure: Callable[[], Report]) -> Iterator[tuple[str, Report]]:
    started_at = time.monotonic()
    try:
        report = measure()
    except Exception:
        print(f"{name} failed:", file=sys.stderr)
        traceback.print_exc()
        return
    report.options["took"] = round(time.monotonic() - started_at)
    yield name, report
