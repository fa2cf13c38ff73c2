"""Transactions as tests need them, and what others see meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeVar

from django.db import connections, transaction

T = TypeVar("T")


class _Undo(Exception):
    pass


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction, or a savepoint in one, that is rolled back at its end."""
    with suppress(_Undo), transaction.atomic():
        yield
        raise _Undo


def elsewhere(look: Callable[[], T]) -> T:
    """What another thread, with a database connection of its own, gets from a call."""
    seen: list[T] = []

    def run() -> None:
        try:
            seen.append(look())
        finally:
            connections.close_all()

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]
