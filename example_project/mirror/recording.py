"""Writes down when a body runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_task_locks import current_task

from mirror.models import TaskRun


@contextmanager
def recorded_run() -> Iterator[None]:
    """Records begin and end of the task that runs here; outside of a task it does nothing.

    Decorates a task: `@recorded_run()`. The begin is read before anything else happens and the
    end after everything else, and both are committed at once: a process that is killed in between
    leaves a begin without an end.
    """
    began = time.monotonic_ns()
    task = current_task()
    if task is None:
        yield
        return
    run = TaskRun.objects.create(
        task_id=task.id,
        name=task.name,
        worker=task.worker_name or "",
        incarnation=task.app_lock_id,
        pid=os.getpid(),
        began=began,
    )
    try:
        yield
    finally:
        TaskRun.objects.filter(pk=run.pk).update(ended=time.monotonic_ns())
