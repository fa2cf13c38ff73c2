"""Typed settings from the one dict TASK_LOCKS: validated as a whole, read anew when they change."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_task_locks.locks.keys import Keys

CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
URL_SCHEMES = ("redis", "rediss", "unix", *CLUSTER_SCHEMES, "embedded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What TASK_LOCKS says; all durations are seconds.

    redis                 alias of a django-redis cache, or a URL: redis://, rediss://, unix://,
                          redis+cluster://host:port,host:port, or embedded://<directory> for a
                          server of its own in development
    prefix                first part of every Redis key; two deployments on one server differ in it
    ttl                   so long without a heartbeat makes a process missing
    heartbeat_interval    time between two heartbeats; a third of the TTL at most (default: a sixth)
    cleanup_interval      time between two periodic clean-ups (default: the TTL)
    shutdown_grace        time that running tasks get at SIGINT before they are aborted
    immediate_time_limit  time that an immediate coroutine may take; None for no limit
    connect_timeout       time that a connection to Redis may take to be made
    reply_timeout         time that an answer of Redis may take
    retry_delay           before the second attempt of a task; doubled with each further one, of
                          which a random part is waited
    retry_delay_limit     longest time between two attempts
    retries               how often an operation is sent again whose connection broke; after these
                          Redis counts as unavailable
    check_server          whether a connection is used only if it leads to the server that holds the
                          locks, by its run id; False where servers hide that (proxies, some managed
                          ones): then a failover that loses the last writes goes unnoticed
    versions              what tasks with `versions` this process can run, as {"app": ["1", "2"]};
                          or a callable that returns it, or its dotted path
    run_dir               directory of the lock files that tell whether a process of this host lives
    """

    redis: str = "default"
    prefix: str = "task_locks"
    ttl: float = 30.0
    heartbeat_interval: float = 5.0
    cleanup_interval: float = 30.0
    shutdown_grace: float = 10.0
    immediate_time_limit: float | None = 5.0
    connect_timeout: float = 3.0
    reply_timeout: float = 5.0
    retry_delay: float = 1.0
    retry_delay_limit: float = 600.0
    retries: int = 2
    check_server: bool = True
    versions: Any = field(default_factory=dict)
    run_dir: str = ""


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "non-empty text is accepted"


def _redis(value: Any) -> str | None:
    if problem := _text(value):
        return problem
    scheme = urlsplit(value).scheme if "://" in value else None
    if scheme is not None and scheme not in URL_SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in URL_SCHEMES)
        return f"an alias of CACHES or a URL of {schemes} is accepted"
    return None


def _prefix(value: Any) -> str | None:
    try:
        Keys(value)
    except (ValueError, TypeError):
        return "1 to 64 letters, digits or any of _.:/@- are accepted"
    return None


def _path(value: Any) -> str | None:
    return None if isinstance(value, str | Path) and str(value) else "a directory is accepted"


def _seconds(low: float, high: float, *, optional: bool = False) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if optional and value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return None
        return f"seconds from {low:g} to {high:g}{' or None' if optional else ''} are accepted"

    return check


def _count(most: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            return None
        return f"a whole number from 0 to {most} is accepted"

    return check


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False is accepted"


def _versions(value: Any) -> str | None:
    if callable(value) or isinstance(value, Mapping) or (isinstance(value, str) and "." in value):
        return None  # what is in it is checked when it is used
    return "a dict of names to versions, or a callable that returns one, is accepted"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "redis": _redis,
    "prefix": _prefix,
    "ttl": _seconds(0.5, 86_400),
    "heartbeat_interval": _seconds(0.05, 28_800),
    "cleanup_interval": _seconds(0.1, 86_400),
    "shutdown_grace": _seconds(0, 86_400),
    "immediate_time_limit": _seconds(0.001, 86_400, optional=True),
    "connect_timeout": _seconds(0.01, 600),
    "reply_timeout": _seconds(0.01, 600),
    "retry_delay": _seconds(0, 604_800),
    "retry_delay_limit": _seconds(0, 604_800),
    "retries": _count(100),
    "check_server": _flag,
    "versions": _versions,
    "run_dir": _path,
}


def _completed(given: Mapping[str, Any]) -> Settings:
    """The settings with defaults filled in, some of which follow from the TTL."""
    ttl = given.get("ttl", 30.0)
    derived = {
        "heartbeat_interval": ttl / 6,
        "cleanup_interval": ttl,
        "run_dir": Path(tempfile.gettempdir()) / f"django-task-locks-run-{os.getuid()}",
    }
    values = derived | dict(given)
    return Settings(**values | {"run_dir": str(values["run_dir"])})


def _shown(value: Any) -> str:
    """The value in a message: of a URL, which may have a password, the scheme and the host."""
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(value)
        return repr(f"{parts.scheme}://{parts.hostname or ''}")
    return repr(value)


def problems(given: Any) -> list[str]:
    """What is wrong with a TASK_LOCKS value, a sentence each, with the key and what is accepted."""
    if not isinstance(given, Mapping):
        return [f"TASK_LOCKS is {given!r}: a dict is accepted."]
    found = []
    for key, value in given.items():
        if key not in _CHECKS:
            close = get_close_matches(str(key), _CHECKS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            found.append(
                f"TASK_LOCKS[{key!r}] is unknown: {hint}Known are {', '.join(map(repr, _CHECKS))}."
            )
        elif problem := _CHECKS[key](value):
            found.append(f"TASK_LOCKS[{key!r}] is {_shown(value)}: {problem}.")
    if not found:
        complete = _completed(given)
        if complete.heartbeat_interval > complete.ttl / 3:
            found.append(
                f"TASK_LOCKS['heartbeat_interval'] is {complete.heartbeat_interval!r} at a TTL of "
                f"{complete.ttl!r}: at most a third of it ({complete.ttl / 3:g}) is accepted, so "
                "that one late beat does not make a process missing."
            )
    return found


@cache
def get_settings() -> Settings:
    """The validated settings; raises ImproperlyConfigured with everything that is wrong."""
    given = getattr(settings, "TASK_LOCKS", {})
    if found := problems(given):
        raise ImproperlyConfigured(" ".join(found))
    return _completed(given)


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "TASK_LOCKS":
        get_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_task_locks.conf")
