"""A network that is farther away: a TCP proxy that keeps everything back for half a round trip, in
each direction.

    python -m benchmarks.delay PORT SECONDS

prints the port on which it listens. What it costs in CPU time it costs every peer for each message.
"""

import asyncio
import selectors
import subprocess
import sys
from collections import deque
from typing import Self

from tests.support.server_base import tethered


class DelayingProxy:
    """In a process of its own, before the server on `port` of this host; `with` starts and ends it.

    round_trip  seconds that are added to one
    """

    port: int

    def __init__(self, port: int | None, round_trip: float) -> None:
        self._command = [sys.executable, "-m", "benchmarks.delay", str(port), str(round_trip / 2)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(tethered(self._command, 9), stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


class _Half(asyncio.Protocol):
    """One side of a connection: what it receives goes to the other side later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._late: deque[bytes] = deque()
        self.other: _Half | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._late.append(data)
        asyncio.get_running_loop().call_later(self._delay, self._deliver)

    def connection_lost(self, exc: Exception | None) -> None:
        asyncio.get_running_loop().call_later(self._delay, self._close_other)

    def _deliver(self) -> None:
        # In order, whichever of two timers with the same time comes first.
        data = self._late.popleft()
        if self.other and self.other.transport:
            self.other.transport.write(data)

    def _close_other(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.close()


class _Accepted(_Half):
    def __init__(self, delay: float, port: int) -> None:
        super().__init__(delay)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        # Kept by the loop's transport once it is made.
        self._connecting = asyncio.ensure_future(self._connect(transport))

    async def _connect(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, server = await loop.create_connection(
                lambda: _Half(self._delay), "127.0.0.1", self._port
            )
        except OSError:
            transport.close()
            return
        self.other, server.other = server, self
        transport.resume_reading()


async def _serve(port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Accepted(delay, port), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    # epoll rounds what it waits up to whole milliseconds, select does not.
    _loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    _loop.run_until_complete(_serve(int(sys.argv[1]), float(sys.argv[2])))
