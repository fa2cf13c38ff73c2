"""How commands reach the server: through a client of the caller's, or on connections of our own."""

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha1
from threading import Lock
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError
from redis.utils import str_if_bytes

from django_task_locks.locks import scripts
from django_task_locks.locks.channels import Channel, Command, SocketChannel
from django_task_locks.locks.failures import OtherServer
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.protocol import Argument
from django_task_locks.locks.remembered import Remembered

T = TypeVar("T")

_RUN_ID = re.compile(r"^run_id:([0-9a-f]+)", re.MULTILINE)
_MOST_IDLE = 32  # a burst of threads leaves no more connections open


class _Forks:
    """How many forks lead to this process: cheaper to ask than the system for its number."""

    count: ClassVar[int] = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.add)


class Script:
    """A Lua script, and the commands that run it with a routing key, and a second key of the same
    slot that never exists: while the slot moves to another node of a cluster, key by key, neither
    node has both, and so both refuse (TRYAGAIN) instead of taking for free what is elsewhere.
    """

    __slots__ = ("_eval", "_evalsha")

    def __init__(self, source: str, key: str, absent: str) -> None:
        digest = sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._evalsha: Command = ("EVALSHA", digest, "2", key, absent)
        self._eval: Command = ("EVAL", source, "2", key, absent)

    def by_digest(self, arguments: Sequence[Argument], epoch: str) -> Command:
        """For a server that has seen the script; any other answers NOSCRIPT."""
        return (*self._evalsha, *arguments, epoch)

    def by_source(self, arguments: Sequence[Argument], epoch: str) -> Command:
        """For any server, which has seen the script from then on."""
        return (*self._eval, *arguments, epoch)


@cache  # to put them together takes tens of milliseconds
def all_scripts(keys: Keys, batch: int, *, identifies: bool) -> Mapping[str, Script]:
    """Every operation by its name; the arguments are those of `scripts.source`."""
    return MappingProxyType(
        {
            name: Script(
                scripts.source(name, keys, batch, identifies=identifies), keys.anchor, keys.absent
            )
            for name in scripts.OPERATIONS
        }
    )


class Transport(ABC):
    """Sends commands and returns their replies as the server gave them, raises RedisError.

    A command may reach the server twice: when its reply is lost, it is sent again.

    client      a redis.Redis or RedisCluster that leads to the same server (the two have no base in
                common)
    identifies  whether its connections are made to the server alone that the epoch names: others
                leave that to the scripts
    """

    client: Any
    identifies = False

    @abstractmethod
    def run(self, script: Script, arguments: Sequence[Argument], epoch: str = "") -> Any:
        """The reply of a script, for a caller who takes this to be the epoch."""

    def run_many(
        self, script: Script, arguments: Iterable[Sequence[Argument]], epoch: str = ""
    ) -> list[Any]:
        """As `run` for each of them, of which there is at least one, in one round trip."""
        arguments = Remembered(arguments)
        commands = Remembered(script.by_digest(each, epoch) for each in arguments)
        try:
            return self.send(commands, epoch)
        except NoScriptError:
            self.run(script, next(iter(arguments)), epoch)  # which brings the script along
            return self.send(commands, epoch)

    @abstractmethod
    def send(self, commands: Iterable[Command], epoch: str = "") -> list[Any]:
        """The replies of commands that go together in one round trip. They may be iterated more
        than once.
        """

    @abstractmethod
    def drop_connections(self) -> None:
        """Closes the connections that nobody is using; later commands open new ones."""

    @abstractmethod
    def connection_to(self, key: str) -> Any:
        """A new connection for the caller alone to the server that has this key, not yet open."""


def _ask(channel: Channel, command: Command) -> Any:
    return channel.ask(command)


def _ask_all(channel: Channel, commands: Iterable[Command]) -> list[Any]:
    return channel.ask_all(commands)


class _SingleConnections(Transport):
    """Each call has a channel for itself, which is of no use to another before it has ended."""

    @abstractmethod
    def _take(self, epoch: str) -> tuple[Channel, bool]:
        """A channel, and whether it may have been closed by the server since it was used."""

    @abstractmethod
    def _give_back(self, channel: Channel) -> None:
        """All that was asked on it has been answered."""

    @abstractmethod
    def _discard(self, channel: Channel) -> None:
        """An answer may still come on it, which nobody may take for that to another question."""

    def run(self, script: Script, arguments: Sequence[Argument], epoch: str = "") -> Any:
        try:
            return self._call(_ask, script.by_digest(arguments, epoch), epoch)
        except NoScriptError:
            return self._call(_ask, script.by_source(arguments, epoch), epoch)

    def send(self, commands: Iterable[Command], epoch: str = "") -> list[Any]:
        return self._call(_ask_all, commands, epoch)

    def _call(self, exchange: Callable[[Channel, Any], T], what: Any, epoch: str) -> T:
        channel, may_be_closed = self._take(epoch)
        try:
            try:
                reply = exchange(channel, what)
            except (ConnectionError, TimeoutError) as error:
                channel.close()
                is_no_failure = may_be_closed and isinstance(error, ConnectionError)
                reply = channel.retried(exchange, what, None if is_no_failure else error)
        except ResponseError:
            self._give_back(channel)
            raise
        except BaseException:
            self._discard(channel)
            raise
        self._give_back(channel)
        return reply


