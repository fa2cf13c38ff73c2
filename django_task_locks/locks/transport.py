"""How commands reach the server: through a client of the caller's, or on connections of our own."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha1
from typing import Any, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import NoScriptError, ResponseError

from django_task_locks.locks.protocol import Argument

T = TypeVar("T")

Command = tuple[Argument, ...]


class Script:
    """A Lua script, and the commands that run it with one routing key."""

    __slots__ = ("_eval", "_evalsha")

    def __init__(self, source: str, key: str) -> None:
        digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._evalsha: Command = ("EVALSHA", digest, 1, key)
        self._eval: Command = ("EVAL", source, 1, key)

    def by_digest(self, arguments: Sequence[Argument]) -> Command:
        """For a server that has seen the script; any other answers NOSCRIPT."""
        return (*self._evalsha, *arguments)

    def by_source(self, arguments: Sequence[Argument]) -> Command:
        """For any server, which has seen the script from then on."""
        return (*self._eval, *arguments)


class Transport(ABC):
    """Sends commands and returns their replies as the server gave them, raises RedisError.

    A command may reach the server twice: when its reply is lost, it is sent again.

    client  a redis.Redis or RedisCluster that leads to the same server (the two have no base in
            common)
    """

    client: Any

    @abstractmethod
    def run(self, script: Script, arguments: Sequence[Argument]) -> Any:
        """The reply of a script."""

    @abstractmethod
    def send(self, commands: Sequence[Command]) -> list[Any]:
        """The replies of commands that go together in one round trip."""

    @abstractmethod
    def drop_connections(self) -> None:
        """Closes the connections that nobody is using; later commands open new ones."""

    @abstractmethod
    def connection_to(self, key: str) -> AbstractConnection:
        """A new connection for the caller alone to the server that has this key, not yet open."""


class ClientTransport(Transport):
    """Through a client: its pool, its way to find the server, its retries."""

    def __init__(self, client: Redis | RedisCluster) -> None:
        self.client: Any = client

    def run(self, script: Script, arguments: Sequence[Argument]) -> Any:
        try:
            return self.client.execute_command(*script.by_digest(arguments))
        except NoScriptError:
            return self.client.execute_command(*script.by_source(arguments))

    def send(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            return [self.client.execute_command(*commands[0])]
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute()
        return replies

    def drop_connections(self) -> None:
        self.client.connection_pool.disconnect()

    def connection_to(self, key: str) -> AbstractConnection:
        return _new_connection(self.client.connection_pool)


class ClusterTransport(ClientTransport):
    """Through a cluster's client, which connects when it is made: at the first command."""

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect

    @cached_property
    def client(self) -> RedisCluster:
        return self._connect()

    def drop_connections(self) -> None:
        if "client" in vars(self):
            self.client.disconnect_connection_pools()

    def connection_to(self, key: str) -> AbstractConnection:
        # asks the cluster first, so that a slot that has moved is followed
        self.client.execute_command("EXISTS", key)
        return _new_connection(
            self.client.get_redis_connection(self.client.get_node_from_key(key)).connection_pool
        )


class OwnConnections(Transport):
    """On connections of our own, made as the pool makes its own, which each serve one call at a
    time: without the pool's lock, health check before each call and bookkeeping.

    A forked child opens its own.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self.client = Redis(connection_pool=pool)
        self._pool = pool
        self._idle: deque[AbstractConnection] = deque()
        self._pid = os.getpid()

    def run(self, script: Script, arguments: Sequence[Argument]) -> Any:
        try:
            return self._call(_exchange, script.by_digest(arguments))
        except NoScriptError:
            return self._call(_exchange, script.by_source(arguments))

    def send(self, commands: Sequence[Command]) -> list[Any]:
        return self._call(_exchange_all, commands)

    def drop_connections(self) -> None:
        while self._idle:
            try:
                self._idle.pop().disconnect()
            except IndexError:  # taken by another thread
                return

    def connection_to(self, key: str) -> AbstractConnection:
        return _new_connection(self._pool)

    def _call(self, exchange: Callable[[AbstractConnection, Any], T], what: Any) -> T:
        connection = self._take()
        try:
            reply = connection.retry.call_with_retry(
                lambda: exchange(connection, what), lambda error: connection.disconnect()
            )
        except ResponseError:
            self._idle.append(connection)  # it was an answer
            raise
        except BaseException:
            connection.disconnect()  # or the next one to use it would be given this one's answer
            raise
        self._idle.append(connection)
        return reply

    def _take(self) -> AbstractConnection:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return _new_connection(self._pool)


def _new_connection(pool: ConnectionPool) -> AbstractConnection:
    # not by the pool's own method, which counts those that it has made
    connection: AbstractConnection = pool.connection_class(**pool.connection_kwargs)
    return connection


def _exchange(connection: AbstractConnection, command: Command) -> Any:
    connection.send_packed_command(connection.pack_command(*command))
    return connection.read_response()


def _exchange_all(connection: AbstractConnection, commands: Sequence[Command]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    replies, errors = [], []
    for _ in commands:
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return replies
