"""Locks follow the task's state: the one place that releases in normal operation."""

from typing import Any

from django.db import transaction
from django.db.models.signals import pre_delete

from django_task_locks import grouping, messages, releasing
from django_task_locks.locks.keys import queue_owner
from django_task_locks.models import AppStatus, Task
from django_task_locks.releasing import Release
from django_task_locks.signals import task_state_changed
from django_task_locks.states import State


def release_on_final_state(
    sender: type[Task], task: Task, old_state: State, new_state: State, **kwargs: Any
) -> None:
    if not new_state.is_final:
        return
    # A task that never started is nobody's: whoever has just claimed it will find it final. One
    # that ran is released for the claim that ran it and for no later one.
    token = None if old_state == State.WAITING else task.lock_token
    releasing.release(Release(str(task.pk), token))


def end_group(sender: type[Task], task: Task, new_state: State, **kwargs: Any) -> None:
    if new_state.is_final and task.task_group_id is not None:
        grouping.finish_if_done(task.task_group_id)


def stop_on_delete(sender: type[Task], instance: Task, using: str, **kwargs: Any) -> None:
    """A row that is deleted while it waits leaves the queue. One that runs keeps its locks until
    its process has stopped the code and releases them itself.
    """
    if instance.is_final:
        return
    present = Task.objects.using(using).filter(pk=instance.pk).first() or instance
    if present.state in State.owned() and present.app_lock_id is not None:
        process = AppStatus(pk=present.app_lock_id, name=present.worker_name)

        def leave() -> None:
            messages.send_cancel(process.owner, present.pk)
    else:

        def leave() -> None:
            # Only while nobody has claimed it: it may start between the look and the deletion.
            releasing.release(Release(str(present.pk), owner=queue_owner(present.queue)))

    # No partial: Django asks a hook that fails for its __qualname__.
    transaction.on_commit(leave, using=using, robust=True)


def connect() -> None:
    task_state_changed.connect(release_on_final_state, dispatch_uid="django_task_locks.release")
    # After the release: what others wait for goes first.
    task_state_changed.connect(end_group, dispatch_uid="django_task_locks.group")
    pre_delete.connect(stop_on_delete, sender=Task, dispatch_uid="django_task_locks.delete")
