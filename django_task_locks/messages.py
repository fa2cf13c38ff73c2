"""Messages to a process, through its control channel: their words stand here alone."""

from uuid import UUID

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import TaskLocksError
from django_task_locks.locks import LockManager

_CANCEL = "cancel"
_LOOK_AT_EPOCH = "epoch"


def send_cancel(owner: str, task: UUID) -> None:
    """Asks a process to stop a task. Never raises for a lock service that is away: the process
    finds the row by itself at its next heartbeat.
    """
    try:
        get_lock_manager().send(owner, f"{_CANCEL} {task}")
    except TaskLocksError as error:
        emit("task.cancel_not_sent", task=task, owner=owner, error=error)


def task_to_cancel(message: str) -> UUID | None:
    """The task that a message asks to stop; None for a message that says something else."""
    word, _, argument = message.partition(" ")
    try:
        return UUID(argument) if word == _CANCEL else None
    except ValueError:
        return None


def send_look_at_epoch(manager: LockManager, owner: str) -> None:
    """Tells a process that the locks are rebuilt, which it would find at its next heartbeat."""
    manager.send(owner, _LOOK_AT_EPOCH)


def is_look_at_epoch(message: str) -> bool:
    return message == _LOOK_AT_EPOCH
