"""dispatch and cancel_task: how tasks come and go."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import router, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from django_task_locks import execution, payloads, presence, releasing
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidTask, InvalidTransition, LockServiceUnavailable
from django_task_locks.execution import Outcome, current_task
from django_task_locks.locks.requests import (
    Claimant,
    Grant,
    Lane,
    LockRequest,
    validated_priority,
    validated_queue,
)
from django_task_locks.locks.resources import normalized, resource_names
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import OnWorkerLoss, State, Task, TaskGroup, reason

_CANCEL_ROUNDS = 20

Function = Callable[..., Any] | str


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
    on_worker_loss  "fail", or "requeue" for another of `max_attempts` attempts when the process
                    that runs it is lost

    The row is written in the caller's transaction, if there is one, and the request for the
    resources is sent on its commit: a rollback leaves nothing. If the lock service is away then,
    the task stands and its request is sent by the periodic clean-up.

    Raises InvalidTask or InvalidResource before anything is written.
    """
    order = _Order(
        func, args, kwargs, exclusive, shared, immediate, deferred, queue, priority, task_group,
        on_worker_loss, max_attempts,
    )  # fmt: skip
    return _dispatched(order.task())


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
) -> Task:
    """As `dispatch`. An immediate coroutine function runs in this event loop.

    Canceled while it waits or runs, an immediate task is recorded as canceled and released.
    """
    order = _Order(
        func, args, kwargs, exclusive, shared, immediate, deferred, queue, priority, task_group,
        on_worker_loss, max_attempts,
    )  # fmt: skip
    task = await sync_to_async(order.task)()
    if not immediate or not iscoroutinefunction(execution.load_function(task.name)):
        return await sync_to_async(_dispatched)(task)
    acquiring = asyncio.ensure_future(sync_to_async(_acquired)(task))
    try:
        run = await asyncio.shield(acquiring)
    except asyncio.CancelledError:
        # The thread goes on and may be granted the locks yet: it is waited for, then undone.
        if run := await acquiring:
            await sync_to_async(run.finish)(_canceled_outcome())
        raise
    if run is None:
        return task
    try:
        outcome = await execution.arun(task, get_settings().immediate_time_limit)
    except BaseException:
        await asyncio.shield(sync_to_async(run.finish)(_canceled_outcome()))
        raise
    await asyncio.shield(sync_to_async(run.finish)(outcome))
    return task


def cancel_task(task: Task | UUID | str) -> Task:
    """Cancels a task: a waiting one at once; a running one becomes canceling, and its process is
    told to stop the code and to record it as canceled. One that has ended is returned unchanged.

    Inside a transaction this counts when it is committed. Raises Task.DoesNotExist.
    """
    alias = router.db_for_write(Task)
    pk = task.pk if isinstance(task, Task) else task
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
        if found.state == State.CANCELING:
            transaction.on_commit(partial(_send_cancel, found), using=alias, robust=True)
        return found
    raise InvalidTransition(
        f"task {pk} changed its state {_CANCEL_ROUNDS} times while it was being canceled; try again"
    )


async def acancel_task(task: Task | UUID | str) -> Task:
    """As `cancel_task`."""
    return await sync_to_async(cancel_task)(task)


def send_request(task: Task) -> None:
    """Sends the request of a waiting task to the lock manager; repeatable.

    Raises LockServiceUnavailable.
    """
    get_lock_manager().request(_lock_request(task))


# -- dispatching -----------------------------------------------------------------------------------


def _resolved(func: Any) -> tuple[str, Callable[..., Any]]:
    """The dotted path and the function itself, of either."""
    if isinstance(func, str):
        try:
            return func, execution.load_function(func)
        except ImportError as error:
            raise InvalidTask(
                f"function {func!r} cannot be imported ({error}); a dotted path such as "
                "'myapp.tasks.sync' is accepted"
            ) from None
    name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
    try:
        found = import_string(name)
    except ImportError:
        found = None
    if not callable(func) or found is not func or name.startswith("__main__."):
        raise InvalidTask(
            f"function {func!r} cannot be imported by workers as {name!r}: a function on the top "
            "level of a module, or its dotted path, is accepted"
        )
    return name, func


