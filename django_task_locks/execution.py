"""Runs a task's body and records how it went."""

import asyncio
import traceback
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, OperationalError, connections, router
from django.utils.module_loading import import_string

from django_task_locks import coroutines, driver_states, payloads, releasing, retry_rules
from django_task_locks.context import as_current
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidTransition
from django_task_locks.models import Task, reason
from django_task_locks.releasing import Release
from django_task_locks.states import State

_MAX_TRACEBACK = 20_000
_MAX_MESSAGE = 4_000


class Interrupted(BaseException):
    """Raised in an executor's body to stop it, through every task that is nested in it. No body
    should catch it.
    """


def time_limit_exceeded(seconds: float) -> str:
    """What a task says that took longer than it may."""
    return f"Time limit of {seconds:.10g} s exceeded."


class BodyFault(Exception):
    """Something the body did for which its task fails, with this message."""


class TimeLimitExceeded(BodyFault):
    """A coroutine took longer than it may."""


class CancelHeeded(BodyFault):
    """A coroutine was stopped since its task is being canceled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    state: State
    result: Any = None
    error: dict[str, str] | None = None
    # Of an exception: its class and all bases, as `retry_on` may name them.
    kinds: frozenset[str] = frozenset()
    has_timed_out: bool = False

    @classmethod
    def failed(cls, message: str) -> "Outcome":
        return cls(State.FAILED, error=reason(message))

    @classmethod
    def timed_out(cls, error: TimeLimitExceeded) -> "Outcome":
        return cls(State.FAILED, error=reason(str(error)), has_timed_out=True)

    @classmethod
    def returned(cls, result: Any) -> "Outcome":
        if problem := payloads.problem(result):
            return cls.failed(
                f"The function returned {_shortened(repr(result), 200)}, which cannot be stored as "
                f"JSON: {problem}."
            )
        return cls(State.COMPLETED, result=result)

    @classmethod
    def raised(cls, error: BaseException) -> "Outcome":
        lines = traceback.format_exception(error)
        kind = type(error)
        try:
            message = str(error)
        except Exception as reason:  # of an exception that is itself at fault
            message = f"Its message cannot be shown ({type(reason).__name__})."
        return cls(
            State.FAILED,
            error={
                "type": f"{kind.__module__}.{kind.__qualname__}",
                "message": _storable(_shortened(message, _MAX_MESSAGE)),
                "traceback": _storable("".join(lines)[-_MAX_TRACEBACK:]),
            },
            kinds=retry_rules.kinds(error),
        )


def load_function(name: str) -> Callable[..., Any]:
    """The function of a dotted path; raises ImportError if there is none."""
    function = import_string(name)
    if not callable(function):
        raise ImportError(f"{name!r} is {function!r}, which cannot be called")
    return function  # type: ignore[no-any-return]


Drive = Callable[[Coroutine[Any, Any, Any]], Any]


def run(task: Task, drive: Drive = asyncio.run) -> Outcome:
    """Runs the body here, to its end; an error of the body is its outcome and never raised, only
    what stops this process's work is.

    drive runs a coroutine and returns its result, for a body that is one. The default keeps the
    event loop in this thread, where an `Interrupted` reaches it.
    """
    with as_current(task):
        try:
            function = load_function(task.name)
            result = function(*task.args, **task.kwargs)
            return Outcome.returned(drive(result) if iscoroutine(result) else result)
        except TimeLimitExceeded as error:
            return Outcome.timed_out(error)
        except BodyFault as error:
            return Outcome.failed(str(error))
        except (Interrupted, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit too: a task ends itself, not its process
            return Outcome.raised(error)


def drive_within(seconds: float | None, task: Task) -> Drive:
    """Runs a coroutine in the present thread's database context, stopped after so many seconds, or
    when the task is canceled.
    """

    def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return async_to_sync(within)(coroutine, seconds, task)

    return drive


async def within(coroutine: Coroutine[Any, Any, Any], seconds: float | None, task: Task) -> Any:
    """The coroutine's result; raises TimeLimitExceeded when the seconds are over, and CancelHeeded
    when the task is canceled before.
    """
    limit = asyncio.timeout(seconds)
    ends_at = limit.when()
    try:
        with coroutines.stoppable(task.pk, limit):
            async with limit:
                return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        if limit.when() != ends_at and (ends_at is None or (limit.when() or 0) < ends_at):
            raise CancelHeeded("Canceled while it ran.") from None
        raise TimeLimitExceeded(time_limit_exceeded(seconds or 0)) from None


async def arun(task: Task, seconds: float | None) -> Outcome:
    """As `run`, for a coroutine function, in the running event loop."""
    with as_current(task):
        try:
            return Outcome.returned(
                await within(load_function(task.name)(*task.args, **task.kwargs), seconds, task)
            )
        except TimeLimitExceeded as error:
            return Outcome.timed_out(error)
        except BodyFault as error:
            return Outcome.failed(str(error))
        except (Interrupted, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            return Outcome.raised(error)


async def ended(future: asyncio.Future[Any]) -> bool:
    """Returns when the future is done, however often the caller is canceled meanwhile; whether it
    was. (A shield protects from the first time only, and some libraries cancel again and again.)
    """
    was_canceled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            was_canceled = True
    return was_canceled


def aliases_in_transaction() -> set[str]:
    """The databases on which this thread is inside a transaction."""
    return {
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None
        and (
            connection.in_atomic_block
            or connection.autocommit is False
            or driver_states.is_in_transaction(connection.connection)
        )
    }


def with_connections_left(outcome: Outcome, before: Collection[str] = ()) -> Outcome:
    """The outcome, unless a body that has succeeded left its connections in a state in which what
    it wrote is lost.
    """
    problem = tidy_connections(before)
    return Outcome.failed(problem) if problem and outcome.state == State.COMPLETED else outcome


def tidy_connections(before: Collection[str] = ()) -> str:
    """Closes this thread's connections that are of no use to whoever comes next: closed behind
    Django's back, or in a transaction that was not there `before`, which is rolled back. Says what
    was wrong; empty if nothing was.
    """
    problem = ""
    for alias in aliases_in_transaction().difference(before):
        _forget_connection(alias)
        problem = f"The function left a transaction open on database {alias!r}; it was rolled back."
    for connection in connections.all(initialized_only=True):
        if connection.alias not in before and driver_states.is_closed(connection.connection):
            _forget_connection(connection.alias)
            problem = f"The function left the connection to database {connection.alias!r} unusable."
    return problem


def _forget_connection(alias: str) -> None:
    with suppress(Exception):
        connections[alias].close()
    del connections[alias]  # its successor knows of no transaction


def record(task: Task, outcome: Outcome) -> None:
    """Writes the outcome, once, if the task is still this process's; its locks follow.

    A task that is being canceled ends as canceled, whatever its body has returned. One whose
    outcome the database refuses ends as failed. Raises database errors that may pass: then nothing
    is recorded, and the call is repeated.
    """
    try:
        _record(task, outcome)
    except DatabaseError as error:
        if isinstance(error, OperationalError):
            raise
        _record(task, Outcome.failed(f"The outcome cannot be stored: {error}"))


def _record(task: Task, outcome: Outcome) -> None:
    token = task.lock_token
    try:
        task.finish(outcome.state, token=token, result=outcome.result, error=outcome.error)
    except InvalidTransition:
        present = _present_row(task)
        if present and present.lock_token == token and present.state == State.CANCELING:
            task.finish(
                State.CANCELED,
                token=token,
                error=reason("Canceled while it ran."),
                sources=[State.CANCELING],
            )
            return
        if not (present and present.lock_token == token and present.state == outcome.state):
            emit("task.late", task=task.pk, outcome=outcome.state.value)
        # Gone, decided elsewhere, or recorded by an attempt whose reply was lost: this claim's lock
        # has no use any more.
        releasing.release(Release(str(task.pk), token))


def _present_row(task: Task) -> Task | None:
    return Task.objects.using(router.db_for_write(Task, instance=task)).filter(pk=task.pk).first()


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _storable(text: str) -> str:
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
