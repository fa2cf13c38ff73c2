"""Another attempt after an exception: the row goes back to waiting, its locks are free meanwhile.

The database goes first. A process that dies after that leaves a waiting row and a request that it
holds or that is gone: who settles it hands back, and clean-up sends, by the row's time.
"""

from django.db import router, transaction

from django_task_locks import moments, releasing, retry_rules
from django_task_locks.conf import get_settings
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidTransition
from django_task_locks.execution import Outcome
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, described
from django_task_locks.sending import send_or_warn
from django_task_locks.states import State


def earns_another(task: Task, outcome: Outcome) -> bool:
    """Whether it failed with an exception of its `retry_on`, has attempts left, and may be run by a
    worker, who alone makes further attempts.
    """
    return (
        outcome.state == State.FAILED
        and task.deferred
        and task.attempt < task.max_attempts
        and not outcome.kinds.isdisjoint(task.retry_on)
    )


def put_back(task: Task, outcome: Outcome) -> bool:
    """running to waiting, with the error and the time of the next attempt, if the outcome earns it.

    False if it does not, or if the task is not this process's to decide: it is being canceled, or
    was taken. True again when it is repeated after a lost reply. Raises database errors.
    """
    if not earns_another(task, outcome):
        return False
    settings = get_settings()
    base = settings.retry_delay if task.retry_delay is None else task.retry_delay
    seconds = retry_rules.delay(task.attempt, base, settings.retry_delay_limit)
    try:
        task.put_back(
            token=task.lock_token, error=outcome.error, run_after=moments.in_seconds(seconds)
        )
    except InvalidTransition:
        rows = Task.objects.using(router.db_for_write(Task, instance=task))
        present = rows.filter(
            pk=task.pk, state=State.WAITING, lock_token=task.lock_token, attempt=task.attempt + 1
        ).first()
        if present is None:
            return False
        task.state, task.attempt = present.state, present.attempt
        task.run_after, task.error = present.run_after, present.error
    emit(
        "task.retry",
        task=task.pk,
        name=task.name,
        attempt=task.attempt,
        of=task.max_attempts,
        delay=seconds,
        reason=described(task.error) if task.error else "",
    )
    return True


def hand_back(manager: LockManager, task: Task, owner: str) -> None:
    """The request of a task that a worker has put back: nobody's until the row's time.

    Raises LockServiceUnavailable; repeatable.
    """
    manager.requeue(
        str(task.pk), owner=owner, token=task.lock_token, run_after=moments.unix(task.run_after)
    )


def leave_to_workers(task: Task, alias: str) -> None:
    """The same for an immediate task, whose request was its process's own and cannot wait: on
    commit it is released and sent anew.
    """

    def send() -> None:  # no partial: Django asks a hook that fails for its __qualname__
        releasing.release(releasing.Release(str(task.pk), task.lock_token))
        send_or_warn(task)

    transaction.on_commit(send, using=alias, robust=True)
