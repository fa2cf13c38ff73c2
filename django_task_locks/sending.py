"""Sends the request of a waiting task to the lock manager."""

from django.db import transaction

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import TaskLocksError
from django_task_locks.models import Task
from django_task_locks.orders import lock_request


def send_request(task: Task) -> None:
    """Repeatable. Raises LockServiceUnavailable."""
    get_lock_manager().request(lock_request(task))


def send_on_commit(task: Task, alias: str) -> None:
    """Sends it when the present transaction is committed; at once without. A lock service that is
    away gets it by the next clean-up.
    """

    def send() -> None:  # no partial: Django asks a hook that fails for its __qualname__
        send_or_warn(task)

    transaction.on_commit(send, using=alias, robust=True)


def send_or_warn(task: Task) -> None:
    try:
        send_request(task)
    except TaskLocksError as error:  # a foreign value in the way, too: clean-up tries it again
        emit("task.not_sent", task=task.pk, name=task.name, error=error)
