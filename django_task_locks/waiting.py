"""Waiting for the end of tasks, in sync and in async code.

What is to be done is a generator of steps, each of which knows how it is done in either of the
two: look at the row; have its request leave a sign; wait for the sign. The sign follows the commit
of the final state, so that one look after the mark was set is enough. What the sign does not tell
(Redis is away, or does not know the request) is found by looking again, with a bound.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import router, transaction

from django_task_locks.abilities import can_run
from django_task_locks.conf import get_settings
from django_task_locks.connections import (
    get_async_lock_manager,
    get_lock_manager,
    get_waiting_lock_manager,
)
from django_task_locks.context import running_tasks
from django_task_locks.exceptions import (
    TaskCanceled,
    TaskFailed,
    TaskLocksError,
    TaskTimeout,
    WouldDeadlock,
)
from django_task_locks.holding import check_timeout, conflict_around
from django_task_locks.holding import described as described_blocker
from django_task_locks.locks.requests import Blocker
from django_task_locks.models import AppStatus, GroupSummary, Task, TaskGroup, described
from django_task_locks.states import State

R = TypeVar("R")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Step(Protocol):
    def here(self) -> Any: ...
    async def there(self) -> Any: ...


Steps = Generator[Step, Any, R]


def here(steps: Steps[R]) -> R:
    """Does the steps in this thread; returns what they return."""
    reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = step.here()


async def there(steps: Steps[R]) -> R:
    """Does them in the running event loop."""
    reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        reply = await step.there()


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ask:
    """A question to the database, or to whatever else blocks for a moment."""

    question: Callable[[], Any]

    def here(self) -> Any:
        return self.question()

    async def there(self) -> Any:
        return await sync_to_async(self.question)()


@dataclass(frozen=True, slots=True)
class _Watch:
    """Whether the end of the task's request will leave a sign."""

    id: str

    def here(self) -> bool:
        try:
            return get_lock_manager().watch(self.id)
        except TaskLocksError:
            return False

    async def there(self) -> bool:
        try:
            return await (await get_async_lock_manager()).watch(self.id)
        except TaskLocksError:
            return False


@dataclass(frozen=True, slots=True)
class _AwaitSign:
    """Whether the wait was a wait: for the sign, or to its end. Not so while Redis is away."""

    id: str
    seconds: float

    def here(self) -> bool:
        try:
            get_waiting_lock_manager().wait_for_end(self.id, self.seconds)
        except TaskLocksError:
            return False
        return True

    async def there(self) -> bool:
        try:
            await (await get_async_lock_manager()).wait_for_end(self.id, self.seconds)
        except TaskLocksError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float

    def here(self) -> None:
        time.sleep(self.seconds)

    async def there(self) -> None:
        await asyncio.sleep(self.seconds)


# -- what to wait for ------------------------------------------------------------------------------


class _Limit:
    def __init__(self, timeout: float | None) -> None:
        check_timeout(timeout)
        self.timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds of the next wait at most; 0 when the time is over."""
        longest = get_settings().heartbeat_interval
        if self._deadline is None:
            return longest
        return max(0.0, min(longest, self._deadline - time.monotonic()))


def result_of(task: Task, timeout: float | None) -> Steps[Any]:
    limit = _Limit(timeout)
    if not (yield from _until_final(task, limit)):
        message, blockers = yield _Ask(lambda: _why_not(task))
        raise TaskTimeout(
            f"{_name(task)} has not ended within {timeout:g} s: {message}", task, blockers
        )
    if task.state == State.COMPLETED:
        return task.result
    why = f"{_name(task)} {'failed' if task.state == State.FAILED else 'was canceled'}"
    if task.error:
        why += f": {described(task.error)}"
    raise (TaskFailed if task.state == State.FAILED else TaskCanceled)(why, task)


def end_of_group(group: TaskGroup, timeout: float | None) -> Steps[GroupSummary]:
    limit = _Limit(timeout)
    while member := (yield _Ask(lambda: _next_member(group))):
        if not (yield from _until_final(member, limit)):
            message, blockers = yield _Ask(lambda: _why_not(member))
            so_far: GroupSummary = yield _Ask(group.summary)
            raise TaskTimeout(
                f"group {group} has not ended within {timeout:g} s: {so_far.done} of "
                f"{so_far.total} tasks have. {_name(member)}: {message}",
                member,
                blockers,
            )
    summary: GroupSummary = yield _Ask(group.summary)
    yield _Ask(lambda: group.refresh_from_db(using=router.db_for_write(TaskGroup)))
    return summary


def _until_final(task: Task, limit: _Limit) -> Steps[bool]:
    """Whether it has ended; False when the time is over."""
    id, pause = str(task.pk), _FIRST_PAUSE
    look = _Ask(lambda: _has_ended(task))
    if (yield look):
        return True
    if limit.timeout != 0:
        yield _Ask(lambda: _refuse_deadlock(task))
    while seconds := limit.left:
        is_watched = yield _Watch(id)
        if (yield look):
            return True
        if is_watched and (yield _AwaitSign(id, seconds)):
            pause = _FIRST_PAUSE
        else:
            yield _Pause(min(pause, seconds))
            pause = min(pause * 2, _LONGEST_PAUSE)
    return bool((yield look))


def _has_ended(task: Task) -> bool:
    task.refresh_from_db(using=router.db_for_write(Task, instance=task))
    return task.is_final


def _next_member(group: TaskGroup) -> Task | None:
    members = Task.objects.using(router.db_for_write(Task)).filter(task_group=group).incomplete()
    running = [task.pk for task in running_tasks()]
    own = members.filter(pk__in=running).first()
    if own is not None:
        raise WouldDeadlock(f"{_name(own)} is a member of group {group}, whose end it waits for")
    return members.order_by("pk").first()


def _refuse_deadlock(task: Task) -> None:
    if any(task.pk == running.pk for running in running_tasks()):
        raise WouldDeadlock(f"{_name(task)} would wait for its own end")
    if transaction.get_connection(router.db_for_write(Task, instance=task)).in_atomic_block:
        raise WouldDeadlock(
            f"{_name(task)} is waited for inside a transaction, which may hide the task from those "
            "who run it, or its end from here: wait after the commit"
        )
    if task.state == State.WAITING and (found := conflict_around(task.exclusive, task.shared)):
        raise WouldDeadlock(
            f"{found}, around this code, and {_name(task)} cannot start before that is free: wait "
            "for it outside"
        )


# -- why it has not ended --------------------------------------------------------------------------


def _name(task: Task) -> str:
    return f"task {task.pk} ({task.name})"


def _why_not(task: Task) -> tuple[str, tuple[Blocker, ...]]:
    if task.state != State.WAITING:
        return f"it is {task.state} in {task.worker_name or 'nobody knows what'}", ()
    message = "it is waiting"
    if task.versions:
        workers = AppStatus.objects.using(router.db_for_write(AppStatus)).online()
        workers = workers.filter(app_type=AppStatus.AppType.WORKER)
        if not any(can_run(worker.versions, task.versions) for worker in workers):
            message += f", and no worker is online that has the versions {task.versions}"
    try:
        info = get_lock_manager().inspect_request(str(task.pk))
    except TaskLocksError as error:
        return f"{message} ({error})", ()
    if info is None:
        return f"{message}, and the lock service does not know it", ()
    if not info.blockers:
        return f"{message} for a worker", ()
    return (
        f"{message}. In the way: {'; '.join(map(described_blocker, info.blockers))}",
        info.blockers,
    )
