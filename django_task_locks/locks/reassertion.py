"""What Redis has lost alone, while its epoch stands: a record that was evicted, a lock that an
operator has deleted. Who holds it restores it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from django_task_locks.exceptions import OwnerClosed, TaskLocksError
from django_task_locks.locks import protocol, restoration
from django_task_locks.locks.manager import LockManager
from django_task_locks.locks.rebuild import Known
from django_task_locks.locks.requests import Restored

_BATCH = 250


class Verified(NamedTuple):
    """The server's time in ms, and the ids of the requests that it does not have whole."""

    at: int
    missing: set[str]


class Reassertion:
    """Operations of a process on what it holds, through a manager of the present epoch.

    Each raises LockServiceUnavailable, and EpochLost when the locks are being rebuilt.
    """

    def __init__(self, manager: LockManager) -> None:
        self._manager = manager

    def verify(self, held: Sequence[Known]) -> Verified:
        """Looks, in one round trip, whether all of these have their record, locks, and entries."""
        calls = [restoration.verify(*batch) for batch in _batches(held)] or [
            restoration.verify("", [])
        ]
        at, missing = 0, set()
        for outcome in self._manager.run_many(calls):
            if isinstance(outcome, TaskLocksError):
                raise outcome
            at = max(at, outcome[0])
            missing.update(outcome[1])
        return Verified(at, missing)

    def restore(self, held: Sequence[Known], until: int) -> list[Restored | TaskLocksError]:
        """Gives each of them back what it lacks, with its token, unless somebody else has it; in
        one round trip. One that arrives after `until` (ms, the server's time) changes nothing.

        Raises OwnerClosed when their process was declared missing.
        """
        outcomes = self._manager.run_many(
            [
                restoration.restore_held(
                    known.request, known.lane, known.token or 0, known.arrival, until
                )
                for known in held
            ]
        )
        for outcome in outcomes:
            if isinstance(outcome, OwnerClosed):
                raise outcome
        return outcomes


def free_lost(manager: LockManager, id: str, owner: str, resources: Sequence[str]) -> None:
    """Frees what may still name a request that has ended and whose record was lost; harmless where
    there is such a request. Raises LockServiceUnavailable.
    """
    manager.run_many([protocol.free(resource, id) for resource in resources])
    manager.settle()
    manager.forget_entry(id, owner)


def _batches(held: Sequence[Known]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """By owner."""
    in_order = sorted(held, key=lambda known: known.request.owner)
    for owner, its in groupby(in_order, key=lambda known: known.request.owner):
        pairs = [(known.request.id, known.token or 0) for known in its]
        for first in range(0, len(pairs), _BATCH):
            yield owner, pairs[first : first + _BATCH]
