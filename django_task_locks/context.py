"""Which tasks the present code belongs to. Imports no models, so that LOGGING may lead here."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_task_locks.models import Task

# Outermost first: an immediate task runs inside of the one that has dispatched it. What the code
# starts and waits for inherits it: coroutines, and the threads of sync_to_async.
_running: ContextVar[tuple["Task", ...]] = ContextVar("django_task_locks_running", default=())


def current_task() -> "Task | None":
    """The task whose body runs here, in sync and in async code; None outside of one.

    A thread that the body starts by other means than asgiref or asyncio.to_thread knows of it only
    if it is given the context (`contextvars.copy_context`).
    """
    running = _running.get()
    return running[-1] if running else None


def running_tasks() -> tuple["Task", ...]:
    """The tasks whose bodies are around this code, outermost first."""
    return _running.get()


@contextmanager
def as_current(task: "Task") -> Iterator[None]:
    """Within, the task is the current one."""
    token = _running.set((*_running.get(), task))
    try:
        yield
    finally:
        _running.reset(token)
