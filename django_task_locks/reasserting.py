"""Finds what this process holds and Redis has lost alone, and restores it.

The epoch tells of the loss of everything, not of a key that was evicted or deleted; whose request
that was has to look. What two looks in a row have missed is restored with its token. Its code may
end meanwhile, and release what is not there: so it is looked afterwards whether it is still held,
once the answer is there and again when no copy of the call can arrive any more.
"""

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from django_task_locks import own_requests
from django_task_locks.conf import get_settings
from django_task_locks.events import emit
from django_task_locks.exceptions import StaleSlot, TaskLocksError
from django_task_locks.locks import LockManager
from django_task_locks.locks.reassertion import Reassertion, free_lost
from django_task_locks.locks.rebuild import Known
from django_task_locks.locks.requests import Restored


class Holdings(Protocol):
    """Who knows what is held."""

    def held(self) -> Sequence[Known]:
        """Everything whose code may run now, with its token."""

    def still_held(self, known: Collection[Known]) -> Collection[str]:
        """The ids of those that their code has not ended yet; at the latest when it is about to
        release them they are not among them.
        """

    def excluded(self, known: Known, reason: str) -> None:
        """Somebody else has what it needs, and its code goes on. Told once."""


class OwnHoldings:
    """The `hold`s and immediate tasks of this process."""

    def held(self) -> Sequence[Known]:
        return own_requests.granted()

    def still_held(self, known: Collection[Known]) -> Collection[str]:
        return own_requests.known()

    def excluded(self, known: Known, reason: str) -> None:
        own_requests.lose(known.request.id, reason)


class Watch:
    """`look` is called with each heartbeat. It looks once in a clean-up interval, in one round
    trip, and with each heartbeat as long as something is missing.
    """

    def __init__(self, holdings: Holdings) -> None:
        settings = get_settings()
        self._holdings = holdings
        self._interval = settings.cleanup_interval
        self._again = settings.heartbeat_interval / 2  # and the next heartbeat is not too early
        self._next = time.monotonic() + self._interval
        self._missing: dict[str, Known] = {}
        self._told: dict[str, str] = {}
        # What may have been restored, and until when (by the server's clock, in ms) it may yet be.
        self._restored: dict[str, tuple[Known, int]] = {}

    @property
    def is_at_work(self) -> bool:
        """Whether it has to look again, though nothing may be held."""
        return bool(self._restored)

    def look(self, manager: LockManager) -> None:
        """Raises LockServiceUnavailable, EpochLost, OwnerClosed, and the database's errors; the
        next call goes on with what was begun.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._again
        held = {known.request.id: known for known in self._holdings.held()}
        missing: dict[str, Known] = {}
        if held or self._restored or self._missing:
            reassertion = Reassertion(manager)
            now, ids = reassertion.verify([*held.values()])
            missing = {id: held[id] for id in ids}
            self._release_ended(manager, now)
            self._free_ended(manager, self._missing.keys() - held.keys())
            lost = [
                known for id, known in missing.items()
                if id in self._missing and self._missing[id].token == known.token
            ]  # fmt: skip
            self._missing = missing
            self._told = {id: reason for id, reason in self._told.items() if id in missing}
            if lost:
                self._restore(manager, reassertion, lost, now)
        if not missing and not self._restored:
            self._next += self._interval - self._again

    def _restore(
        self, manager: LockManager, reassertion: Reassertion, lost: list[Known], now: int
    ) -> None:
        until = now + round(self._again * 1000)
        self._restored |= {known.request.id: (known, until) for known in lost}
        for known, outcome in zip(lost, reassertion.restore(lost, until), strict=True):
            self._note(known, outcome)
        self._release_ended(manager, now)

    def _note(self, known: Known, outcome: Restored | TaskLocksError) -> None:
        id, label = known.request.id, known.request.label
        if isinstance(outcome, StaleSlot):
            return  # its executor has ended
        problem = str(outcome) if isinstance(outcome, TaskLocksError) else outcome.reason
        if problem and self._told.get(id) == problem:
            return
        if isinstance(outcome, TaskLocksError):
            emit("request.not_restored", request=id, label=label, error=outcome)
        elif outcome.status == "conflict":
            self._holdings.excluded(known, problem)
        elif outcome.status == "restored":
            emit("request.restored", request=id, label=label)
        self._told[id] = problem

    def _free_ended(self, manager: LockManager, ids: Collection[str]) -> None:
        """What ended while it was missing: its release has found no record to go by."""
        if not ids:
            return
        still = self._holdings.still_held([self._missing[id] for id in ids])
        for request in (self._missing[id].request for id in ids if id not in still):
            free_lost(manager, request.id, request.owner, request.exclusive + request.shared)

    def _release_ended(self, manager: LockManager, now: int) -> None:
        if not self._restored:
            return
        still = self._holdings.still_held([known for known, _ in self._restored.values()])
        for id, (known, until) in list(self._restored.items()):
            if id not in still:
                manager.release(id, owner=known.request.owner, token=known.token)
            if now > until:
                del self._restored[id]
