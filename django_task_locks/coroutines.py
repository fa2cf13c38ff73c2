"""The coroutines of immediate tasks that run in this process, and their end when somebody cancels
them: the heartbeat asks for their rows, and who cancels in this very process stops them at once.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar
from uuid import UUID

from django.db import router

from django_task_locks import presence
from django_task_locks.models import Task
from django_task_locks.states import State


class _Running:
    lock: ClassVar[threading.Lock] = threading.Lock()
    limits: ClassVar[dict[UUID, tuple[asyncio.AbstractEventLoop, asyncio.Timeout]]] = {}


@contextmanager
def stoppable(id: UUID, limit: asyncio.Timeout) -> Iterator[None]:
    """For the time of this block the limit ends early when the task is canceled."""
    presence.add_duty(heed_cancels)
    with _Running.lock:
        _Running.limits[id] = (asyncio.get_running_loop(), limit)
    try:
        yield
    finally:
        with _Running.lock:
            del _Running.limits[id]


def stop(ids: Iterable[UUID]) -> None:
    """Ends those of them that run in this process."""
    for id in ids:
        with _Running.lock:
            loop, limit = _Running.limits.get(id, (None, None))
        if loop is not None and limit is not None:
            with suppress(RuntimeError):  # the loop is closed: so is the coroutine
                loop.call_soon_threadsafe(_end_now, loop, limit)


def heed_cancels() -> None:
    """Ends those whose rows say that they are canceling."""
    with _Running.lock:
        ids = list(_Running.limits)
    if ids:
        rows = Task.objects.using(router.db_for_write(Task)).filter(pk__in=ids)
        stop(rows.filter(state=State.CANCELING).values_list("pk", flat=True))


def _end_now(loop: asyncio.AbstractEventLoop, limit: asyncio.Timeout) -> None:
    with suppress(RuntimeError):  # it has ended meanwhile
        limit.reschedule(loop.time())
