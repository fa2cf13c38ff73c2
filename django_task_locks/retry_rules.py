"""Which exceptions earn another attempt, and how long that one is put off."""

import random
from typing import Any

from django.utils.module_loading import import_string

from django_task_locks.exceptions import InvalidTask

MOST_SECONDS = 7 * 86_400
_LAST_DOUBLING = 60


def exception_paths(retry_on: Any, name: str) -> list[str]:
    """The dotted paths of exception classes, given as classes or paths, one or a list of them.

    name  of the task, for the message of InvalidTask, raised for what is no Exception class that a
          worker can import
    """
    given = retry_on if isinstance(retry_on, list | tuple | set | frozenset) else [retry_on]
    return sorted({_path(item, name) for item in given})


def _path(item: Any, name: str) -> str:
    try:
        found = import_string(item) if isinstance(item, str) else item
        if isinstance(found, type) and issubclass(found, Exception):
            path = _name(found)
            if import_string(path) is found:
                return path
    except (ImportError, ValueError):
        pass
    raise InvalidTask(
        f"retry_on {item!r} of {name}: subclasses of Exception that workers can import, or their "
        "dotted paths such as 'requests.exceptions.ConnectionError', are accepted"
    )


def kinds(error: BaseException) -> frozenset[str]:
    """The dotted paths of its class and of all bases: what a `retry_on` may name."""
    return frozenset(_name(kind) for kind in type(error).__mro__)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def delay(attempt: int, base: float, limit: float) -> float:
    """Seconds after the failure of this attempt (the first is 1): exponential back-off with full
    jitter, so that tasks that failed together do not come back together.
    """
    ceiling = min(limit, base * 2.0 ** min(attempt - 1, _LAST_DOUBLING))
    return random.uniform(0.0, ceiling)  # noqa: S311
