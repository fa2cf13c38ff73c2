"""Releases a request in normal operation: at once, with a worker's next step, or later if it must.

A release that could not be sent is kept and repeated by a daemon thread with growing delay, and so
is the request of a task: it neither blocks the caller nor hides the task's outcome. What a process
could not send before its end is found by clean-up.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from django.db import connections, transaction

from django_task_locks import own_requests
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks.reassertion import free_lost
from django_task_locks.locks.requests import Ended, LockRequest

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 1.0  # others wait for what nobody uses any more


@dataclass(frozen=True, slots=True)
class Release:
    """id and, where given, the owner and the token that the request must have."""

    id: str
    token: int | None = None
    owner: str = ""
    event: ClassVar[str] = "release.repeated"

    def send(self) -> Ended:
        return get_lock_manager().release(self.id, owner=self.owner, token=self.token)


class Postponed(Protocol):
    """What is sent for the request `id` when the lock service is back, and the event that tells."""

    @property
    def id(self) -> str: ...

    event: ClassVar[str]

    def send(self) -> object:
        """Raises LockServiceUnavailable to be repeated."""


Sink = Callable[[Release], bool]


class _State:
    """Of this process; a forked child starts with none of it."""

    # Reentrant: the garbage collector may run a finalizer, which releases, while it is held.
    lock: ClassVar[threading.RLock] = threading.RLock()
    pending: ClassVar[deque[Postponed]] = deque()
    thread: ClassVar[threading.Thread | None] = None
    sinks: ClassVar[list[Sink]] = []

    @classmethod
    def forget_in_child(cls) -> None:
        cls.lock = threading.RLock()
        cls.pending = deque()
        cls.thread = None
        cls.sinks = []


os.register_at_fork(after_in_child=_State.forget_in_child)


def add_sink(sink: Sink) -> None:
    """A sink that returns True has taken a release upon itself (an executor's next step)."""
    _State.sinks.append(sink)


def release(item: Release) -> None:
    """Releases; never raises for a lock service that is away. Interrupted, it releases later."""
    held = own_requests.forget(item.id)
    for sink in _State.sinks:
        if sink(item):
            return
    try:
        if item.send().status == "unknown" and held is not None:
            free_what_names(held)
    except LockServiceUnavailable as error:
        emit("release.postponed", request=item.id, error=error)
        postpone(item)
    except BaseException as error:
        if not isinstance(error, Exception):
            postpone(item)
        raise


def free_what_names(lost: LockRequest) -> None:
    """What this process held, and Redis has lost the record of. Raises LockServiceUnavailable."""
    free_lost(get_lock_manager(), lost.id, lost.owner, lost.exclusive + lost.shared)


def release_at_transaction_end(aliases: Iterable[str], item: Release) -> None:
    """Releases when the present transactions on these databases have ended, whichever way: commit,
    rollback, rollback of a savepoint, lost connection.

    Django tells of a commit only. But whichever way a transaction ends it drops its hooks; these
    are all that keeps the guard alive, whose finalizer releases.
    """

    class Guard:
        pass

    guard = Guard()
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            release(item)

    weakref.finalize(guard, end).atexit = False

    def hook(guard: Guard = guard) -> None:
        pass

    for alias in aliases:
        transaction.on_commit(hook, using=alias, robust=True)


def postpone(item: Postponed) -> None:
    """Keeps what could not be sent, and repeats it until it can."""
    with _State.lock:
        _State.pending.append(item)
        if _State.thread is None:
            _State.thread = threading.Thread(
                target=_repeat, name="task-locks-releases", daemon=True
            )
            _State.thread.start()


def _repeat() -> None:
    delay = _FIRST_DELAY
    wait = threading.Event().wait
    while True:
        with _State.lock:
            if not _State.pending:
                _State.thread = None
                return
            item = _State.pending[0]
        try:
            item.send()
        except LockServiceUnavailable:
            wait(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        except Exception as error:
            emit("recovery.failed", task=item.id, error=error, exc_info=True)
            _State.pending.popleft()
        else:
            emit(item.event, request=item.id)
            _State.pending.popleft()
            delay = _FIRST_DELAY
        finally:
            connections.close_all()
