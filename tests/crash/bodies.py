"""Bodies of the tasks at crash points."""

import os
import signal

from django_task_locks import current_task
from tests.crash import evidence


def work(file: str, label: str, seconds: float = 0.0) -> str:
    """Is there for so many seconds."""
    task = current_task()
    assert task is not None
    with evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared) as stamp:
        stamp.go_on(seconds)
    return label


def die(file: str, label: str) -> None:
    """Ends its process as the kernel does that has no memory left."""
    task = current_task()
    assert task is not None
    with evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared):
        os.kill(os.getpid(), signal.SIGKILL)
