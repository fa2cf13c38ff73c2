"""Transactions as tests need them, and what others see meanwhile."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Barrier, Thread
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


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Their results, in this order; each is made by a thread of its own, all at the same time."""
    barrier = Barrier(len(calls), timeout=30)

    def run(call: Callable[[], T]) -> T:
        barrier.wait()
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.result() for done in [threads.submit(run, call) for call in calls]]
