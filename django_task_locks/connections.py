"""The lock managers of this process and of each event loop, from the settings."""

import asyncio
import os
from collections.abc import AsyncGenerator
from functools import cache

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_task_locks import epochs
from django_task_locks.conf import get_settings
from django_task_locks.endpoints import Endpoint, Limits
from django_task_locks.exceptions import LockServiceUnavailable, TaskLocksError
from django_task_locks.locks import AsyncLockManager, LockManager, eviction


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
    return _build(_limits(wait=longest_wait))


def quick_lock_manager(seconds: float) -> LockManager:
    """A lock manager with connections of its own that gives up after so many seconds, at once: for
    who has something more urgent to do.
    """
    return _build(Limits(seconds, seconds, 0, retries=0))


def rebuilding_lock_manager() -> LockManager:
    """A lock manager with connections of its own that asks for no epoch: it makes the next one, or
    restores what belongs to it.
    """
    return _without_epoch(_limits())


def restoring_lock_manager() -> LockManager:
    """As `rebuilding_lock_manager`, but gives up at once, in time for the next heartbeat of the
    thread that uses it.
    """
    settings = get_settings()
    seconds = min(settings.heartbeat_interval, settings.ttl / 6)
    return _without_epoch(Limits(seconds, seconds, 0, retries=0))


def _without_epoch(limits: Limits) -> LockManager:
    endpoint = Endpoint.from_settings()
    return LockManager(endpoint.transport(limits), get_settings().prefix, endpoint.name)


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
        # The connections to the sentinels are not its own.
        pool = getattr(manager.client, "connection_pool", None)
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            await sentinel.aclose()


def close_connections() -> None:
    """Closes what the synchronous lock managers of this process have opened; the next operation
    opens it again.
    """
    for manager in (_shared_manager, get_waiting_lock_manager):
        if manager.cache_info().currsize:
            manager().transport.drop_connections()


def is_embedded() -> bool:
    """Whether the server is one of our own making."""
    return get_settings().redis.startswith("embedded://")


def eviction_policy(seconds: float) -> tuple[str, str]:
    """How messages name the server, and its `maxmemory-policy` if that drops locks; "" for any
    other, also of a server that does not tell, or that is away: others say so.
    """
    manager = quick_lock_manager(seconds)
    try:
        return manager.endpoint, eviction.harmful_policy(manager)
    except LockServiceUnavailable:
        return manager.endpoint, ""
    finally:
        manager.transport.drop_connections()


def location_problem() -> str | None:
    """Why the setting `redis` leads nowhere, in a sentence; None if it does lead somewhere."""
    try:
        if is_embedded():
            from django_task_locks.embedded import check_url

            check_url(get_settings().redis)
        else:
            _build(_limits())  # connects to nothing yet
    except (ImproperlyConfigured, TaskLocksError) as error:
        return str(error)
    return None


def caches_beside() -> list[str]:
    """Aliases of the caches whose clear() would delete the locks."""
    if is_embedded():
        return []
    return Endpoint.from_settings().caches_beside()


# ------------------------------------------------------------------------------------------------

_AsyncEntry = tuple[AsyncLockManager, AsyncGenerator[AsyncLockManager, None]]
_async_managers: dict[asyncio.AbstractEventLoop, _AsyncEntry] = {}


@cache
def _shared_manager() -> LockManager:
    return _build(_limits())


@cache
def get_waiting_lock_manager() -> LockManager:
    """A second lock manager of this process, whose operations may wait for a heartbeat's interval:
    waiting holds up a connection, and needs a longer timeout than an answer.
    """
    return _build(_limits(wait=get_settings().heartbeat_interval))


def _limits(*, wait: float = 0) -> Limits:
    settings = get_settings()
    return Limits(settings.connect_timeout, settings.reply_timeout, wait, settings.retries)


def _build(limits: Limits) -> LockManager:
    endpoint = Endpoint.from_settings()
    prefix = get_settings().prefix
    return LockManager(endpoint.transport(limits), prefix, endpoint.name, epoch=epochs.Keeper())


def _build_async() -> AsyncLockManager:
    endpoint = Endpoint.from_settings()
    client = endpoint.async_client(_limits(wait=get_settings().heartbeat_interval))
    return AsyncLockManager(client, get_settings().prefix, endpoint.name, epoch=epochs.Keeper())


def _forget_managers() -> None:
    _shared_manager.cache_clear()
    get_waiting_lock_manager.cache_clear()
    _async_managers.clear()


# A thread that does not run in a forked child may have held the lock of a pool.
os.register_at_fork(after_in_child=_forget_managers)


def _on_change(*, setting: str, **kwargs: object) -> None:
    if setting in ("TASK_LOCKS", "CACHES"):
        close_connections()
        _forget_managers()


setting_changed.connect(_on_change, dispatch_uid="django_task_locks.connections")