class ClientTransport(_SingleConnections):
    """On connections of a client's pool, which are the pool's again after each call."""

    def __init__(self, client: Redis) -> None:
        _check_encoding(client.connection_pool)
        self.client = client

    def _take(self, epoch: str) -> tuple[Channel, bool]:
        return Channel(self.client.connection_pool.get_connection()), False  # the pool has looked

    def _give_back(self, channel: Channel) -> None:
        self.client.connection_pool.release(channel.connection)

    def _discard(self, channel: Channel) -> None:
        try:
            channel.close()
        finally:
            self.client.connection_pool.release(channel.connection)

    def drop_connections(self) -> None:
        self.client.connection_pool.disconnect(inuse_connections=False)

    def connection_to(self, key: str) -> Any:
        return _new_connection(self.client.connection_pool)


class OwnConnections(_SingleConnections):
    """On connections of our own, made as the pool makes its own: without the pool's lock, check
    before each call and bookkeeping. A forked child opens its own.

    Each is good for the epoch for which it was opened, whose server it has been found to lead to.
    """

    identifies = True

    def __init__(self, pool: ConnectionPool) -> None:
        _check_encoding(pool)
        pool.connection_kwargs["redis_connect_func"] = _connected
        self.client = Redis(connection_pool=pool)
        self._pool = pool
        self._idle: deque[Channel] = deque()
        self._forks = _Forks.count

    def drop_connections(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # taken by another thread
                return

    def connection_to(self, key: str) -> Any:
        return _new_connection(self._pool)

    def _take(self, epoch: str) -> tuple[Channel, bool]:
        if self._forks != _Forks.count:
            self._idle, self._forks = deque(), _Forks.count
        while True:
            try:
                channel = self._idle.pop()
            except IndexError:
                break
            if channel.epoch == epoch:
                return channel, True
            channel.close()
        connection = _new_connection(self._pool)
        connection.task_locks_epoch = epoch
        return SocketChannel(connection, epoch), False

    def _give_back(self, channel: Channel) -> None:
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(channel)
        else:
            channel.close()

    def _discard(self, channel: Channel) -> None:
        channel.close()


class ClusterTransport(Transport):
    """Through a cluster's client, which connects when it is made: at the first command."""

    def __init__(self, connect: Callable[[], RedisCluster]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._client: RedisCluster | None = None

    @property
    def client(self) -> Any:
        with self._lock:
            self._client = self._client or self._connect()
            return self._client

    def run(self, script: Script, arguments: Sequence[Argument], epoch: str = "") -> Any:
        try:
            return self.client.execute_command(*script.by_digest(arguments, epoch))
        except NoScriptError:
            return self.client.execute_command(*script.by_source(arguments, epoch))

    def send(self, commands: Iterable[Command], epoch: str = "") -> list[Any]:
        commands = list(commands)
        if len(commands) == 1:
            return [self.client.execute_command(*commands[0])]
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute()
        return replies

    def drop_connections(self) -> None:
        if self._client is not None:
            self._client.disconnect_connection_pools()

    def connection_to(self, key: str) -> Any:
        # asks the cluster first, so that a slot that has moved is followed
        self.client.execute_command("EXISTS", key)
        node = self.client.get_node_from_key(key)
        return _new_connection(self.client.get_redis_connection(node).connection_pool)


def _check_encoding(pool: ConnectionPool) -> None:
    encoding = str(pool.connection_kwargs.get("encoding", "utf-8"))
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise ValueError(f"encoding {encoding!r} of the client: utf-8 is accepted")


def _new_connection(pool: ConnectionPool) -> Any:
    # not by the pool's own method, which counts those that it has made
    return pool.connection_class(**pool.connection_kwargs)


def _connected(connection: Any) -> None:
    """What a new connection does first; refuses one that leads to another server."""
    connection.on_connect()
    server = getattr(connection, "task_locks_epoch", "").partition(":")[2]
    if not server:
        return
    connection.send_command("INFO", "server")
    found = _RUN_ID.search(str_if_bytes(connection.read_response()))
    if found is None or found[1] != server:
        raise OtherServer(
            f"the server has the run id {found and found[1]}, and the locks are on {server}"
        )
