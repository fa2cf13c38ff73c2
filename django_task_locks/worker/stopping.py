"""Stopping a body that runs: it is asked first, then killed with all that it started."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from django_task_locks.worker.children import Child, Children
from django_task_locks.worker.guard import NO_TASK, Board, now

_GRACE = 0.5  # what a body gets to unwind


@dataclass(slots=True)
class _Stop:
    child: Child
    task: bytes
    why: int
    kill_at: float


class BodyStops:
    """The bodies that were asked to stop, and when each is killed if it has not."""

    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children
        self._stops: dict[bytes, _Stop] = {}

    def ask(self, task: bytes, why: int) -> bool:
        """Asks the executor that is at this task; False if none is, or it was asked already."""
        if task == NO_TASK or task in self._stops:
            return False
        for child in self._children.running.values():
            if not child.job and self._board.task(child.slot) == task:
                self._board.ask_to_stop(child.slot, task, why)
                self._stops[task] = _Stop(child, task, why, now() + _GRACE)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGUSR1)
                return True
        return False

    def kill_overdue(self) -> None:
        for stop in list(self._stops.values()):
            if stop.child.pid not in self._children.running:
                continue  # the reason is still needed when its exit is noted
            if self._board.task(stop.child.slot) != stop.task:
                del self._stops[stop.task]
            elif now() >= stop.kill_at:
                stop.kill_at = now() + _GRACE
                self._children.kill_if(stop.child, stop.task, (Board.CLAIMED, Board.BODY))

    def forget(self, child: Child) -> int:
        """The child has ended; why its body was asked to stop, NO_STOP if it was not."""
        why = Board.NO_STOP
        for stop in list(self._stops.values()):
            if stop.child is child:
                del self._stops[stop.task]
                why = stop.why
        return why

    def appointments(self) -> list[float]:
        """When `kill_overdue` has something to do."""
        return [stop.kill_at for stop in self._stops.values()]

    def clear(self) -> None:
        self._stops.clear()
