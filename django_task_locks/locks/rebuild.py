"""The epoch of the locks, and how they are rebuilt when Redis has lost them.

An epoch is a number and the run id of the server that holds the locks. It stands in Redis beside
them, and outside of it where nothing is lost (the database); whoever uses the locks names it with
each operation. Redis that has lost its data, has older data, or is another server does not have
that epoch, and refuses. Then one process raises the number, restores what the present requests are
known to be, waits until every live process has restored its own, and opens the epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from django_task_locks.locks import failures, protocol, restoration
from django_task_locks.locks.manager import LockManager
from django_task_locks.locks.protocol import Call
from django_task_locks.locks.requests import Lane, LockRequest
from django_task_locks.locks.scripts import EACH_MS, EPOCH_BEGAN

_BATCH = 250

R = TypeVar("R")


class Epoch(NamedTuple):
    """number, and the run id of the server that has the locks ("" where servers hide theirs)."""

    number: int
    server: str = ""

    @classmethod
    def from_text(cls, text: str) -> tuple["Epoch", bool]:
        """An epoch as Redis has it, and whether it is open."""
        number, _, server = text.partition(":")
        return cls(abs(int(number)), server), not number.startswith("-")

    def __str__(self) -> str:
        return f"{self.number}:{self.server}"

    @property
    def closed(self) -> str:
        return f"-{self}"


class Found(NamedTuple):
    """What a server says: the epoch of its data, whether that is open, and its own run id."""

    epoch: Epoch
    is_open: bool
    server: str

    @property
    def is_itself(self) -> bool:
        """Whether its data are those that it has written itself."""
        return not self.epoch.server or self.epoch.server == self.server


@dataclass(frozen=True, slots=True)
class Known:
    """A request as its task's row, or the process that it belongs to, knows it.

    request  with the claimant that holds it, or that waits for it; a waiting task has none
    lane     of a task
    token    of what is held; None for what waits
    arrival  see `arrival`
    """

    request: LockRequest
    lane: Lane | None
    token: int | None
    arrival: int


def arrival(milliseconds: float) -> int:
    """The place in the order of a request that was made then (Unix time)."""
    return max(1, int((milliseconds - EPOCH_BEGAN) * EACH_MS))


class Rebuild:
    """The operations of a rebuild on one server, through a manager without an epoch of its own.

    Each raises LockServiceUnavailable, and EpochLost once another rebuild has begun, or the server
    has lost its data again.
    """

    def __init__(self, manager: LockManager) -> None:
        self._manager = manager

    def look(self) -> Found:
        """What the server says of itself."""
        text, server = self._run(restoration.look(), "")
        return Found(*Epoch.from_text(text), server)

    def begin(self, epoch: Epoch) -> bool:
        """Closes the locks; False if the server has seen a newer epoch."""
        return self._run(restoration.begin_rebuild(epoch.number, epoch.closed), "")

    def restore(self, epoch: Epoch, requests: Iterable[Known]) -> list[tuple[str, str]]:
        """Restores these, in batches; returns the ids that could not be, and why."""
        refused = []
        rest = iter(requests)
        while batch := list(islice(rest, _BATCH)):
            calls = [_restoration(known) for known in batch]
            replies = self._run_all(calls, epoch.closed)
            for known, reply in zip(batch, replies, strict=True):
                if reply:
                    refused.append((known.request.id, reply))
        return refused

    def sweep(self, epoch: Epoch, owners: Iterable[str]) -> int:
        """Ends what of these owners nobody has restored; returns how many requests it were."""
        keys, ended = self._manager.keys, 0
        for owner in owners:
            command = ("SDIFF", keys.owner(owner), keys.confirmed)
            [found] = self._manager.transport.send([command])
            ids = sorted(map(protocol.text, found))
            for first in range(0, len(ids), _BATCH):
                call = restoration.sweep(owner, ids[first : first + _BATCH])
                ended += self._run(call, epoch.closed)
        return ended

    def open(self, epoch: Epoch, floor: int = 0) -> None:
        """Lets the locks be granted again, and hands over what is free. All tokens and arrivals
        from here on are greater than `floor`.
        """
        if self._run(restoration.open_epoch(str(epoch), floor), epoch.closed):
            while self._run(protocol.settle(), str(epoch)).has_more:
                pass

    def _run(self, call: Call[R], epoch: str) -> R:
        try:
            reply = self._manager.transport.run(
                self._manager.scripts[call.script], call.arguments, epoch
            )
        except failures.ERRORS as error:
            failures.raise_translated(error, call.script, self._manager.endpoint)
        return protocol.read_reply(call, reply)

    def _run_all(self, calls: Sequence[Call[R]], epoch: str) -> list[R]:
        """In one round trip."""
        manager = self._manager
        script, arguments = manager.scripts[calls[0].script], [call.arguments for call in calls]
        try:
            replies = manager.transport.run_many(script, arguments, epoch)
        except failures.ERRORS as error:
            failures.raise_translated(error, calls[0].script, manager.endpoint)
        return [
            protocol.read_reply(call, reply) for call, reply in zip(calls, replies, strict=True)
        ]


def _restoration(known: Known) -> Call[str]:
    return restoration.restore(known.request, known.lane, known.token, known.arrival)
