"""One connection of redis-py, and the exchange of commands and replies on it."""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

from redis.connection import AbstractConnection, DefaultParser
from redis.exceptions import (
    ConnectionError,
    InvalidResponse,
    RedisError,
    ResponseError,
    TimeoutError,
)
from redis.sentinel import SentinelManagedConnection

from django_task_locks.locks.protocol import Argument

T = TypeVar("T")

Command = tuple[Argument, ...]

hiredis: Any
try:
    hiredis = import_module("hiredis")
    _pack: Any = hiredis.pack_command  # at once: redis-py looks at each argument once more
    _Push: Any = getattr(hiredis, "PushNotification", None)
except ImportError:
    hiredis = _pack = _Push = None

_READ_SIZE = 1 << 16
_PART = 25  # commands that are written at once
_INCOMPLETE: Any = object()


class Channel:
    """A connection, used by redis-py's own methods. The first command connects it.

    After any error that is not a ResponseError it must be closed: an answer may still come on it,
    which nobody may take for that to another question.
    """

    __slots__ = ("connection", "epoch")

    def __init__(self, connection: Any, epoch: str = "") -> None:
        """epoch: that for which it is opened; see `transport.OwnConnections`."""
        self.connection = connection
        self.epoch = epoch

    def ask(self, command: Command) -> Any:
        """The reply to a command; raises RedisError."""
        self._send([_pack(command)] if hiredis else self.connection.pack_command(*command))
        return self.connection.read_response()

    def ask_all(self, commands: Iterable[Command]) -> list[Any]:
        """The replies to commands that go together. If there are errors among them, the first is
        raised when all have been read.
        """
        commands = list(commands)
        self._send([_pack_all(commands)] if hiredis else self.connection.pack_commands(commands))
        return _replies(self.connection.read_response, len(commands))

    def close(self) -> None:
        """The next command connects again."""
        self.connection.disconnect()

    def retried(self, exchange: Callable[[Any, Any], T], what: Any, first: Exception | None) -> T:
        """By the connection's own retries, of which the first attempt, if it failed, was one."""

        def attempt() -> T:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            return exchange(self, what)

        result: T = self.connection.retry.call_with_retry(attempt, lambda error: self.close())
        return result

    def _send(self, packed: Sequence[bytes]) -> None:
        if isinstance(self.connection, SentinelManagedConnection):
            # sending connects by itself, but does not ask a sentinel for the address
            self.connection.connect()
        self.connection.send_packed_command(packed)


class SocketChannel(Channel):
    """A connection that redis-py makes, with all that belongs to it (TLS, rights, protocol), and of
    which then the socket alone is used: without what redis-py looks at for each command and reply.
    Words in replies are text.

    What is not a connection of the usual kind is used as redis-py does.
    """

    __slots__ = ("_reader", "_socket")

    def __init__(self, connection: Any, epoch: str = "") -> None:
        super().__init__(connection, epoch)
        self._socket: Any = None
        self._reader: Any = None

    def ask(self, command: Command) -> Any:
        if self._socket is None and not self._connect():
            return super().ask(command)
        try:
            _write(self._socket, _pack(command))
            self._receive()
            reply = self._reader.gets()
            return reply if type(reply) is list else self._meant(reply)
        except OSError as error:
            raise _translated(error) from error

    def ask_all(self, commands: Iterable[Command]) -> list[Any]:
        if self._socket is None and not self._connect():
            return super().ask_all(commands)
        try:
            return _replies(self._read, self._write_all(iter(commands)))
        except OSError as error:
            raise _translated(error) from error

    def close(self) -> None:
        self._socket = None
        super().close()

    def __del__(self) -> None:
        # The connection is part of a cycle: the garbage collector may come by its socket first,
        # which warns that nobody has closed it.
        with suppress(Exception):
            self.close()

    def _connect(self) -> bool:
        """Returns whether its socket can be used."""
        connection = self.connection
        if not _is_usual(connection):
            return False
        connection.send_packed_command([])  # connects first; by itself it would try that more often
        if connection.can_read():  # something that was not asked for: up to redis-py
            return False
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=connection._parser.parse_error,
            encoding="utf-8",
            errors="backslashreplace",
            notEnoughData=_INCOMPLETE,
        )
        self._socket = connection._sock
        return True

    def _write_all(self, commands: Iterator[Command]) -> int:
        """Returns how many they are. While the server works at some, the next ones are made."""
        count = 0
        while part := list(islice(commands, _PART)):
            _write(self._socket, _pack_all(part))
            count += len(part)
        return count

    def _receive(self) -> None:
        data = self._socket.recv(_READ_SIZE)
        if not data:
            raise ConnectionError("Connection closed by server.")
        self._reader.feed(data)

    def _read(self) -> Any:
        return self._meant(self._reader.gets())

    def _meant(self, reply: Any) -> Any:
        """What the reader has given, if it is a whole reply and no error, else what follows."""
        while reply is _INCOMPLETE:
            self._receive()
            reply = self._reader.gets()
        if isinstance(reply, RedisError):
            raise reply
        if type(reply) is _Push:
            # redis-py listens where the version knows of pushes
            getattr(self.connection._parser, "handle_push_response", _ignore)(reply)
            return self._read()
        return reply


def _write(to: Any, data: bytes) -> None:
    """As `sendall`, which asks the system first whether it can write. Mostly it can: so at once."""
    if type(to) is not socket.socket:  # but TLS
        to.sendall(data)
        return
    try:
        written = os.write(to.fileno(), data)
    except BlockingIOError:
        written = 0
    if written < len(data):
        to.sendall(data[written:])


def _is_usual(connection: Any) -> bool:
    """Whether nothing but redis-py's own writing and reading would be left out."""
    kind = type(connection)
    return (
        hiredis is not None
        and isinstance(connection, AbstractConnection)
        and kind.send_packed_command is AbstractConnection.send_packed_command
        and kind.read_response is AbstractConnection.read_response
        and isinstance(connection._parser, DefaultParser)
        and not connection.health_check_interval
    )


def _ignore(push: object) -> None:
    pass


def _pack_all(commands: Sequence[Command]) -> bytes:
    return b"".join(map(_pack, commands))


def _replies(read: Callable[[], Any], count: int) -> list[Any]:
    replies, errors = [], []
    for _ in range(count):
        try:
            replies.append(read())
        except ResponseError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return replies


def _translated(error: OSError) -> RedisError:
    if isinstance(error, socket.timeout):
        return TimeoutError("Timeout reading from socket")
    return ConnectionError(f"Error while using socket: {error}")
