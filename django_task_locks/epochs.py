"""Which epoch of the locks this process takes for the present one.

The number stands in the database, so a process that has a heartbeat learns of a new one there and
first restores what it holds itself (`presence`). One without a heartbeat holds nothing, and reads
the number anew when Redis has another. An executor has that of its worker.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError

from django_task_locks.locks.keys import NO_EPOCH

Source = Callable[[], str]


class _State:
    """load, shared and nudge are put in by those who have the database, the worker's board and the
    heartbeat.
    """

    load: ClassVar[Source | None] = None
    shared: ClassVar[Source | None] = None
    nudge: ClassVar[Callable[[], bool]] = lambda: False
    value: ClassVar[str] = NO_EPOCH
    lock: ClassVar[threading.RLock] = threading.RLock()

    @classmethod
    def forget_in_child(cls) -> None:
        cls.lock = threading.RLock()
        cls.shared = None


os.register_at_fork(after_in_child=_State.forget_in_child)


def set_loader(load: Source) -> None:
    """How the present epoch is read from the database."""
    _State.load = load


def set_nudge(nudge: Callable[[], bool] | None) -> None:
    """What is called when Redis has another epoch: it has the heartbeat look into it at once, or
    returns False in a process without one, as None does.
    """
    _State.nudge = nudge or (lambda: False)


def nudge() -> bool:
    """Has this process's heartbeat come at once; False if it has none."""
    return _State.nudge()


def share(source: Source) -> None:
    """This process is an executor: its worker's memory has the epoch."""
    _State.shared = source


def adopt(value: str) -> None:
    """From here on this is the epoch of this process."""
    with _State.lock:
        _State.value = value


def forget() -> None:
    """The next use reads it anew."""
    adopt(NO_EPOCH)


def current() -> str:
    """The present epoch, as this process knows it. Raises the database's errors."""
    if _State.shared is not None:
        return _State.shared()
    if _State.value == NO_EPOCH and _State.load is not None:
        value = _State.load()
        if value != NO_EPOCH:
            adopt(value)
    return _State.value


async def acurrent() -> str:
    """As `current`, without blocking the event loop."""
    value = _State.value
    if value != NO_EPOCH and _State.shared is None:
        return value
    return await sync_to_async(current)()


class Keeper:
    """What the lock managers ask."""

    def value(self) -> str:
        value = _State.value
        return value if value != NO_EPOCH and _State.shared is None else current()

    def is_out_of_date(self, value: str) -> bool:
        if current() != value:
            return True  # it has been learned meanwhile
        if nudge():
            return False
        if _State.load is not None:
            # In a transaction that is broken nothing can be asked: somebody else will.
            with suppress(DatabaseError, InterfaceError):
                adopt(_State.load())
        return current() != value

    async def avalue(self) -> str:
        return await acurrent()

    async def ais_out_of_date(self, value: str) -> bool:
        return await sync_to_async(self.is_out_of_date)(value)
