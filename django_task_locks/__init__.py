"""Background tasks that need exclusive or shared access to named resources."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from django_task_locks.bulk import adispatch_many, dispatch_many
    from django_task_locks.context import current_task
    from django_task_locks.dispatching import acancel_task, adispatch, cancel_task, dispatch
    from django_task_locks.holding import ahold, hold

# Resolved on first use: importing the package must work before Django's settings are there.
_HOMES = {
    "acancel_task": "dispatching",
    "adispatch": "dispatching",
    "adispatch_many": "bulk",
    "ahold": "holding",
    "cancel_task": "dispatching",
    "current_task": "context",
    "dispatch": "dispatching",
    "dispatch_many": "bulk",
    "hold": "holding",
}

__all__ = [
    "__version__",
    "acancel_task",
    "adispatch",
    "adispatch_many",
    "ahold",
    "cancel_task",
    "current_task",
    "dispatch",
    "dispatch_many",
    "hold",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
