"""From settings to lock managers: the one place that opens connections to Redis or Valkey."""

from functools import cache
from typing import Any
from urllib.parse import urlsplit

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
from django_task_locks.locks import LockManager

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


def close_connections() -> None:
    """Closes what `get_lock_manager` has opened; the next operation opens it again."""
    if _shared_manager.cache_info().currsize:
        _shared_manager().client.connection_pool.disconnect()


def location_problem() -> str | None:
    """Why the setting `redis` leads nowhere, in a sentence; None if it does lead somewhere."""
    try:
        location = get_settings().redis
        if "://" not in location:
            _cache_parameters(location)
    except ImproperlyConfigured as error:
        return str(error)
    return None


@cache
def _shared_manager() -> LockManager:
    return _build(REPLY_TIMEOUT)


def _build(reply_timeout: float) -> LockManager:
    settings = get_settings()
    if "://" in settings.redis:
        pool, endpoint = _pool_from_url(settings.redis)
    else:
        pool, endpoint = _pool_from_cache(settings.redis)
    pool.connection_kwargs["socket_timeout"] = reply_timeout
    pool.connection_kwargs.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
    # Every operation may be sent twice, so a connection that was closed meanwhile heals unnoticed.
    pool.connection_kwargs["retry"] = Retry(ExponentialBackoff(cap=0.2, base=0.02), 2)
    pool.connection_kwargs["retry_on_error"] = [ConnectionError, TimeoutError]
    return LockManager(Redis(connection_pool=pool), settings.prefix, endpoint)


def _pool_from_url(url: str) -> tuple[ConnectionPool, str]:
    if urlsplit(url).scheme == "embedded":
        from django_task_locks.embedded import socket_url

        url = socket_url(url)
    try:
        return ConnectionPool.from_url(url), _endpoint(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"TASK_LOCKS['redis'] is {_endpoint(url)!r}: {error}") from None


def _pool_from_cache(alias: str) -> tuple[ConnectionPool, str]:
    url, options = _cache_parameters(alias)
    # A pool of our own: django-redis shares one per URL, whatever the options, and a blocking wait
    # needs another timeout than a cache does.
    factory = get_connection_factory(options)
    pool = factory.get_connection_pool(factory.make_connection_params(url))
    return pool, _endpoint(url)


def _cache_parameters(alias: str) -> tuple[str, dict[str, Any]]:
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
    return client._server[0], dict(client._options)


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = parts.hostname or "localhost"
    return f"{host}:{parts.port or 6379}{parts.path if parts.path != '/' else ''}"


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("TASK_LOCKS", "CACHES"):
        close_connections()
        _shared_manager.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_task_locks.connections")
