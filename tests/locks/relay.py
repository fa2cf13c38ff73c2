"""Stands between a client and the server, and loses replies."""

import socket
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self


class Relay:
    """Listens on a socket of its own. `lose_reply(times)`: the next so many commands get to the
    server, and when it has answered, the connection to the client is cut instead of passing the
    answer on.
    """

    def __init__(self, server: Path, directory: Path) -> None:
        self.path = directory / "relay.sock"
        self.lost = 0
        self._server = server
        self._to_lose = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = Thread(target=self._accept, daemon=True)

    def lose_reply(self, times: int = 1) -> None:
        self._to_lose = times

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                Thread(target=self._requests, args=(client, server), daemon=True).start()
                Thread(target=self._replies, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        server.close()

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    break
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
