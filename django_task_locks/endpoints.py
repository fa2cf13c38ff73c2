"""From the setting `redis` to clients: a cache of django-redis, a URL, a Sentinel or a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient, ShardClient
from django_redis.pool import get_connection_factory
from redis.backoff import ExponentialBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from django_task_locks.conf import CLUSTER_SCHEMES, get_settings
from django_task_locks.locks.transport import ClusterTransport, OwnConnections, Transport

AsyncClient = redis.asyncio.Redis | redis.asyncio.cluster.RedisCluster

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.2
_RETRIED = [ConnectionError, TimeoutError]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an operation may take, in seconds, and how often it is sent again.

    connect  for a connection to be made, unless the options of the connection say it
    reply    for an answer
    wait     longest wait that an operation may ask for, in addition
    retries  how often an operation is sent again whose connection breaks, after growing pauses
    """

    connect: float
    reply: float
    wait: float
    retries: int

    def applied(self, given: dict[str, Any], retry: type[Any]) -> dict[str, Any]:
        """What replaces those among the given options of a connection; with the retry class of its
        kind of client.
        """
        timeout = self.reply + self.wait
        connect = given.get("socket_connect_timeout") or self.connect
        backoff = ExponentialBackoff(cap=_LONGEST_PAUSE, base=_FIRST_PAUSE)
        return {
            "socket_timeout": timeout,
            "socket_connect_timeout": min(connect, timeout),
            "retry": retry(backoff, self.retries),
        }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the setting leads."""

    url: str
    options: dict[str, Any]  # those of the django-redis cache; none for a URL

    @classmethod
    def from_settings(cls) -> "Endpoint":
        """Raises ImproperlyConfigured for an alias that cannot be used. Starts the server of one's
        own that `embedded://` stands for.
        """
        location = get_settings().redis
        if "://" not in location:
            return _of_cache(location)
        if urlsplit(location).scheme == "embedded":
            from django_task_locks.embedded import socket_url

            location = socket_url(location)
        return cls(location, {})

    @property
    def name(self) -> str:
        """How messages name it: without user and password."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        hosts = [
            host if ":" in host.rpartition("]")[2] else f"{host}:6379"
            for host in _without_credentials(parts).split(",")
        ]
        return ",".join(hosts) + (parts.path if parts.path != "/" else "")

    def caches_beside(self) -> list[str]:
        """Aliases of the caches in the same Redis database, which their clear() empties."""
        return [alias for alias in caches if self._database in _databases_of(alias)]

    @property
    def _database(self) -> tuple[str, str]:
        return _database(self.url)

    def transport(self, limits: Limits) -> Transport:
        """For synchronous use. Connects to nothing yet; raises ImproperlyConfigured for a URL that
        leads nowhere.
        """
        with self._explained():
            if self._is_cluster:
                nodes, given = self._cluster()
                startup = [ClusterNode(host, port) for host, port in nodes]
                options = given | limits.applied(given, Retry)
                return ClusterTransport(lambda: RedisCluster(startup_nodes=startup, **options))
            pool = self._pool()
        pool.connection_kwargs |= limits.applied(pool.connection_kwargs, Retry)
        pool.connection_kwargs["retry_on_error"] = _RETRIED
        return OwnConnections(pool)

    def async_client(self, limits: Limits) -> AsyncClient:
        """For the running event loop; otherwise as `transport`."""
        retry = redis.asyncio.retry.Retry
        with self._explained():
            if self._is_cluster:
                nodes, given = self._cluster()
                startup = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in nodes]
                options = given | limits.applied(given, retry)
                return redis.asyncio.cluster.RedisCluster(startup_nodes=startup, **options)
            pool = self._async_pool()
        pool.connection_kwargs |= limits.applied(pool.connection_kwargs, retry)
        pool.connection_kwargs["retry_on_error"] = _RETRIED
        return redis.asyncio.Redis.from_pool(pool)

    @property
    def _is_cluster(self) -> bool:
        return urlsplit(self.url).scheme in CLUSTER_SCHEMES

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            if self.name == "unix://":
                raise ValueError("no path is named; unix:///path/to.sock is accepted")
            yield
        except ValueError as error:
            raise ImproperlyConfigured(
                f"TASK_LOCKS['redis'] leads to {self.name!r}: {error}"
            ) from None

    def _cluster(self) -> tuple[list[tuple[str, int]], dict[str, Any]]:
        """The nodes by which the cluster is found, and the options of its connections."""
        parts = urlsplit(self.url)
        credentials, at, _ = parts.netloc.rpartition("@")
        # the parser of URLs knows one host
        options = dict(parse_url(f"redis://{credentials}{at}node?{parts.query}"))
        del options["host"]
        if parts.path not in ("", "/", "/0"):
            raise ValueError(f"database {parts.path[1:]!r}: a cluster has no other than 0")
        if parts.scheme.startswith("rediss"):
            options["ssl"] = True
        return _hosts(parts), options

    def _pool(self) -> ConnectionPool:
        """A pool of our own: django-redis shares one per URL, whatever the options."""
        if not self.options:
            return ConnectionPool.from_url(self.url)
        factory = get_connection_factory(self.options)
        return factory.get_connection_pool(factory.make_connection_params(self.url))

    def _async_pool(self) -> redis.asyncio.ConnectionPool:
        if not self.options:
            return redis.asyncio.ConnectionPool.from_url(self.url)
        factory = get_connection_factory(self.options)
        parameters = factory.make_connection_params("")
        parameters |= self.options.get("CONNECTION_POOL_KWARGS", {})
        for name in ("url", "parser_class", "connection_class", "retry"):
            parameters.pop(name, None)  # classes of the synchronous client
        if sentinels := self.options.get("SENTINELS"):
            manager = redis.asyncio.sentinel.Sentinel(
                sentinels, sentinel_kwargs=self.options.get("SENTINEL_KWARGS"), **parameters
            )
            given = dict(parse_url(self.url))  # database and credentials are those of the primary
            service = given.pop("host", "")
            for name in ("port", "is_master"):
                given.pop(name, None)
            manager.connection_kwargs |= given
            pool: redis.asyncio.ConnectionPool = manager.master_for(service).connection_pool
            return pool
        return redis.asyncio.ConnectionPool.from_url(self.url, **parameters)


