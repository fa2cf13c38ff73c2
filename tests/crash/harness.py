"""Servers and lanes, and points that are taken on them side by side."""

import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from math import inf
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from tests.crash.checks import HISTORY
from tests.crash.point import Point, Result
from tests.support.server_base import make_directory
from tests.support.servers import PostgresServer, ValkeyServer

_TEMPLATE = "crash_template"
_POINT_WITHIN = 120.0
_ATTEMPTS = 3


class Harness:
    """Takes points in so many lanes; a context manager that ends everything."""

    def __init__(self, lanes: int) -> None:
        self._directory = make_directory()
        self._postgres = PostgresServer(
            self._directory / "postgres", max_connections=40 * lanes, track_commit_timestamp="on"
        )
        self._count = lanes
        self._lanes: list[_Lane] = []

    def __enter__(self) -> Self:
        self._postgres.start()
        self._make_template()
        self._lanes = [self._lane(number) for number in range(self._count)]
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for lane in self._lanes:
            lane.end()
        self._postgres.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def take(
        self,
        points: Iterable[Point],
        note: Callable[[Point, Result], None],
        *,
        lanes: int | None = None,
        seconds: float = inf,
        again: Callable[[Point, Result], bool] = lambda point, result: False,
    ) -> None:
        """Takes all of them, each in the next lane that is free; `note` hears of each result.

        lanes    no more than so many are used
        seconds  after which none is begun
        again    whether a point is to be taken once more, for a few times
        """
        waiting = iter(points)
        deadline = time.monotonic() + seconds
        guard = threading.Lock()
        errors: list[BaseException] = []

        def serve(lane: _Lane) -> None:
            try:
                while time.monotonic() < deadline and not errors:
                    with guard:
                        point = next(waiting, None)
                    if point is None:
                        return
                    for _ in range(_ATTEMPTS):
                        result = lane.take(point)
                        if not again(point, result):
                            break
                    with guard:
                        note(point, result)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=serve, args=(lane,)) for lane in self._lanes[:lanes]]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # such as an interrupt: no other point is begun
            errors.append(error)
            raise
        if errors:
            raise errors[0]

    def _environment(self, database: str, redis: str) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TEST_DATABASE": "postgres",
            "TEST_DATABASE_HOST": self._postgres.host,
            "TEST_DATABASE_PORT": str(self._postgres.socket_port),
            "TEST_DATABASE_NAME": database,
            "TEST_REDIS_URL": redis,
            "TEST_TASK_LOCKS": "{}",
        }

    def _make_template(self) -> None:
        with self._postgres.client() as client:
            client.execute(f"CREATE DATABASE {_TEMPLATE}".encode())
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "--run-syncdb", "--verbosity=0"],
            env=self._environment(_TEMPLATE, redis="unix:///nonexistent"),
            check=True,
        )
        with self._postgres.client(_TEMPLATE) as client:
            client.execute(HISTORY.encode())

    def _lane(self, number: int) -> "_Lane":
        database = f"crash_{number}"
        with self._postgres.client() as client:
            client.execute(f"CREATE DATABASE {database} TEMPLATE {_TEMPLATE}".encode())
        valkey = ValkeyServer(self._directory / f"valkey-{number}")
        valkey.start()
        environment = self._environment(database, valkey.url)
        return _Lane(self._directory / f"lane-{number}", environment, valkey)


class _Lane:
    def __init__(self, directory: Path, environment: dict[str, str], valkey: ValkeyServer) -> None:
        self._directory = directory
        self._environment = environment
        self._valkey = valkey
        self._starts = 0
        self._process: subprocess.Popen[str] | None = None

    def take(self, point: Point) -> Result:
        process = self._process or self._start()
        self._process = process
        stdin, stdout = _pipes(process)
        stdin.write(json.dumps(asdict(point)) + "\n")
        stdin.flush()
        readable, _, _ = select.select([stdout], [], [], _POINT_WITHIN)
        if readable and (line := stdout.readline()):
            return Result(**json.loads(line))
        self._kill()
        return Result(problems=["the lane died or hung"])

    def end(self) -> None:
        if self._process is not None:
            stdin, stdout = _pipes(self._process)
            stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._kill()
            stdout.close()
        self._valkey.close()

    def _start(self) -> "subprocess.Popen[str]":
        self._starts += 1
        directory = self._directory.with_name(f"{self._directory.name}-{self._starts}")
        directory.mkdir()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.lane", directory],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _kill(self) -> None:
        if self._process is not None:
            doomed = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.wait()
            for process in doomed:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process = None


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
