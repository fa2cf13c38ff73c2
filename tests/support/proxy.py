"""Stands between processes and their Redis and PostgreSQL, counts the commands of one of them, and
does something to it at a given one.

    python -m tests.support.proxy REDIS_SOCKET POSTGRES_SOCKET DIRECTORY

A process of its own, so that it outlives the one that it kills. It listens in DIRECTORY, on sockets
of the same names; whose connection one is, the kernel says (SO_PEERCRED, Linux). The commands to
both servers have one common order. Whoever started it gives orders by lines of JSON and reads its
answers; `Proxy` does so.
"""

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from tests.support.wire import Framing, PostgresFraming, RedisFraming

REDIS, POSTGRES = "redis", "postgres"
_FRAMINGS: dict[str, Callable[[], Framing]] = {REDIS: RedisFraming, POSTGRES: PostgresFraming}
# A command that blocks is not waited for: by then the server has it.
_LONGEST_WAIT = 0.3


class Fault(StrEnum):
    """What happens at a command."""

    KILL_BEFORE = "kill-before"  # SIGKILL; the server never sees the command
    KILL_AFTER = "kill-after"  # SIGKILL; the server has done it, nobody hears the reply
    DROP_BEFORE = "drop-before"  # the connection is cut; the server never sees the command
    DROP_AFTER = "drop-after"  # the connection is cut instead of the reply
    SWALLOW = "swallow"  # no reply for longer than the client waits, or than a TTL


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Whose commands count, and what happens at which of them.

    pid    the process under test
    child  0: its own commands; n: those of the n-th of its children that connects
    at     number of the command, from 1; 0 to count only
    hold   seconds for which SWALLOW keeps a reply back, by server; then the connection is cut
    """

    pid: int
    child: int = 0
    at: int = 0
    fault: str = Fault.KILL_BEFORE
    hold: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Count:
    """What has come of a plan: the commands in order, and when the fault struck (on the clock that
    all processes of this host share), if it did.
    """

    commands: list[str] = field(default_factory=list)
    struck_at: float | None = None


class _Connection:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.is_muted = False
        self.replied = asyncio.Event()

    async def replies(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_muted:
                    self.replied.set()
                    continue
                self.client.write(data)
                await self.client.drain()
        self.replied.set()
        if not self.is_muted:
            self.close()

    def close(self) -> None:
        self.client.close()
        self.server.close()


class _Relay:
    """The proxy's own process."""

    def __init__(self, plan: Plan) -> None:
        self._arm(plan)

    def _arm(self, plan: Plan) -> None:
        self._plan = plan
        self._count = Count()
        self._children: list[int] = []

    async def serve(self, kind: str, listens: Path, server: Path) -> None:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await self._serve_one(kind, server, reader, writer)
            writer.close()

        await asyncio.start_unix_server(accepted, str(listens))
        listens.chmod(0o777)

    async def obey(self, orders: asyncio.StreamReader) -> None:
        """Until whoever gave the orders is gone."""
        while line := await orders.readline():
            order = json.loads(line)
            if "plan" in order:
                self._arm(Plan(**order["plan"]))
            _say(asdict(self._count))

    def _counts(self, pid: int) -> bool:
        if pid == self._plan.pid or self._plan.child == 0:
            return pid == self._plan.pid and self._plan.child == 0
        if pid not in self._children and _parent(pid) == self._plan.pid:
            self._children.append(pid)
        return self._children[self._plan.child - 1 : self._plan.child] == [pid]

    async def _serve_one(
        self, kind: str, path: Path, client: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pid = _peer(writer)
        is_counted = self._counts(pid)
        server, server_writer = await asyncio.open_unix_connection(str(path))
        connection = _Connection(writer, server_writer)
        replies = asyncio.ensure_future(connection.replies(server))
        framing = _FRAMINGS[kind]()
        try:
            while data := await client.read(1 << 16):
                for name, raw in framing.feed(data):
                    if is_counted and name is not None and self._strikes(f"{kind} {name}"):
                        await self._strike(kind, pid, connection, client, raw)
                        return
                    server_writer.write(raw)
                await server_writer.drain()
        finally:
            connection.close()
            replies.cancel()

    def _strikes(self, command: str) -> bool:
        self._count.commands.append(command)
        return len(self._count.commands) == self._plan.at

    async def _strike(
        self,
        kind: str,
        pid: int,
        connection: _Connection,
        client: asyncio.StreamReader,
        raw: bytes,
    ) -> None:
        plan = self._plan
        if plan.fault not in (Fault.KILL_BEFORE, Fault.DROP_BEFORE):
            connection.is_muted = True
            connection.server.write(raw)
            await connection.server.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.replied.wait(), _LONGEST_WAIT)
        if plan.fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
            os.kill(pid, signal.SIGKILL)
        self._count.struck_at = time.monotonic()
        if plan.fault == Fault.SWALLOW:
            with suppress(TimeoutError):
                await asyncio.wait_for(client.read(), plan.hold.get(kind, 1.0))


def _peer(writer: asyncio.StreamWriter) -> int:
    credentials = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _relay(redis: Path, postgres: Path, directory: Path) -> None:
    relay = _Relay(Plan(pid=0))
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    servers: list[Coroutine[Any, Any, None]] = [
        relay.serve(kind, directory / path.name, path)
        for kind, path in ((REDIS, redis), (POSTGRES, postgres))
    ]
    await asyncio.gather(*servers)
    _say({})
    await relay.obey(orders)


class Proxy:
    """The proxy as the process sees it that starts it.

    server     the socket of Redis itself
    redis      that of the proxy in front of it
    directory  where the proxy's sockets are
    """

    def __init__(self, redis: Path, postgres: Path, directory: Path) -> None:
        self.server = redis
        self.redis = directory / redis.name
        self.directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.proxy", redis, postgres, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def arm(self, plan: Plan) -> None:
        """From now on this plan holds."""
        self._order({"plan": asdict(plan)})

    def count(self) -> Count:
        return Count(**self._order({}))

    def close(self) -> None:
        self._input.close()
        self._process.wait(5)
        self._output.close()

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        self._input.write(json.dumps(order) + "\n")
        self._input.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._output.readline())
        return answer


if __name__ == "__main__":
    asyncio.run(_relay(*map(Path, sys.argv[1:])))
