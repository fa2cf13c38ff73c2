"""What ended executors have left, until it is settled; only then their slots are used again.

Children do it: neither a database that hangs nor an application's receiver of a signal may hold up
the supervisor.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import router

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import Task
from django_task_locks.settling import find_task, settle_lost, settle_request
from django_task_locks.states import State
from django_task_locks.worker.children import Children, Exit
from django_task_locks.worker.guard import NO_TASK, Board, now
from django_task_locks.worker.os_signals import unblock

SETTLING = "settling"
_LIMIT = 30
_LONGEST_DELAY = 5.0


@dataclass(slots=True)
class Leftover:
    """An ended executor, and why what it ran has ended; the task that it is itself to blame for."""

    exit: Exit
    reason: str
    at_fault: str = ""
    retry_at: float = 0.0
    delay: float = 0.1
    is_in_work: bool = False


class Leftovers:
    """first_slot: the board's slot of the child that settles executor slot 0; the others follow."""

    def __init__(self, children: Children, first_slot: int, ttl: float) -> None:
        self._children = children
        self._first_slot = first_slot
        self._ttl = ttl
        self._left: dict[int, Leftover] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, exit: Exit, reason: str, at_fault: str = "") -> None:
        self._left[exit.child.slot] = Leftover(exit, reason, at_fault)

    def due(self) -> list[Leftover]:
        return [
            left for left in self._left.values() if not left.is_in_work and left.retry_at <= now()
        ]

    def start(self, left: Leftover, owner: str, in_child: Callable[[], None]) -> None:
        """Starts the child that settles this one. Nothing may be open in this process."""
        slot = self._first_slot + left.exit.child.slot
        self._children.fork(
            slot,
            0,
            partial(_settle, left, owner, self._ttl, self._children.board, in_child),
            job=SETTLING,
        )
        left.is_in_work = True

    def note(self, exit: Exit) -> None:
        """Such a child has ended: it is settled, or tried again after a while."""
        slot = exit.child.slot - self._first_slot
        left = self._left[slot]
        if exit.status or exit.signal:
            left.is_in_work = False
            left.delay = min(left.delay * 2, _LONGEST_DELAY)
            left.retry_at = now() + left.delay
        else:
            del self._left[slot]

    def slots(self) -> set[int]:
        return set(self._left)

    def appointments(self) -> list[float]:
        return [left.retry_at for left in self._left.values()]

    def clear(self) -> None:
        self._left.clear()


def _settle(
    left: Leftover, owner: str, ttl: float, board: Board, in_child: Callable[[], None]
) -> int:
    """In the child: the executor and its group are gone, so shut its slot out, then end what it
    held, each request for itself. The exit status counts what failed.
    """
    in_child()
    unblock()
    signal.alarm(_LIMIT)  # the supervisor tries again
    child, failed = left.exit.child, 0
    ended = Claimant(owner=owner, ttl=ttl, slot=f"{child.slot}.{child.generation}")
    try:
        ids = get_lock_manager().retire(ended)
    except LockServiceUnavailable as error:
        emit("worker.settle_failed", slot=child.slot, error=error)
        return 1
    for id in ids:
        try:
            settle_request(id, owner, left.reason, is_its_fault=id == left.at_fault)
        except Exception as error:
            emit("worker.settle_failed", slot=child.slot, request=id, error=error)
            failed += 1
    try:
        for pk in _begun(left.exit.task):
            if str(pk) not in ids:
                _settle_lost(pk, left, owner, board)
    except Exception as error:
        emit("worker.settle_failed", slot=child.slot, error=error)
        failed += 1
    return min(failed, 100)


def _begun(at: bytes) -> list[UUID]:
    """What the executor was at, and the immediate tasks that were begun in it, innermost first."""
    if at == NO_TASK:
        return []
    rows = Task.objects.using(router.db_for_write(Task)).owned().filter(immediate=True)
    found = level = [UUID(bytes=at)]
    while level := list(rows.filter(parent_task__in=level).values_list("pk", flat=True)):
        found = level + found
    return found


def _settle_lost(pk: UUID, left: Leftover, owner: str, board: Board) -> None:
    """One that the executor did not hold: it had recorded it, or Redis had lost the request.
    Another one that runs it by now shows that before its row does, hence the row first.
    """
    id = str(pk)
    task = find_task(id)
    is_elsewhere = any(board.task(slot) == pk.bytes for slot in range(board.slots))
    if task is None or task.state not in State.owned() or is_elsewhere:
        return
    if owner.rpartition("@")[2] == str(task.app_lock_id):
        settle_lost(task, owner, left.reason, is_its_fault=id == left.at_fault)
