"""Four parts, each measured in a process of its own (measure.py) on one server:

pairs     uncontended acquire and release, against two empty EVALSHA calls and against others
server    time of the server for each resource of a request with 1,000
handoff   from a release until the next waiter's hold() returns in another process
cleanup   of a dead owner with 5 locks, among many locks of others
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import servers, settings, venvs
from benchmarks.locks import tables
from benchmarks.report import Machine, Report, Section
from benchmarks.venvs import UsageError

HELP = "acquire and release, beside others; hand-off; clean-up"
RUNS = 300

PARTS = ("pairs", "server", "handoff", "cleanup")
TRANSPORTS = ("unix", "tcp")
PEERS = {
    "redis-py": "",  # part of what we need ourselves
    "python-redis-lock": "python-redis-lock==4.0.1",
    "pottery": "pottery==3.0.1",
    "pulpcore": "pulpcore==3.123.1",
}
# What it needs for the rest of it would take minutes to install. Its module of locks imports
# redis-py, asgiref and its own module of connections, which imports Django's settings.
ALONE = {"pulpcore"}
STACK = ("Django", "django-redis", "redis", "hiredis")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--transports", default=",".join(TRANSPORTS), help="how to connect")
    parser.add_argument("--pairs", type=int, default=10, help="repetitions in each round")
    parser.add_argument("--handoffs", type=int, default=500, help="number of hand-offs")
    parser.add_argument(
        "--foreign",
        default="200,10000,1000000",
        help="numbers of others' locks around a clean-up, up to ten",
    )
    parser.add_argument(
        "--free-cpus",
        action="store_true",
        help="leave it to the system on which CPUs the server and who measures run",
    )
    parser.add_argument(
        "--no-hiredis", action="store_true", help="leave hiredis out, where it is installed here"
    )


def run(arguments: argparse.Namespace) -> Report:
    machine = Machine()
    parts = _some("--parts", arguments.parts, PARTS)
    transports = _some("--transports", arguments.transports, TRANSPORTS)
    foreign = _counts(arguments.foreign)
    if min(arguments.runs, arguments.pairs, arguments.handoffs) < 1:
        raise UsageError("--runs, --pairs and --handoffs: 1 or more")
    peers = venvs.chosen(arguments.peers, PEERS)
    python = _python(peers, without_hiredis=arguments.no_hiredis)
    options = {"rounds": arguments.runs, "seed": arguments.seed, "pairs": arguments.pairs}
    options |= {"handoffs": arguments.handoffs, "foreign": foreign, "peers": list(peers)}
    sections: list[Section] = []
    with servers.valkey() as server, tempfile.TemporaryDirectory() as scratch:
        options["cpu"] = None if arguments.free_cpus else servers.share_cpu(server)
        addresses = {"unix": server.url, "tcp": server.tcp_url}

        def measured(part: str, transport: str) -> Any:
            print(f"Measuring {part}, {transport} ...", file=sys.stderr, flush=True)
            return _measured(python, part, addresses[transport], Path(scratch), options)

        versions = venvs.versions(python, _distributions(peers))
        with server.client() as client:
            versions["Valkey"] = str(client.info("server").get("valkey_version"))
        if "pairs" in parts:
            for transport in transports:
                sections += tables.pairs(measured("pairs", transport), transport, options)
        if "server" in parts:
            sections += tables.server(measured("server", transports[0]))
        if "handoff" in parts:
            for transport in transports:
                sections += tables.handoff(measured("handoff", transport), transport)
        if "cleanup" in parts:  # the last, as it fills the server
            sections += tables.cleanup(measured("cleanup", transports[0]), transports[0])
    return Report(
        "locks",
        machine.as_dict(),
        versions,
        options | {"parts": parts, "transports": transports},
        sections,
        _notes(peers, options["cpu"]),
    )


def _some(option: str, value: str, known: Sequence[str]) -> list[str]:
    found = value.split(",")
    if not set(found) <= set(known):
        raise UsageError(f"{option} {value!r}: some of {','.join(known)}")
    return found


def _counts(value: str) -> list[int]:
    try:
        found = list(dict.fromkeys(int(count) for count in value.split(",")))
    except ValueError:
        found = []
    if not 1 <= len(found) <= 10:
        raise UsageError(f"--foreign {value!r}: up to ten numbers, such as 200,10000")
    return found


def _python(peers: dict[str, str], *, without_hiredis: bool) -> Path:
    stack = [package for package in STACK if not (without_hiredis and package == "hiredis")]
    if not any(peers.values()) and not without_hiredis:
        return Path(sys.executable)
    return venvs.environment(
        [
            *venvs.installed(stack),
            *(needed for name, needed in peers.items() if needed and name not in ALONE),
        ],
        alone=[needed for name, needed in peers.items() if name in ALONE],
    )


def _distributions(peers: dict[str, str]) -> list[str]:
    return [*STACK, *(name for name, requirement in peers.items() if requirement)]


def _notes(peers: dict[str, str], cpu: int | None) -> list[str]:
    found = []
    if cpu is not None:
        found += [
            "The server and who measures share one CPU: where they do not, waking another one that",
            "is idle can cost more than the rest of a round trip, and whether it does is up to the",
            "system and differs from run to run (--free-cpus).",
        ]
    if peers:
        found += [
            "All that are compared run in one process, on the same versions of redis-py and",
            "hiredis; the locks of others have the options that they have by default.",
        ]
    if "pulpcore" in peers:
        found += [
            "pulpcore: acquire_locks and release_resource_locks, with the lock of the task itself,",
            "which its workers take by the same call. It is installed without what it depends on:",
            "its module of locks imports redis-py, asgiref and Django alone.",
        ]
    return found


def _measured(
    python: Path, part: str, redis_url: str, scratch: Path, options: dict[str, Any]
) -> Any:
    result = scratch / "result.json"
    program = [str(python), "-m", "benchmarks.locks.measure"]
    command = [*program, part, json.dumps(options), str(result)]
    addresses = {
        "DJANGO_SETTINGS_MODULE": settings.__name__,
        settings.REDIS_URL: redis_url,
        settings.SCRATCH: str(scratch),
    }
    # What it prints is not part of the table.
    subprocess.run(
        command, cwd=venvs.ROOT, env=os.environ | addresses, stdout=sys.stderr, check=True
    )
    return json.loads(result.read_text())
