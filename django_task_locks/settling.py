"""Settles what a dead process or executor left behind: one task, one request at a time.

Everything here may be repeated, and raced by another clean-up: each change compares before it
writes, and the database goes first.
"""

from collections.abc import Collection
from uuid import UUID

from django.db import router

from django_task_locks import dispatching, moments
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidTransition
from django_task_locks.locks.reassertion import free_lost
from django_task_locks.models import Task, reason
from django_task_locks.states import OnWorkerLoss, State

# What becomes of a task, and of a request, as clean-up says it.
HAND_BACK = "hand back to the queue"
RELEASE, REQUEUE, FORGET, KEEP = "release", "requeue", "drop its entry", "leave it to its process"

MISSING = "Worker has gone missing."
CANCELED = "Canceled while it ran."


def may_retry(task: Task) -> bool:
    """Whether it gets another attempt after the loss of its process; by a worker, so that it must
    be one that may be deferred.
    """
    return (
        task.state == State.RUNNING
        and task.on_worker_loss == OnWorkerLoss.REQUEUE
        and task.deferred
        and task.attempt < task.max_attempts
    )


def settle_task(task: Task, why: str, *, is_its_fault: bool = False) -> bool:
    """Decides a running or canceling task whose code can run no more: canceled if it was being
    canceled, handed back if it may have another attempt, else failed with the reason. Its lock
    follows. With is_its_fault it gets no other attempt. False if somebody else decided it first.
    """
    token = task.lock_token
    try:
        if task.state == State.CANCELING:
            task.finish(
                State.CANCELED,
                token=token,
                error=reason(CANCELED),
                sources=[State.CANCELING],
            )
        elif may_retry(task) and not is_its_fault:
            task.put_back(token=token)
        else:
            task.finish(State.FAILED, token=token, error=reason(why))
    except InvalidTransition:
        return False
    kind = "task.canceled" if task.state == State.CANCELED else "recovery.task"
    emit(kind, task=task.pk, name=task.name, state=task.state, reason=why)
    return True


def settle_request(id: str, owner: str, why: str, *, is_its_fault: bool = False) -> str:
    """Ends a dead owner's request in the lock manager, by what its task's row says.

    Returns what was done: RELEASE, REQUEUE, FORGET (it is no longer this owner's), or KEEP (the row
    belongs to another process, which will release it).
    """
    manager = get_lock_manager()
    info = manager.inspect_request(id)
    if info is None or info.owner != owner:
        _forget(id, owner)
        return FORGET
    if info.token is not None and (pk := task_id(id)):
        # First of all: a start that its dead executor has sent, and that the database still holds
        # back, comes before this or never.
        Task(pk=pk).fence(info.token)
    task = find_task(id)
    if task is not None and task.state in State.owned() and task.lock_token == info.token:
        if not settle_task(task, why, is_its_fault=is_its_fault):
            task = find_task(id)
        info = manager.inspect_request(id)
        if info is None or info.owner != owner:
            return RELEASE  # it followed the task's state
    if task is not None and task.state == State.WAITING:
        run_after = moments.unix(task.run_after)
        if not manager.requeue(id, owner=owner, token=info.token, run_after=run_after).is_done:
            # An immediate task's request was its process's own and cannot wait: it is sent anew.
            manager.release(id, owner=owner, token=info.token)
            dispatching.send_request(task)
        emit("task.requeued", task=id, owner=owner, reason=why)
        return REQUEUE
    if task is not None and task.state in State.owned():
        return KEEP
    manager.release(id, owner=owner, token=info.token)
    emit("recovery.released", request=id, owner=owner, resources=len(info.exclusive + info.shared))
    return RELEASE


def _forget(id: str, owner: str) -> None:
    """Where Redis has lost the record alone, the locks may still name it."""
    task = find_task(id)
    if task is not None and task.is_final:
        free_lost(get_lock_manager(), id, owner, [*task.exclusive, *task.shared])
    else:
        get_lock_manager().forget_entry(id, owner)


def settle_lost(task: Task, owner: str, why: str, *, is_its_fault: bool = False) -> None:
    """Decides a task that an executor of this owner ran, as the row says, where the executor is
    dead and Redis has lost the request.
    """
    manager, id = get_lock_manager(), str(task.pk)
    if manager.inspect_request(id) is not None:
        return
    if settle_task(task, why, is_its_fault=is_its_fault):
        free_lost(manager, id, owner, [*task.exclusive, *task.shared])
        if task.state == State.WAITING:
            dispatching.send_request(task)


def plan_request(id: str, owner: str, ending: Collection[str]) -> str | None:
    """What `settle_request` would do with it; changes nothing. None: it would not come to that,
    since the request follows its task, which is one of those that are `ending`.
    """
    info = get_lock_manager().inspect_request(id)
    if info is None or info.owner != owner:
        return FORGET
    task = find_task(id)
    if task is None or task.is_final:
        return RELEASE
    is_its_own = task.lock_token == info.token
    if id in ending:
        return None if is_its_own else RELEASE
    if task.state == State.WAITING or (is_its_own and may_retry(task)):
        return REQUEUE
    return RELEASE if is_its_own else KEEP


def find_task(id: str) -> Task | None:
    """The task of a request, read where it is written; None for a hold or a task that is gone."""
    pk = task_id(id)
    return Task.objects.using(router.db_for_write(Task)).filter(pk=pk).first() if pk else None


def task_id(id: str) -> UUID | None:
    try:
        return UUID(id)
    except ValueError:
        return None
