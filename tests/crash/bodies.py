"""Bodies of the tasks at crash points."""

import os
import signal
from pathlib import Path

from django_task_locks import current_task, hold, presence
from tests.crash import evidence


def work(file: str, label: str, seconds: float = 0.0) -> str:
    """Is there for so many seconds."""
    task = current_task()
    assert task is not None
    with evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared) as stamp:
        stamp.go_on(seconds)
    return label


def work_and_hold(file: str, label: str, seconds: float, resource: str) -> str:
    """Holds something besides, all the time."""
    task = current_task()
    assert task is not None
    with (
        evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared),
        hold(exclusive=resource, timeout=5) as held,
        evidence.recorded(file, f"hold of {label}", held.id, [resource], []) as stamp,
    ):
        stamp.go_on(seconds)
    return label


def work_through_loss(file: str, label: str, seconds: float, sign: str) -> str:
    """Goes on for so many seconds after the locks were lost, which the sign tells."""
    task = current_task()
    assert task is not None
    with evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared) as stamp:
        stamp.go_on(5.0, until=Path(sign))
        presence.nudge()
        stamp.go_on(seconds)
    return label


def die(file: str, label: str) -> None:
    """Ends its process as the kernel does that has no memory left."""
    task = current_task()
    assert task is not None
    with evidence.recorded(file, label, str(task.pk), task.exclusive, task.shared):
        os.kill(os.getpid(), signal.SIGKILL)
