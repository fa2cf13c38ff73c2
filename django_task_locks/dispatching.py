"""dispatch and cancel_task: how tasks come and go."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import router, transaction

from django_task_locks import coroutines, execution, messages
from django_task_locks import immediate as immediate_tasks
from django_task_locks.exceptions import InvalidTask, InvalidTransition, UniqueKeyTaken
from django_task_locks.execution import load_function
from django_task_locks.immediate import CANCELED_BY_CALLER
from django_task_locks.inserting import insert
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus, Task, TaskGroup, reason
from django_task_locks.orders import Order
from django_task_locks.sending import send_on_commit
from django_task_locks.sending import send_request as send_request
from django_task_locks.states import OnConflict, State

_CANCEL_ROUNDS = 20

Function = Callable[..., Any] | str
RetryOn = type[Exception] | str | Sequence[type[Exception] | str]


def dispatch(
    func: Function,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    exclusive: Any = (),
    shared: Any = (),
    immediate: bool = False,
    deferred: bool = True,
    queue: str = "default",
    priority: int = 0,
    task_group: TaskGroup | None = None,
    on_worker_loss: str = "fail",
    max_attempts: int = 1,
    run_after: datetime | timedelta | None = None,
    retry_on: RetryOn = (),
    retry_delay: float | None = None,
    time_limit: float | None = None,
    versions: Mapping[str, str] | None = None,
    unique_key: str | None = None,
    on_conflict: str = "return",
    on_timeout: str = "fail",
) -> Task:
    """Hands a task to the workers, or with `immediate` runs it here if its resources are free.

    func            a function of a module, sync or async, or its dotted path
    args, kwargs    what it is called with: values that JSON can hold
    exclusive       resources that nobody else may use meanwhile: names, saved model instances,
                    objects with lock_resource_name(), or a list of them
    shared          resources that others may share meanwhile
    immediate       try the locks now; granted, the task runs in this process and is returned
                    finished. Blocked, it waits for a worker (`deferred=True`) or is returned
                    canceled (`deferred=False`)
    priority        -100 to 100; a higher one goes first
    on_worker_loss  "fail", or "requeue" for another of `max_attempts` (2 or more) attempts when
                    the process that runs it is lost
    run_after       an aware datetime, or a timedelta from now: before that time the task takes no
                    place in any queue; not together with `immediate`
    retry_on        exception classes or their dotted paths: a body that raises one of them (or a
                    subclass) is run again by a worker, until `max_attempts` is reached. Its locks
                    are free meanwhile; the task waits with its last error. No other attempt follows
                    once it is being canceled
    retry_delay     seconds (default: the setting). After the n-th attempt a random time of up to
                    retry_delay * 2 ** (n - 1), and of up to the setting `retry_delay_limit`
    time_limit      seconds that the function may take in a worker: then it is stopped as by a
                    cancel, and fails. Of an immediate task it limits a coroutine, in place of the
                    setting `immediate_time_limit`
    versions        what a worker must be able to run, as in {"app": "2"}; workers that lack it
                    leave the task alone
    unique_key      while an incomplete task has this key, of whatever function, there is no second:
    on_conflict     "return" returns the present task, "raise" raises UniqueKeyTaken, "replace"
                    cancels the present one if it has not started (one that runs: UniqueKeyTaken)
    on_timeout      of an immediate coroutine that exceeds `immediate_time_limit`: "fail", or
                    "defer" to hand it to a worker, which runs it from its beginning
    task_group      a TaskGroup that has not finished

    The row is written in the caller's transaction, if there is one, and the request for the
    resources is sent on its commit: a rollback leaves nothing. If the lock service is away then,
    the task stands and its request is sent by the periodic clean-up.

    Raises InvalidTask, InvalidResource or UniqueKeyTaken; nothing is written then.
    """
    order = Order(
        func, args, kwargs, exclusive, shared, immediate, deferred, queue, priority, task_group,
        on_worker_loss, max_attempts, run_after, retry_on, retry_delay, time_limit,
        versions, unique_key, on_conflict, on_timeout,
    )  # fmt: skip
    return _dispatched(order, order.task())


async def adispatch(
    func: Function,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    exclusive: Any = (),
    shared: Any = (),
    immediate: bool = False,
    deferred: bool = True,
    queue: str = "default",
    priority: int = 0,
    task_group: TaskGroup | None = None,
    on_worker_loss: str = "fail",
    max_attempts: int = 1,
    run_after: datetime | timedelta | None = None,
    retry_on: RetryOn = (),
    retry_delay: float | None = None,
    time_limit: float | None = None,
    versions: Mapping[str, str] | None = None,
    unique_key: str | None = None,
    on_conflict: str = "return",
    on_timeout: str = "fail",
) -> Task:
    """As `dispatch`. An immediate coroutine function runs in this event loop.

    Canceled while it waits or runs, an immediate task is recorded as canceled and released.
    """
    order = Order(
        func, args, kwargs, exclusive, shared, immediate, deferred, queue, priority, task_group,
        on_worker_loss, max_attempts, run_after, retry_on, retry_delay, time_limit,
        versions, unique_key, on_conflict, on_timeout,
    )  # fmt: skip
    task = await sync_to_async(order.task)()
    if not immediate or not iscoroutinefunction(load_function(task.name)):
        return await sync_to_async(_dispatched)(order, task)
    # Each step in a thread goes to its end: it may have been granted the locks by then.
    acquiring = asyncio.ensure_future(sync_to_async(immediate_tasks.acquire)(order, task))
    was_canceled = await execution.ended(acquiring)
    try:
        run = acquiring.result()
    except UniqueKeyTaken as taken:
        if was_canceled:
            raise asyncio.CancelledError from None
        return _present(order, taken)
    if isinstance(run, str):
        if was_canceled:
            raise asyncio.CancelledError
        return await sync_to_async(_not_run)(order, task, run)
    try:
        if was_canceled:
            raise asyncio.CancelledError
        outcome = await execution.arun(task, immediate_tasks.time_limit(task))
    except BaseException:
        await _finished(run, CANCELED_BY_CALLER)
        raise
    if await _finished(run, outcome):
        raise asyncio.CancelledError
    return task


async def _finished(run: immediate_tasks.ImmediateRun, outcome: execution.Outcome) -> bool:
    """Whether the caller was canceled meanwhile."""
    finishing = asyncio.ensure_future(sync_to_async(run.finish)(outcome))
    was_canceled = await execution.ended(finishing)
    finishing.result()
    return was_canceled


def cancel_task(task: Task | UUID | str) -> Task:
    """Cancels a task: a waiting one at once; a running one becomes canceling, and its process is
    told to stop the code and to record it as canceled. One that has ended is returned unchanged.

    Inside a transaction this counts when it is committed. Raises Task.DoesNotExist, and InvalidTask
    for what is no id of a task.
    """
    alias = router.db_for_write(Task)
    pk = _task_id(task)
    for _ in range(_CANCEL_ROUNDS):
        found = Task.objects.using(alias).select_related("app_lock").get(pk=pk)
        if State(found.state).is_final:
            return found
        if found.state != State.CANCELING:
            try:
                found.request_cancel()
            except InvalidTransition:
                continue  # it went on in the meantime: look again
            if found.state == State.CANCELED:
                return found
            # Who runs it is known only now: it may have started after the first look.
            found = Task.objects.using(alias).select_related("app_lock").get(pk=pk)
        if found.state == State.CANCELING and found.app_lock is not None:
            _send_cancel_on_commit(found, found.app_lock, alias)
        return found
    raise InvalidTransition(
        f"task {pk} changed its state {_CANCEL_ROUNDS} times while it was being canceled; try again"
    )


def _task_id(task: Task | UUID | str) -> UUID:
    if isinstance(task, Task):
        return task.pk
    try:
        return task if isinstance(task, UUID) else UUID(task)
    except (ValueError, TypeError, AttributeError):
        raise InvalidTask(
            f"task {task!r}: a Task, or its id as a UUID or as text, is accepted"
        ) from None


def cancel_members(group: TaskGroup) -> int:
    """Cancels what of a group has not ended; returns how many tasks it was."""
    alias = router.db_for_write(Task)
    members = Task.objects.using(alias).filter(task_group=group).incomplete()
    canceled = 0
    for pk in list(members.order_by("pk").values_list("pk", flat=True)):
        with suppress(Task.DoesNotExist):  # deleted in the meantime
            canceled += cancel_task(pk).state in (State.CANCELED, State.CANCELING)
    return canceled


async def acancel_task(task: Task | UUID | str) -> Task:
    """As `cancel_task`."""
    return await sync_to_async(cancel_task)(task)


# -- dispatching -----------------------------------------------------------------------------------


def _dispatched(order: Order, task: Task) -> Task:
    try:
        if not task.immediate:
            return _queued(order, task)
        run = immediate_tasks.acquire(order, task)
        return _not_run(order, task, run) if isinstance(run, str) else run.here()
    except UniqueKeyTaken as taken:
        return _present(order, taken)


def _present(order: Order, taken: UniqueKeyTaken) -> Task:
    if order.on_conflict != OnConflict.RETURN or not isinstance(taken.task, Task):
        raise taken
    return taken.task


def _queued(order: Order, task: Task) -> Task:
    send_on_commit(task, insert(task, order.on_conflict))
    return task


def _send_cancel_on_commit(task: Task, process: AppStatus, alias: str) -> None:
    def send() -> None:
        coroutines.stop([task.pk])
        if process.app_type == AppStatus.AppType.WORKER:  # who reads its messages
            messages.send_cancel(process.owner, task.pk)

    transaction.on_commit(send, using=alias, robust=True)


def _not_run(order: Order, task: Task, why: str) -> Task:
    if task.deferred:
        return _queued(order, task)
    task.state = State.CANCELED
    task.error = reason(why)
    task.finished_at = DatabaseNow()
    insert(task, order.on_conflict)
    task.__dict__.pop("finished_at", None)
    task.announce(State.WAITING)
    return task
