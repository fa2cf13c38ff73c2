"""Tasks with one resource of fifty, dispatched one by one and in one call, on PostgreSQL."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import servers, venvs
from benchmarks import settings as base
from benchmarks.dispatch import BULK, ROWS, SINGLE, settings
from benchmarks.report import Figure, Machine, Report, Section, Spread, Target
from benchmarks.venvs import UsageError
from tests.support.servers import PostgresServer

HELP = "dispatch, one by one and many in one call"
RUNS = 5
_BULK_TO_SINGLE = 0.1
_STACK = ("Django", "psycopg", "redis", "hiredis")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, default=2000, help="in each round")


def run(arguments: argparse.Namespace) -> Report:
    if min(arguments.runs, arguments.tasks) < 1:
        raise UsageError("--runs and --tasks: 1 or more")
    machine = Machine()
    options = {"rounds": arguments.runs, "tasks": arguments.tasks, "seed": arguments.seed}
    with (
        servers.valkey() as valkey,
        PostgresServer() as postgres,
        tempfile.TemporaryDirectory() as scratch,
    ):
        addresses = {
            "DJANGO_SETTINGS_MODULE": settings.__name__,
            base.REDIS_URL: valkey.url,
            base.SCRATCH: scratch,
            settings.HOST: postgres.host,
            settings.PORT: str(postgres.socket_port),
        }
        result = Path(scratch) / "result.json"
        program = [sys.executable, "-m", "benchmarks.dispatch.measure"]
        subprocess.run(
            [*program, json.dumps(options), str(result)],
            cwd=venvs.ROOT,
            env=os.environ | addresses,
            stdout=sys.stderr,
            check=True,
        )
        took = json.loads(result.read_text())
    figures = [
        Figure(
            name,
            Spread.of(took[name]),
            Spread.of_ratios(took[name], took[SINGLE]),
            Target(_BULK_TO_SINGLE) if name == BULK else None,
        )
        for name in (SINGLE, BULK, ROWS)
    ]
    rates = [
        f"{name}: {1e6 / figure.value.median:,.0f} tasks a second"
        for name, figure in zip((SINGLE, BULK, ROWS), figures, strict=True)
        if figure.value
    ]
    title = f"One task: {arguments.runs} rounds of {arguments.tasks:,} tasks of each, medians"
    return Report(
        "dispatch",
        machine.as_dict(),
        venvs.versions(Path(sys.executable), _STACK),
        options,
        [Section("dispatch", title, "us", "x single", figures, rates)],
    )
