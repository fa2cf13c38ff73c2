"""From settings to lock managers: the one place that opens connections to Redis or Valkey."""

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django_redis.client import DefaultClient, ShardClient
from django_redis.pool import get_connection_factory
from redis import ConnectionPool, Redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry

from django_task_locks.conf import get_settings
from django_task_locks.exceptions import TaskLocksError
from django_task_locks.locks import AsyncLockManager, LockManager

CONNECT_TIMEOUT = 3.0
REPLY_TIMEOUT = 5.0


def get_lock_manager() -> LockManager:
    """The lock manager of this process: thread-safe, and safe to use in a forked child, which opens
    connections of its own.

    Raises ImproperlyConfigured for settings that lead nowhere; connects at the first operation.
    """
    return _shared_manager()


def new_lock_manager(*, longest_wait: float) -> LockManager:
    """A lock manager with connections of its own, on which an operation may wait for so many
    seconds.
    """
    return _build(REPLY_TIMEOUT + longest_wait)


def quick_lock_manager(seconds: float) -> LockManager:
    """A lock manager with connections of its own that gives up after so many seconds, at once: for
    who has something more urgent to do.
    """
    return _build(seconds, retries=0)


async def get_async_lock_manager() -> AsyncLockManager:
    """The asynchronous lock manager of the running event loop, closed with the loop. An operation
    of it may wait for as long as a heartbeat's interval.
    """
    loop = asyncio.get_running_loop()
    if loop not in _async_managers:
        for ended in [other for other in _async_managers if other.is_closed()]:
            del _async_managers[ended]  # of a loop that was closed without ending its generators
        keeper = _until_end_of(loop)
        _async_managers[loop] = (await anext(keeper), keeper)
    return _async_managers[loop][0]


async def _until_end_of(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[AsyncLockManager, None]:
    # asyncio.run and async_to_sync end their loop's asynchronous generators before they close it.
    # A weak reference to the loop would leave a connection open for each of their calls.
    manager = _build_async()
    try:
        yield manager
    finally:
        _async_managers.pop(loop, None)
        await manager.client.aclose()


def close_connections() -> None:
    """Closes what the synchronous lock managers of this process have opened; the next operation
    opens it again.
    """
    for manager in (_shared_manager, get_waiting_lock_manager):
        if manager.cache_info().currsize:
            manager().client.connection_pool.disconnect()


def location_problem() -> str | None:
    """Why the setting `redis` leads nowhere, in a sentence; None if it does lead somewhere."""
    try:
        location = get_settings().redis
        if location.startswith("embedded://"):
            from django_task_locks.embedded import check_url

            check_url(location)
        else:
            _build(REPLY_TIMEOUT)  # connects to nothing yet
    except (ImproperlyConfigured, TaskLocksError) as error:
        return str(error)
    return None


# -- clients ---------------------------------------------------------------------------------------

_AsyncEntry = tuple[AsyncLockManager, AsyncGenerator[AsyncLockManager, None]]
_async_managers: dict[asyncio.AbstractEventLoop, _AsyncEntry] = {}

# Every operation may be sent twice, so a connection that was closed meanwhile heals unnoticed.
_BACKOFF = ExponentialBackoff(cap=0.2, base=0.02)
_RETRIES = 2
_RETRIED = (ConnectionError, TimeoutError)


@cache
def _shared_manager() -> LockManager:
    return _build(REPLY_TIMEOUT)


@cache
def get_waiting_lock_manager() -> LockManager:
    """A second lock manager of this process, whose operations may wait for a heartbeat's interval:
    waiting holds up a connection, and needs a longer timeout than an answer.
    """
    return _build(REPLY_TIMEOUT + get_settings().heartbeat_interval)


def _forget_in_child() -> None:
    # A thread that does not run in a forked child may have held the lock of a pool.
    _shared_manager.cache_clear()
    get_waiting_lock_manager.cache_clear()
    _async_managers.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the setting `redis` leads."""

    url: str
    options: dict[str, Any]  # those of the django-redis cache; none for a URL

    @property
    def endpoint(self) -> str:
        """How messages name it: without user and password."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        path = parts.path if parts.path != "/" else ""
        host, _, port = parts.netloc.rpartition("@")[2].partition(":")
        return f"{host or 'localhost'}:{port or 6379}{path}"

    def pool(self) -> ConnectionPool:
        """A pool of our own: django-redis shares one per URL, whatever the options."""
        if not self.options:
            return ConnectionPool.from_url(self.url)
        factory = get_connection_factory(self.options)
        return factory.get_connection_pool(factory.make_connection_params(self.url))

    def async_pool(self) -> redis.asyncio.ConnectionPool:
        if not self.options:
            return redis.asyncio.ConnectionPool.from_url(self.url)
        factory = get_connection_factory(self.options)
        parameters = factory.make_connection_params("")
        parameters |= self.options.get("CONNECTION_POOL_KWARGS", {})
        for name in ("url", "parser_class", "connection_class", "retry"):
            parameters.pop(name, None)  # classes of the synchronous client
        if sentinels := self.options.get("SENTINELS"):
            manager = redis.asyncio.sentinel.Sentinel(  # type: ignore[no-untyped-call]
                sentinels, sentinel_kwargs=self.options.get("SENTINEL_KWARGS"), **parameters
            )
            service = urlsplit(self.url).hostname or ""
            pool: redis.asyncio.ConnectionPool = manager.master_for(service).connection_pool
            return pool
        return redis.asyncio.ConnectionPool.from_url(self.url, **parameters)


def _target() -> _Target:
    location = get_settings().redis
    if "://" not in location:
        return _cache_target(location)
    if urlsplit(location).scheme == "embedded":
        from django_task_locks.embedded import socket_url

        location = socket_url(location)
    return _Target(location, {})


def _cache_target(alias: str) -> _Target:
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
    return _Target(client._server[0], dict(client._options))


def _build(reply_timeout: float, retries: int = _RETRIES) -> LockManager:
    target = _target()
    if target.endpoint == "unix://":
        raise _misled(target, ValueError("no path is named; unix:///path/to.sock is accepted"))
    try:
        pool = target.pool()
    except ValueError as error:
        raise _misled(target, error) from None
    pool.connection_kwargs |= {
        "socket_timeout": reply_timeout,
        "retry": Retry(_BACKOFF, retries),
        "retry_on_error": list(_RETRIED),
    }
    pool.connection_kwargs.setdefault("socket_connect_timeout", min(CONNECT_TIMEOUT, reply_timeout))
    return LockManager(Redis(connection_pool=pool), get_settings().prefix, target.endpoint)


def _build_async() -> AsyncLockManager:
    target = _target()
    try:
        pool = target.async_pool()
    except ValueError as error:
        raise _misled(target, error) from None
    pool.connection_kwargs |= {
        "socket_timeout": REPLY_TIMEOUT + get_settings().heartbeat_interval,
        "retry": redis.asyncio.retry.Retry(_BACKOFF, _RETRIES),
        "retry_on_error": list(_RETRIED),
    }
    pool.connection_kwargs.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
    client = redis.asyncio.Redis.from_pool(pool)
    return AsyncLockManager(client, get_settings().prefix, target.endpoint)


def _misled(target: _Target, error: ValueError) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"TASK_LOCKS['redis'] leads to {target.endpoint!r}: {error}")


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("TASK_LOCKS", "CACHES"):
        close_connections()
        _shared_manager.cache_clear()
        get_waiting_lock_manager.cache_clear()
        _async_managers.clear()


setting_changed.connect(_forget, dispatch_uid="django_task_locks.connections")
