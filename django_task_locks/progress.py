"""How far a running task has come: stored by a thread of its own, at most once a second.

The body only notes it: no database is asked in its thread, transaction or event loop, and none that
is away or slow concerns it. What was noted last goes with the outcome.
"""

import math
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.db import connections

from django_task_locks import payloads
from django_task_locks.context import running_tasks
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidProgress

if TYPE_CHECKING:
    from django_task_locks.models import Task

_INTERVAL = 1.0
_MOST_TEXT = 1_000


def report(task: "Task", done: float, total: float | None, message: str) -> None:
    """Notes the progress of a task whose body runs here; raises InvalidProgress for anything else,
    and for values that cannot be stored.
    """
    value = _validated(done, total, message)
    running = next((found for found in running_tasks() if found.pk == task.pk), None)
    if running is None:
        raise InvalidProgress(
            f"progress of {task} can be reported by its own code only, while it runs"
        )
    for noted in {id(found): found for found in (running, task)}.values():
        noted.progress = value
    running.has_news = True
    with _Reporter.lock:
        _Reporter.news[running.pk] = running
        if _Reporter.thread is None:
            _Reporter.thread = threading.Thread(
                target=_keep_storing, name="task-locks-progress", daemon=True
            )
            _Reporter.thread.start()


def _validated(done: Any, total: Any, message: Any) -> dict[str, Any]:
    for what, number in (("done", done), ("total", 0 if total is None else total)):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not math.isfinite(number) or number < 0:
            raise InvalidProgress(f"{what} {number!r}: a number from 0 is accepted")
    if not isinstance(message, str) or len(message) > _MOST_TEXT or payloads.problem(message):
        raise InvalidProgress(
            f"message {message!r}: text of up to {_MOST_TEXT:,} characters that can be stored as "
            "JSON is accepted"
        )
    return {"done": done, "total": total, "message": message}


class _Reporter:
    """Of this process; a forked child starts with none of it."""

    lock: ClassVar[threading.Lock] = threading.Lock()
    news: ClassVar[dict[UUID, "Task"]] = {}
    thread: ClassVar[threading.Thread | None] = None

    @classmethod
    def forget_in_child(cls) -> None:
        cls.lock, cls.news, cls.thread = threading.Lock(), {}, None


os.register_at_fork(after_in_child=_Reporter.forget_in_child)


def _keep_storing() -> None:
    pause = threading.Event().wait
    while True:
        with _Reporter.lock:
            news, _Reporter.news = _Reporter.news, {}
            if not news:
                _Reporter.thread = None
                return
        try:
            for task in news.values():
                task.store_progress()
        except Exception as error:  # the next report, or the outcome, brings it again
            emit("progress.not_stored", error=error)
        finally:
            connections.close_all()
        pause(_INTERVAL)