def _database(url: str) -> tuple[str, str]:
    """Which database a URL means: where the server is, and its number."""
    parts = urlsplit(url)
    number = parse_qs(parts.query).get("db", [""])[-1]
    if parts.scheme == "unix":
        return parts.path, number or "0"
    number = number or parts.path.strip("/")
    return _without_credentials(parts).removesuffix(":6379"), number or "0"


def _databases_of(alias: str) -> list[tuple[str, str]]:
    settings = caches.settings[alias]
    if "redis" not in str(settings.get("BACKEND", "")).lower():
        return []
    location = settings.get("LOCATION", "")
    urls = location.split(",") if isinstance(location, str) else location
    return [_database(str(url).strip()) for url in urls]


def _without_credentials(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2] or "localhost"


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    hosts = []
    for host in _without_credentials(parts).split(","):
        one = urlsplit(f"//{host}")
        hosts.append((one.hostname or "localhost", one.port or 6379))
    return hosts


def _of_cache(alias: str) -> Endpoint:
    try:
        backend = caches[alias]
    except InvalidCacheBackendError as error:
        problem = str(error) if alias in caches.settings else "CACHES has no such alias"
        raise ImproperlyConfigured(
            f"TASK_LOCKS['redis'] is {alias!r}: {problem}; name one with backend "
            "django_redis.cache.RedisCache, or give a URL such as redis://host:6379/0"
        ) from None
    client = getattr(backend, "client", None)
    if not isinstance(client, DefaultClient) or isinstance(client, ShardClient):
        raise ImproperlyConfigured(
            f"TASK_LOCKS['redis'] is {alias!r}, a cache of {type(backend).__module__}."
            f"{type(backend).__qualname__} with client {type(client).__qualname__}: a django-redis "
            "cache with its default or Sentinel client is accepted, or a URL such as "
            "redis://host:6379/0"
        )
    return Endpoint(client._server[0], dict(client._options))