@dataclass(frozen=True, slots=True)
class _Order:
    """The arguments of a dispatch; `task` checks them all and writes nothing."""

    func: Any
    args: Any
    kwargs: Any
    exclusive: Any
    shared: Any
    immediate: Any
    deferred: Any
    queue: Any
    priority: Any
    task_group: Any
    on_worker_loss: Any
    max_attempts: Any

    def task(self) -> Task:
        name, _ = _resolved(self.func)
        if len(name) > 255:
            raise InvalidTask(f"function {name!r}: a path of up to 255 characters is accepted")
        self._check_arguments(name)
        self._check_options(name)
        exclusive, shared = normalized(resource_names(self.exclusive), resource_names(self.shared))
        return Task(
            name=name,
            args=list(self.args),
            kwargs=dict(self.kwargs or {}),
            exclusive=list(exclusive),
            shared=list(shared),
            immediate=bool(self.immediate),
            deferred=bool(self.deferred),
            queue=validated_queue(self.queue),
            priority=validated_priority(self.priority),
            task_group=self.task_group,
            on_worker_loss=self.on_worker_loss,
            max_attempts=self.max_attempts,
            parent_task=current_task(),
            created_at=timezone.now(),
        )

    def _check_arguments(self, name: str) -> None:
        if not isinstance(self.args, list | tuple):
            raise InvalidTask(f"args {self.args!r} of {name}: a list or tuple is accepted")
        if not isinstance(self.kwargs, Mapping | None):
            raise InvalidTask(f"kwargs {self.kwargs!r} of {name}: a dict or None is accepted")
        for what, value in (("args", list(self.args)), ("kwargs", dict(self.kwargs or {}))):
            if problem := payloads.problem(value):
                raise InvalidTask(
                    f"{what} {value!r} of {name}: {problem}; values that JSON can hold are accepted"
                )

    def _check_options(self, name: str) -> None:
        if not self.immediate and not self.deferred:
            raise InvalidTask(
                f"immediate=False and deferred=False leave no way to run {name}: give one of them"
            )
        if self.on_worker_loss not in OnWorkerLoss.values:
            raise InvalidTask(
                f"on_worker_loss {self.on_worker_loss!r} of {name}: "
                f"{' or '.join(map(repr, OnWorkerLoss.values))} is accepted"
            )
        attempts = self.max_attempts
        if (
            isinstance(attempts, bool)
            or not isinstance(attempts, int)
            or not 1 <= attempts <= 32_767
        ):
            raise InvalidTask(
                f"max_attempts {attempts!r} of {name}: a whole number from 1 to 32,767 is accepted"
            )
        group = self.task_group
        if group is not None and (not isinstance(group, TaskGroup) or group._state.adding):
            raise InvalidTask(f"task_group {group!r} of {name}: a saved TaskGroup is accepted")


def _dispatched(task: Task) -> Task:
    if not task.immediate:
        return _queued(task)
    run = _acquired(task)
    return run.here() if run else task


def _lock_request(task: Task, claimant: Claimant | None = None) -> LockRequest:
    return LockRequest(
        id=str(task.pk),
        exclusive=tuple(task.exclusive),
        shared=tuple(task.shared),
        priority=task.priority,
        lane=Lane(queue=task.queue, versions=task.versions),
        claimant=claimant,
        label=task.name,
    )


def _insert(task: Task) -> str:
    alias = router.db_for_write(Task)
    task.save(using=alias, force_insert=True)
    return alias


def _queued(task: Task) -> Task:
    alias = _insert(task)
    transaction.on_commit(partial(_send_or_warn, task), using=alias, robust=True)
    return task


def _send_or_warn(task: Task) -> None:
    try:
        send_request(task)
    except LockServiceUnavailable as error:
        emit("task.not_sent", task=task.pk, name=task.name, error=error)


def _send_cancel(task: Task) -> None:
    if task.app_lock is None:
        return
    try:
        get_lock_manager().send(task.app_lock.owner, f"cancel {task.pk}")
    except LockServiceUnavailable as error:
        emit("task.cancel_not_sent", task=task.pk, error=error)


# -- immediate -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ImmediateRun:
    """An immediate task that has its locks and its row."""

    task: Task
    alias: str

    def here(self) -> Task:
        try:
            outcome = self._run()
        except BaseException:
            self.finish(_canceled_outcome())
            raise
        self.finish(outcome)
        return self.task

    def finish(self, outcome: Outcome) -> None:
        execution.record(self.task, outcome)
        emit(
            "task.failed" if outcome.state == State.FAILED else "task.finished",
            task=self.task.pk,
            name=self.task.name,
            state=self.task.state,
        )

    def _run(self) -> Outcome:
        drive = execution.drive_within(get_settings().immediate_time_limit)
        if not transaction.get_connection(self.alias).in_atomic_block:
            return execution.run(self.task, drive)
        # In the caller's transaction: what the body wrote goes if it fails, and a database error
        # in it leaves the caller able to go on.
        try:
            with transaction.atomic(using=self.alias):
                outcome = execution.run(self.task, drive)
                if outcome.state != State.COMPLETED:
                    raise _Undo
        except _Undo:
            pass
        return outcome


class _Undo(Exception):
    """Rolls the body's savepoint back."""


def _canceled_outcome() -> Outcome:
    return Outcome(State.CANCELED, error=reason("Canceled by its caller."))


def _acquired(task: Task) -> _ImmediateRun | None:
    """Takes the locks and writes the row as running; None if the task is decided otherwise: then
    its row is written too.
    """
    present = presence.present()
    manager = get_lock_manager()
    id = str(task.pk)
    try:
        outcome = manager.try_request(_lock_request(task, present.claimant))
    except LockServiceUnavailable:
        # It may have been granted all the same.
        releasing.release(id, owner=present.owner)
        _not_run(task, "Lock service unavailable.")
        return None
    if not isinstance(outcome, Grant) or outcome.token is None:
        _not_run(task, "Resources temporarily unavailable.")
        return None
    try:
        alias = router.db_for_write(Task)
        if transaction.get_connection(alias).in_atomic_block:
            releasing.release_at_transaction_end(alias, id, outcome.token)
        task.state = State.RUNNING
        task.app_lock = present.status
        task.worker_name = present.status.name
        task.lock_token = outcome.token
        task.started_at = DatabaseNow()
        _insert(task)
        task.__dict__.pop("started_at", None)
    except BaseException:
        releasing.release(id, outcome.token)
        raise
    task.announce(State.WAITING)
    return _ImmediateRun(task, alias)


def _not_run(task: Task, why: str) -> None:
    if task.deferred:
        _queued(task)
        return
    task.state = State.CANCELED
    task.error = reason(why)
    task.finished_at = DatabaseNow()
    _insert(task)
    task.__dict__.pop("finished_at", None)
    task.announce(State.WAITING)
