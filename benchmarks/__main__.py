"""python -m benchmarks SCENARIO [OPTION ...]"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Report
from benchmarks.venvs import DIRECTORY, UsageError

SCENARIOS = {
    "plain": "benchmarks.scenarios.plain",
    "exclusive": "benchmarks.scenarios.exclusive",
    "mixed": "benchmarks.scenarios.mixed",
    "serial": "benchmarks.scenarios.serial",
    "recovery": "benchmarks.recovery.scenario",
    "locks": "benchmarks.locks.scenario",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    scenarios = parser.add_subparsers(dest="scenario", required=True)
    for name, module in SCENARIOS.items():
        scenario = importlib.import_module(module)
        options = scenarios.add_parser(
            name,
            help=scenario.HELP,
            description=scenario.HELP,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        options.set_defaults(run=scenario.run)
        options.add_argument(
            "--peers", default="all", help="all, none, or some by name: NAME[==VERSION],..."
        )
        options.add_argument("--runs", type=int, default=scenario.RUNS, help="number of rounds")
        options.add_argument("--seed", type=int, default=1, help="of the order in each round")
        options.add_argument(
            "--json",
            type=Path,
            metavar="FILE",
            default=DIRECTORY / f"{name}.json",
            help="where the figures go as JSON",
        )
        options.add_argument(
            "--check", action="store_true", help="exit status 1 if a target is missed"
        )
        scenario.add_arguments(options)
    chosen = parser.parse_args(arguments)
    try:
        report: Report = chosen.run(chosen)
    except UsageError as error:
        parser.error(str(error))
    print(report.text())
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(report.json())
    print(f"\nAs JSON: {chosen.json}")
    return 1 if chosen.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
