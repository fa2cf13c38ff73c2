"""The servers of a scenario, and the peers made ready to run on them.

with Stage(peers) as stage:
    with stage.run(peer) as run:        a fresh database and an empty Redis database
        run.dispatch(jobs)
        run.start(executors=4)
        intervals = run.wait(len(jobs), seconds=10)
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Self

import psutil

from benchmarks import records, servers, venvs
from benchmarks.client import Client, Done
from benchmarks.delay import DelayingProxy
from benchmarks.jobs import Job, save
from benchmarks.peers.peer import Peer
from benchmarks.processes import Started, kill
from benchmarks.records import Interval

# What has to be the same for all who use it.
COMMON = ("Django", "psycopg", "psycopg-binary", "redis", "hiredis")
STARTS_WITHIN = 40.0
_POLL = 0.005
_REDIS_DATABASES = 64
_STATEMENTS = """
    SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s
    JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = %s
"""


class PeerFailed(Exception):
    """A peer could not be made ready, or did not do what it was asked; says what in a line.

    log  the end of what its workers have printed
    """

    def __init__(self, problem: str, log: str = "") -> None:
        super().__init__(problem)
        self.log = log


class Stage:
    """`with` starts and ends it."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        # Why a peer cannot take part.
        self.absent: dict[str, str] = {}
        self.pythons: dict[str, Path] = {}
        self.valkey = servers.valkey(databases=_REDIS_DATABASES)
        self.postgres = servers.postgres()
        self._numbers = count(1)
        self._templates: dict[str, str] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self.scratch = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            self._environments()
            opened.enter_context(self.valkey)
            opened.enter_context(self.postgres)
            self.redis_address = f"127.0.0.1:{self.valkey.port}"
            self.postgres_address = f"127.0.0.1:{self.postgres.port}"
            self._make_templates()
            self._open = opened.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    def present(self, peers: Sequence[Peer]) -> list[Peer]:
        """Those that can take part."""
        return [peer for peer in peers if peer.name not in self.absent]

    @contextmanager
    def delayed(self, round_trip: float) -> Iterator[None]:
        """Within, the peers of new runs are so many seconds away from both servers, by a proxy."""
        before = self.redis_address, self.postgres_address
        with (
            DelayingProxy(self.valkey.port, round_trip) as redis,
            DelayingProxy(self.postgres.port, round_trip) as postgres,
        ):
            self.redis_address = f"127.0.0.1:{redis.port}"
            self.postgres_address = f"127.0.0.1:{postgres.port}"
            try:
                yield
            finally:
                self.redis_address, self.postgres_address = before

    @contextmanager
    def run(self, peer: Peer, *, ttl: float = 30.0) -> Iterator["Run"]:
        """One peer on a fresh database; at the end all of its processes are killed. Raises
        PeerFailed."""
        number = next(self._numbers)
        name = f"run_{number}"
        redis_database = number % _REDIS_DATABASES
        with self.valkey.client(db=redis_database) as redis:
            redis.flushdb()
        self._sql(f"CREATE DATABASE {name} TEMPLATE {self._templates[peer.name]}")
        directory = self.scratch / name
        directory.mkdir()
        run = Run(
            peer,
            self.pythons[peer.name],
            directory,
            {"BENCHMARK_TTL": str(ttl), **self._addresses(name, redis_database)},
        )
        run.database, run.redis_database = name, redis_database
        try:
            yield run
        finally:
            run.close()
            self._sql(f"DROP DATABASE {name} WITH (FORCE)")

    def statements(self, run: "Run") -> int:
        """How many its database has been sent, from the first call of this method on."""
        with self.postgres.client() as client:
            client.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            row = client.execute(_STATEMENTS, [run.database]).fetchone()
        return int(row[0]) if row else 0

    def versions(self, peers: Sequence[Peer]) -> dict[str, str | None]:
        """Of the servers and of what is compared."""
        found = venvs.versions(Path(sys.executable), COMMON)
        for peer in self.present(peers):
            own = map(_package, peer.requirements or ())
            for package in (name for name in own if name not in COMMON):
                found |= {package: venvs.versions(self.pythons[peer.name], [package])[package]}
        with self.valkey.client() as redis:
            found["Valkey"] = str(redis.info("server").get("valkey_version"))
        with self.postgres.client() as postgres:
            row = postgres.execute("SHOW server_version").fetchone()
        found["PostgreSQL"] = str(row[0]) if row else None
        return found

    def _environments(self) -> None:
        common = venvs.installed(COMMON)
        for peer in self._peers:
            if peer.requirements is None:
                self.pythons[peer.name] = Path(sys.executable)
                continue
            try:
                own = {_package(requirement) for requirement in peer.requirements}
                pinned = [one for one in common if _package(one) not in own]
                self.pythons[peer.name] = venvs.environment(
                    [*pinned, *peer.requirements], interpreter=venvs.interpreter(peer.python)
                )
            except (subprocess.CalledProcessError, venvs.NoInterpreter) as error:
                self.absent[peer.name] = f"cannot be installed: {error}"

    def _make_templates(self) -> None:
        """A database with the tables of each kind, from which each run gets a copy."""
        made: dict[tuple[Path, str], str] = {}
        for peer in self.present(self._peers):
            kind = (self.pythons[peer.name], peer.engine)
            if kind not in made:
                made[kind] = f"template_{len(made)}"
                self._sql(f"CREATE DATABASE {made[kind]}")
                if peer.migration and (problem := self._migrate(peer, made[kind])):
                    self.absent[peer.name] = f"cannot make its tables: {problem}"
            self._templates[peer.name] = made[kind]

    def _migrate(self, peer: Peer, database: str) -> str:
        """The last line that it prints if it fails."""
        print(f"Making the tables of {peer.name} ...", file=sys.stderr, flush=True)
        directory = self.scratch / database
        directory.mkdir()
        done = subprocess.run(
            [self.pythons[peer.name], *peer.migration],
            env=environment_of(peer, directory, self._addresses(database, 0)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return _last_line(done.stdout) if done.returncode else ""

    def _addresses(self, database: str, redis_database: int) -> dict[str, str]:
        return {
            "BENCHMARK_REDIS_URL": f"redis://{self.redis_address}/{redis_database}",
            "BENCHMARK_DATABASE_URL": f"postgresql://postgres@{self.postgres_address}/{database}",
        }

    def _sql(self, statement: str) -> None:
        with self.postgres.client() as client:
            client.execute(statement.encode())


class Run:
    """The adapter: a peer's workers and a client that dispatches to them."""

    database: str
    redis_database: int

    def __init__(
        self, peer: Peer, python: Path, directory: Path, environment: Mapping[str, str]
    ) -> None:
        self.peer = peer
        self.records = directory / "records"
        self._python = python
        self._directory = directory
        self._environment = environment_of(peer, directory, environment)
        self._workers: list[Started] = []
        self._files = count(1)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """The process that dispatches, from its first use on."""
        if self._client is None:
            self._client = Client(self._python, self._environment, self._directory / "client.log")
        return self._client

    def dispatch(self, jobs: Iterable[Job], how: str = "single") -> float:
        """Seconds that it took; `how` as in benchmarks.engines.client."""
        return self.dispatched(jobs, how).seconds

    def dispatched(self, jobs: Iterable[Job], how: str = "single") -> Done:
        file = self._directory / f"jobs-{next(self._files)}"
        save(jobs, file)
        return self.client.dispatch(file, how)

    def fill(self, jobs: Sequence[Job], seconds: float, how: str, step: int) -> Sequence[Job]:
        """Those that were dispatched within so many seconds, in steps of so many."""
        deadline = time.monotonic() + seconds
        done = 0
        while done < len(jobs) and time.monotonic() < deadline:
            self.dispatch(jobs[done : done + step], how)
            done += step
        return jobs[:done]

    def start(self, executors: int, name: str = "worker") -> list[Started]:
        """So many executors; returns at once."""
        started = []
        for command in self.peer.commands(executors, name):
            log = self._directory / f"worker-{next(self._files)}.log"
            started.append(Started([self._python, *command], self._environment, log))
        self._workers += started
        return started

    def wait(
        self, ends: int, seconds: float, starts_within: float = STARTS_WITHIN
    ) -> list[Interval]:
        """What has run when so many bodies have ended, or `seconds` after the first of them began.
        Raises PeerFailed when none begins."""
        deadline = time.monotonic() + starts_within
        while not records.entries(self.records):
            self._check(deadline, f"no task began within {starts_within:g} s")
            time.sleep(_POLL)
        deadline = time.monotonic() + seconds
        while records.entries(self.records) < 2 * ends and time.monotonic() < deadline:
            time.sleep(_POLL)
        return records.read(self.records)

    def wait_for(self, number: int, seconds: float) -> Interval:
        """The run of the body of this job, which may not have ended. Raises PeerFailed when it does
        not begin in time."""
        deadline = time.monotonic() + seconds
        while True:
            for interval in records.read(self.records):
                if interval.number == number:
                    return interval
            self._check(deadline, f"task {number} did not begin within {seconds:g} s")
            time.sleep(_POLL)

    def processes(self) -> list[psutil.Process]:
        """All processes of the workers."""
        return [process for worker in self._workers for process in worker.family()]

    def close(self) -> None:
        clients = [self._client.started] if self._client else []
        kill([*self._workers, *clients])

    def log(self) -> str:
        """The end of what the last workers have printed."""
        return "\n".join(worker.log() for worker in self._workers[-2:])

    def _check(self, deadline: float, problem: str) -> None:
        if time.monotonic() > deadline:
            raise PeerFailed(problem, self.log())


def environment_of(peer: Peer, directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Of a process of this peer. Nothing of ours but where programs and files are."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ
    }
    return {
        **kept,
        "PYTHONPATH": str(venvs.ROOT),
        "DJANGO_SETTINGS_MODULE": "benchmarks.engines.settings",
        "BENCHMARK_PEER": peer.name,
        "BENCHMARK_ENGINE": peer.engine,
        "BENCHMARK_SCRATCH": str(directory),
        records.FILE: str(directory / "records"),
        **environment,
        **peer.environment,
    }


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _package(requirement: str) -> str:
    return re.split(r"[\[=<>]", requirement, maxsplit=1)[0]
