"""Locks follow the task's state: the one place that releases in normal operation."""

from typing import Any

from django.dispatch import receiver

from django_task_locks import releasing
from django_task_locks.models import State, Task
from django_task_locks.signals import task_state_changed


def release_on_final_state(
    sender: type[Task], task: Task, old_state: State, new_state: State, **kwargs: Any
) -> None:
    if not new_state.is_final:
        return
    # A task that never started is nobody's: whoever has just claimed it will find it final. One
    # that ran is released for the claim that ran it and for no later one.
    releasing.release(str(task.pk), None if old_state == State.WAITING else task.lock_token)


def connect() -> None:
    receiver(task_state_changed, dispatch_uid="django_task_locks.release")(release_on_final_state)
