"""System checks, one function each."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from django_task_locks import conf, connections


def check_settings(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> Sequence[CheckMessage]:
    """E001: TASK_LOCKS has an unknown key or a value that is not accepted."""
    return [
        Error(problem, id="django_task_locks.E001")
        for problem in conf.problems(getattr(settings, "TASK_LOCKS", {}))
    ]


def check_redis(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Sequence[CheckMessage]:
    """E002: the setting `redis` names no django-redis cache that can be used."""
    if conf.problems(getattr(settings, "TASK_LOCKS", {})):
        return []
    problem = connections.location_problem()
    return [Error(problem, id="django_task_locks.E002")] if problem else []


def check_caches_beside(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> Sequence[CheckMessage]:
    """W001: the clear() of a cache would delete all locks."""
    if check_settings(None) or check_redis(None):
        return []
    return [
        Warning(
            f"The locks are in the Redis database of the cache {alias!r}, whose clear() would "
            "delete them while tasks run.",
            hint="Give TASK_LOCKS['redis'] a database of its own, such as redis://host:6379/1.",
            id="django_task_locks.W001",
        )
        for alias in connections.caches_beside()
    ]


def check_eviction(
    app_configs: Sequence[AppConfig] | None, **kwargs: Any
) -> Sequence[CheckMessage]:
    """W002, with `check --deploy`, since it asks the server: when its memory is full it drops
    locks. Says nothing of a server that is away or does not tell.
    """
    if check_settings(None) or check_redis(None) or connections.is_embedded():
        return []
    endpoint, policy = connections.eviction_policy(conf.get_settings().connect_timeout)
    if not policy:
        return []
    return [
        Warning(
            f"The Redis server of the locks, {endpoint}, has the maxmemory-policy "
            f"{policy!r}: when its memory is full it drops locks while tasks run.",
            hint="Set maxmemory-policy to noeviction.",
            id="django_task_locks.W002",
        )
    ]


def register_all() -> None:
    register(check_settings, "django_task_locks")
    register(check_redis, "django_task_locks")
    register(check_caches_beside, "django_task_locks")
    register(check_eviction, "django_task_locks", deploy=True)
