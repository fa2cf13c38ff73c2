"""python -m benchmarks SCENARIO [OPTION ...]"""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import beside, everything
from benchmarks.report import Report
from benchmarks.venvs import DIRECTORY, UsageError

SCENARIOS = {
    "plain": "benchmarks.scenarios.plain",
    "exclusive": "benchmarks.scenarios.exclusive",
    "mixed": "benchmarks.scenarios.mixed",
    "serial": "benchmarks.scenarios.serial",
    "dispatch": "benchmarks.scenarios.dispatch",
    "idle": "benchmarks.scenarios.idle",
    "backlog": "benchmarks.scenarios.backlog",
    "remote": "benchmarks.scenarios.remote",
    "recovery": "benchmarks.recovery.scenario",
    "locks": "benchmarks.locks.scenario",
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        reports = chosen.run(chosen)
    except UsageError as error:
        parser().error(str(error))
    return 1 if chosen.check_targets and any(report.missed for report in reports) else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks")
    scenarios = found.add_subparsers(dest="scenario", required=True)
    for name, module in SCENARIOS.items():
        scenario: Any = importlib.import_module(module)
        options = _options(scenarios, name, scenario.HELP)
        options.set_defaults(run=partial(_run_one, name, scenario))
        options.add_argument("--runs", type=int, default=scenario.RUNS, help="number of rounds")
        options.add_argument("--seed", type=int, default=1, help="of the order in each round")
        options.add_argument(
            "--json",
            type=Path,
            metavar="FILE",
            default=DIRECTORY / f"{name}.json",
            help="where the figures go as JSON",
        )
        scenario.add_arguments(options)
    options = _options(scenarios, "all", everything.HELP)
    options.set_defaults(run=_run_all)
    options.add_argument(
        "--json",
        type=Path,
        metavar="DIRECTORY",
        default=DIRECTORY / "all",
        help="where the figures go, a file for each scenario",
    )
    options.add_argument(
        "--quick", action="store_true", help="see whether everything works: figures mean little"
    )
    options.add_argument("--only", default="", help="some of the scenarios, with commas")
    return found


def _options(scenarios: Any, name: str, help: str) -> argparse.ArgumentParser:
    options: argparse.ArgumentParser = scenarios.add_parser(
        name,
        help=help,
        description=help,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    options.add_argument(
        "--peers", default="all", help="all, none, or some by name, with commas between them"
    )
    options.add_argument(
        "--check",
        action="store_true",
        dest="check_targets",
        help="exit status 1 if a target is missed",
    )
    return options


def _run_one(name: str, scenario: Any, arguments: argparse.Namespace) -> list[Report]:
    if hasattr(scenario, "measure"):
        report = beside.run(name, scenario, arguments)
    else:
        report = scenario.run(arguments)
    show(report, arguments.json)
    return [report]


def _run_all(arguments: argparse.Namespace) -> list[Report]:
    """Each as if it had been asked for alone, but on the same servers."""
    wanted = everything.wanted(arguments.only, SCENARIOS)
    command_line = parser()
    chosen = {
        name: command_line.parse_args([name, "--peers", arguments.peers, *options])
        for name, options in everything.options(wanted, quick=arguments.quick).items()
    }
    modules: dict[str, Any] = {name: importlib.import_module(SCENARIOS[name]) for name in wanted}
    reports = []
    for name, report in everything.reports(modules, chosen, arguments.peers):
        show(report, arguments.json / f"{name}.json")
        reports.append(report)
    return reports


def show(report: Report, file: Path) -> None:
    print(report.text())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report.json())
    print(f"\nAs JSON: {file}\n", flush=True)


if __name__ == "__main__":
    # As Ctrl-C does: nothing that was started is left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
