"""Stopping a body that runs: it is asked first, then killed with all that it started."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from django_task_locks.events import emit
from django_task_locks.execution import time_limit_exceeded
from django_task_locks.worker.children import Child, Children
from django_task_locks.worker.guard import NO_TASK, Board, now

CANCELED = "Its executor was stopped."
ABORTED = "Aborted during worker shutdown."

_GRACE = 0.5  # what a body gets to unwind


@dataclass(slots=True)
class Stop:
    """A body that was asked to stop: why, and what is recorded if it does not end by itself."""

    child: Child
    task: bytes
    why: int
    reason: str
    kill_at: float


class BodyStops:
    """The bodies that were asked to stop, and when each is killed if it has not."""

    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children
        self._stops: dict[bytes, Stop] = {}

    def ask(self, task: bytes, why: int, reason: str) -> bool:
        """Asks the executor that is at this task; False if none is, or it was asked already."""
        if task == NO_TASK or task in self._stops:
            return False
        for child in self._executors():
            if self._board.task(child.slot) == task:
                self._board.ask_to_stop(child.slot, task, why)
                self._stops[task] = Stop(child, task, why, reason, now() + _GRACE)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGUSR1)
                return True
        return False

    def heed_limits(self) -> None:
        """Asks those to stop whose time is over."""
        for child in self._executors():
            task = self._board.task(child.slot)
            seconds, over_at = self._limit(child)
            # The same task still: then it is its limit.
            if over_at and now() >= over_at and self._board.task(child.slot) == task:
                reason = time_limit_exceeded(seconds)
                if self.ask(task, Board.TIME_LIMIT, reason):
                    emit("task.overdue", task=UUID(bytes=task), seconds=seconds)

    def kill_overdue(self) -> None:
        for stop in list(self._stops.values()):
            if stop.child.pid not in self._children.running:
                continue  # the reason is still needed when its exit is noted
            if self._board.task(stop.child.slot) != stop.task:
                del self._stops[stop.task]
            elif now() >= stop.kill_at:
                stop.kill_at = now() + _GRACE
                self._children.kill_if(stop.child, stop.task, (Board.CLAIMED, Board.BODY))

    def forget(self, child: Child) -> Stop | None:
        """The child has ended; what its body was asked, None if nothing."""
        found = None
        for stop in list(self._stops.values()):
            if stop.child is child:
                found = self._stops.pop(stop.task)
        return found

    def appointments(self) -> list[float]:
        """When `kill_overdue` and `heed_limits` have something to do."""
        limits = [self._limit(child)[1] for child in self._executors()]
        return [stop.kill_at for stop in self._stops.values()] + [at for at in limits if at]

    def clear(self) -> None:
        self._stops.clear()

    def _executors(self) -> list[Child]:
        return [child for child in self._children.running.values() if not child.job]

    def _limit(self, child: Child) -> tuple[float, float]:
        """The limit of the body that runs there, and when it is over; 0 for none."""
        if self._board.phase(child.slot) != Board.BODY:
            return 0.0, 0.0
        return self._board.limit_of(child.slot)
