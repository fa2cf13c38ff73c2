"""The start of a worker waits for the lock service and the database, however long they are away.

What no waiting can mend refuses the start: wrong settings, a wrong password of the lock service,
tables that are not there.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router
from django.db.utils import InterfaceError, InternalError, OperationalError
from redis.exceptions import AuthenticationError

from django_task_locks.conf import get_settings
from django_task_locks.connections import (
    eviction_policy,
    get_lock_manager,
    rebuilding_lock_manager,
)
from django_task_locks.events import emit
from django_task_locks.exceptions import (
    DatabaseUnavailable,
    ForeignValue,
    LockServiceUnavailable,
    TaskLocksError,
)
from django_task_locks.locks.failures import ERRORS
from django_task_locks.models import AppStatus
from django_task_locks.worker.guard import now
from django_task_locks.worker.heartbeat import is_busy_sqlite, limit_time
from django_task_locks.worker.os_signals import SupervisorSignals, wake_self

R = TypeVar("R")

_FIRST_DELAY = 1.0
_LONGEST_DELAY = 15.0
_LONGEST_ROUND = 1.0
_SHORT = 0.5

LOCKS, DATABASE = "lock service", "database"


class CannotStart(TaskLocksError):
    """The worker cannot start."""


def warn_of_eviction() -> None:
    """Says so in the log if the server drops locks when its memory is full; nothing if it is away,
    or does not tell.
    """
    endpoint, policy = eviction_policy(_SHORT)
    if policy:
        emit("worker.evicting", redis=endpoint, policy=policy)


def is_away(error: Exception) -> bool:
    """Whether the error of a service says that it is away, and may come back by itself. A database
    that refuses a password cannot be told from one that is away.
    """
    if isinstance(error, LockServiceUnavailable):
        return not isinstance(error.__cause__, AuthenticationError)
    # Of PostgreSQL an internal error, too, tells that a server is no longer, or not yet, the first.
    if isinstance(error, OperationalError | InterfaceError | InternalError):
        return connections[_alias()].vendor != "sqlite" or is_busy_sqlite(error)
    return False


class Services:
    """What a worker needs before it can begin; a signal to stop ends every wait at once."""

    def __init__(self, signals: SupervisorSignals) -> None:
        """Raises CannotStart for settings that lead nowhere. Connects to nothing yet."""
        self._signals = signals
        try:
            get_lock_manager()
        except (TaskLocksError, ImproperlyConfigured) as error:
            raise CannotStart(str(error)) from error

    def patiently(self, begin: Callable[[], R]) -> R | None:
        """What `begin` returns, which is called when both services answer, and again after each
        time that one is away meanwhile. None: the worker was asked to stop first.

        Raises CannotStart for what does not get better by waiting.
        """
        delay, missed = _FIRST_DELAY, False
        while not self._signals.is_asked_to_stop:
            away = self._look()
            if away is None:
                return None
            if not away:
                if missed:
                    emit("worker.available", what="all that it needs")
                    missed = False
                try:
                    return begin()
                except _ERRORS as error:
                    connections.close_all()
                    away = {_kind(error): _refused_unless_away(error)}
            missed = True
            emit(
                "worker.waiting",
                what=" and ".join(_described(kind) for kind in away),
                next_try_in=delay,
                error="; ".join(" ".join(str(error).split()) for error in away.values()),
            )
            self._sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        return None

    def ask(self) -> None:
        """Raises the error of a service that does not answer."""
        for question in _QUESTIONS.values():
            question()

    def _look(self) -> dict[str, Exception] | None:
        """The services that are away, with their errors; None if the worker is asked to stop."""
        look = _Look()
        look.start()
        while not look.has_ended.is_set():
            if self._signals.is_asked_to_stop:
                return None
            self._signals.wait(_LONGEST_ROUND)
        look.join()
        return {kind: _refused_unless_away(error) for kind, error in look.errors.items()}

    def _sleep(self, seconds: float) -> None:
        end = now() + seconds
        while (left := end - now()) > 0 and not self._signals.is_asked_to_stop:
            self._signals.wait(left)


class _Look(threading.Thread):
    """Asks both services, in a thread: a connection that hangs must not hold up a stop."""

    def __init__(self) -> None:
        super().__init__(name="task-locks-start", daemon=True)
        self.errors: dict[str, Exception] = {}
        self.has_ended = threading.Event()

    def run(self) -> None:
        try:
            limit_time(get_settings().reply_timeout)
            for kind, question in _QUESTIONS.items():
                try:
                    question()
                except _ERRORS as error:
                    self.errors[kind] = error
        finally:
            connections.close_all()
            self.has_ended.set()
            wake_self()


def _alias() -> str:
    return router.db_for_write(AppStatus)


def _ask_locks() -> None:
    # Whether it answers, whatever locks it has: a read that costs the same however many there are.
    manager = rebuilding_lock_manager()
    try:
        manager.lead_ends_in("cleanup")
    finally:
        manager.transport.drop_connections()


def _ask_database() -> None:
    AppStatus.objects.using(_alias()).exists()


_QUESTIONS = {LOCKS: _ask_locks, DATABASE: _ask_database}


_ERRORS = (
    *ERRORS,
    DatabaseError,
    InterfaceError,
    ImproperlyConfigured,
    LockServiceUnavailable,
    ForeignValue,
)


def _kind(error: Exception) -> str:
    return DATABASE if isinstance(error, DatabaseError | InterfaceError) else LOCKS


def _described(kind: str) -> str:
    if kind == DATABASE:
        return f"{kind} {_alias()!r}"
    return f"{kind} at {get_lock_manager().endpoint}"


def _refused_unless_away(error: Exception) -> Exception:
    """The error, if its service is away."""
    if is_away(error):
        return error
    if isinstance(error, DatabaseError | InterfaceError):
        raise CannotStart(str(DatabaseUnavailable(error))) from error
    if isinstance(error, ImproperlyConfigured):
        raise CannotStart(str(error)) from error
    raise CannotStart(f"{error}. See TASK_LOCKS['redis'].") from error
