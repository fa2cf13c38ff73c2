"""The servers of the session beside its Valkey, each started when the first test asks for it, and
the ways to them."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pytest
import redis.asyncio
import redis.asyncio.sentinel
from redis import Redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

from tests.support.certificates import OpensslMissing
from tests.support.cluster import ValkeyCluster
from tests.support.redis_servers import GuardedServer, RedisMissing, RedisServer, TlsServer
from tests.support.rights import IN_CLUSTER, minimal_rights
from tests.support.sentinel import SERVICE, SentinelGroup
from tests.support.servers import ValkeyServer

S = TypeVar("S", bound=AbstractContextManager[Any])

AnyClient = Redis | RedisCluster
AnyAsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster


# How often a second a server looks for waits that are over: ten times as often as by default.
HZ = 100


class Services:
    # What the ACL user of `guarded` may touch.
    prefix = "test"

    def __init__(self) -> None:
        self._started = ExitStack()

    def close(self) -> None:
        self._started.close()

    def start(self, make: Callable[[], S]) -> S:
        """Skips the test where the machine lacks the server; in CI nothing may be lacking."""
        try:
            server = make()
            self._started.enter_context(server)
        except (RedisMissing, OpensslMissing) as error:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(error))
        return server

    @cached_property
    def valkey(self) -> ValkeyServer:
        return self.start(lambda: ValkeyServer(tcp=True, hz=HZ))

    @cached_property
    def redis_6_2(self) -> RedisServer:
        return self.start(lambda: RedisServer("6.2", tcp=True, hz=HZ))

    @cached_property
    def redis_7(self) -> RedisServer:
        return self.start(lambda: RedisServer("7", tcp=True, hz=HZ))

    @cached_property
    def tls(self) -> TlsServer:
        return self.start(lambda: TlsServer(hz=HZ))

    @cached_property
    def guarded(self) -> GuardedServer:
        return self.start(lambda: GuardedServer(self.prefix, hz=HZ))

    @cached_property
    def sentinel(self) -> SentinelGroup:
        return self.start(lambda: SentinelGroup(hz=HZ))

    @cached_property
    def cluster(self) -> ValkeyCluster:
        cluster = self.start(lambda: ValkeyCluster(hz=HZ))
        rights = minimal_rights(self.prefix)
        cluster.add_user(GuardedServer.user_name, GuardedServer.user_password, *rights, *IN_CLUSTER)
        return cluster


class Way(ABC):
    """How clients come to a server."""

    @abstractmethod
    def client(self, **options: Any) -> AnyClient:
        """A client of the caller's own, who closes it."""

    @abstractmethod
    def async_client(self, **options: Any) -> AnyAsyncClient: ...

    async def aclose(self, client: AnyAsyncClient) -> None:
        await client.aclose()

    def control(self) -> AnyClient:
        """A client that may do anything."""
        return self.client()


@dataclass(frozen=True)
class ByUrl(Way):
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    control_url: str = ""

    def client(self, **options: Any) -> AnyClient:
        client: Redis = Redis.from_url(self.url, **self.options, **options)
        return client

    def async_client(self, **options: Any) -> AnyAsyncClient:
        client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            self.url, **self.options, **options
        )
        return client

    def control(self) -> AnyClient:
        client: Redis = Redis.from_url(self.control_url or self.url, **self.options)
        return client


@dataclass(frozen=True)
class BySentinel(Way):
    group: SentinelGroup
    db: int = 0

    def client(self, **options: Any) -> AnyClient:
        manager = Sentinel(self.group.sentinels, db=self.db, **options)
        client: Redis = manager.master_for(SERVICE)
        return client

    def async_client(self, **options: Any) -> AnyAsyncClient:
        manager = redis.asyncio.sentinel.Sentinel(self.group.sentinels, db=self.db, **options)
        client: redis.asyncio.Redis = manager.master_for(SERVICE)
        return client

    async def aclose(self, client: Any) -> None:
        await client.aclose()
        # Its connections to the sentinels are not its own.
        for sentinel in client.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()


@dataclass(frozen=True)
class InCluster(Way):
    cluster: ValkeyCluster

    def client(self, **options: Any) -> AnyClient:
        return self.cluster.client(**options)

    def async_client(self, **options: Any) -> AnyAsyncClient:
        return self.cluster.async_client(**options)


# Every way that is promised to work.
WAYS: dict[str, Callable[[Services], Way]] = {
    "Valkey 9 by TCP": lambda services: ByUrl(services.valkey.tcp_url),
    "Valkey 9 by unix socket": lambda services: ByUrl(services.valkey.url),
    "Redis 6.2": lambda services: ByUrl(services.redis_6_2.tcp_url),
    "Redis 7": lambda services: ByUrl(services.redis_7.tcp_url),
    "another database": lambda services: ByUrl(f"{services.valkey.tcp_url}/5"),
    "password": lambda services: ByUrl(services.guarded.password_url),
    "ACL user": lambda services: ByUrl(
        services.guarded.user_url, control_url=services.guarded.password_url
    ),
    "TLS": lambda services: ByUrl(services.tls.trusted_url),
    "Sentinel": lambda services: BySentinel(services.sentinel),
    "Cluster": lambda services: InCluster(services.cluster),
}
