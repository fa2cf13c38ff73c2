"""Sends the request of a waiting task to the lock manager."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from django.db import router, transaction

from django_task_locks import releasing
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable, TaskLocksError
from django_task_locks.models import Task
from django_task_locks.orders import lock_request
from django_task_locks.states import State

# of one round trip
_MOST_REQUESTS = 1_000
_MOST_RESOURCES = 2_000


def send_request(task: Task) -> None:
    """Repeatable. Raises LockServiceUnavailable."""
    get_lock_manager().request(lock_request(task))


def send_on_commit(task: Task, alias: str) -> None:
    """Sends it when the present transaction is committed; at once without. A lock service that is
    away gets it later: from this process, or by the next clean-up.
    """

    def send() -> None:  # no partial: Django asks a hook that fails for its __qualname__
        send_or_warn(task)

    transaction.on_commit(send, using=alias, robust=True)


def send_or_warn(task: Task) -> None:
    try:
        send_request(task)
    except TaskLocksError as error:
        emit("task.not_sent", task=task.pk, name=task.name, error=error)
        if isinstance(error, LockServiceUnavailable):
            releasing.postpone(_Late(task.pk))
        # what a foreign value keeps away is tried again by clean-up
    else:
        _withdraw_ended([task])


def _withdraw_ended(tasks: Sequence[Task]) -> None:
    """Another look at those that somebody may have canceled, by their key or their group, before
    their dispatch has returned: a request that is sent after its end waits for nobody.
    """
    pks = [task.pk for task in tasks if task.unique_key is not None or task.task_group_id]
    if not pks:
        return
    rows = Task.objects.using(router.db_for_write(Task)).filter(pk__in=pks)
    for pk in set(pks).difference(rows.incomplete().values_list("pk", flat=True)):
        releasing.release(releasing.Release(str(pk)))


def send_late(id: UUID) -> bool:
    """Sends it if the task still waits; for a request that was not sent at its commit.

    Raises LockServiceUnavailable.
    """
    rows = Task.objects.using(router.db_for_write(Task)).filter(pk=id)
    task = rows.filter(state=State.WAITING).first()
    if task is None:
        return False
    send_request(task)
    # Another look: sent after its end it would wait for nobody.
    if not rows.incomplete().exists():
        get_lock_manager().release(str(id))
    return True


@dataclass(frozen=True, slots=True)
class _Late:
    task: UUID
    event: ClassVar[str] = "task.sent_late"

    @property
    def id(self) -> str:
        return str(self.task)

    def send(self) -> None:
        send_late(self.task)


def send_many_or_warn(tasks: Sequence[Task]) -> None:
    """As `send_or_warn` for each of them in this order, in few round trips."""
    sent = tried = 0
    for batch in _batches(tasks):
        tried += len(batch)
        try:
            outcomes = get_lock_manager().request_many(map(lock_request, batch))
        except TaskLocksError as error:
            emit("tasks.not_sent", count=len(tasks) - sent, first=batch[0].pk, error=error)
            if isinstance(error, LockServiceUnavailable):
                for task in tasks[sent:]:
                    releasing.postpone(_Late(task.pk))
            break
        sent += len(batch)
        for task, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, TaskLocksError):
                emit("task.not_sent", task=task.pk, name=task.name, error=outcome)
    for batch in _batches(tasks[:tried]):
        _withdraw_ended(batch)


def _batches(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """As many as keep the server for about ten milliseconds."""
    batch: list[Task] = []
    size = 0
    for task in tasks:
        batch.append(task)
        size += 1 + len(task.exclusive) + len(task.shared)
        if len(batch) == _MOST_REQUESTS or size >= _MOST_RESOURCES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
