"""When this worker has to look at the schedules: told by the lock service, so that the database is
not asked. One process at a time has the lead; it lasts until the next time of any schedule.
"""

from collections.abc import Callable
from functools import partial

from django.db import DatabaseError
from django.db.utils import InterfaceError

from django_task_locks import schedules
from django_task_locks.connections import quick_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import TaskLocksError
from django_task_locks.schedules import JOB, LEASE
from django_task_locks.worker.children import Children, Exit
from django_task_locks.worker.guard import now
from django_task_locks.worker.os_signals import unblock

_LINGER = 5.0
_PATIENCE = 0.5
_MARGIN = 0.02


class ScheduleWatch:
    """Children dispatch, one at a time, in the board's slot `slot`; they stay a while for what
    comes soon, unless `lingers` is False.

    look_at  when to ask next: at each heartbeat's interval, and at the end of the lead
    """

    def __init__(self, children: Children, slot: int, interval: float, *, lingers: bool) -> None:
        self.look_at = 0.0
        self._children = children
        self._slot = slot
        self._interval = interval
        self._linger = _LINGER if lingers else 0.0
        self._locks = quick_lock_manager(min(_PATIENCE, interval))

    def is_turn(self, owner: str) -> bool:
        """Whether it is this worker's turn to dispatch what is due; it has the lead then."""
        if now() < self.look_at or self._is_at_work():
            return False
        self.look_at = now() + self._interval
        try:
            seconds = self._locks.lead_ends_in(JOB)
            if seconds <= 0:
                if self._locks.lead(JOB, owner, LEASE):
                    return True
                seconds = self._locks.lead_ends_in(JOB)
            self.look_at = min(self.look_at, now() + seconds + _MARGIN)
        except TaskLocksError:
            pass  # the heartbeat tells of it
        return False

    def close(self) -> None:
        """Closes its connection, which no fork may share; the next look opens one."""
        self._locks.transport.drop_connections()

    def start(self, owner: str, in_child: Callable[[], None]) -> None:
        """Nothing may be open in this process."""
        work = partial(_dispatch, owner, in_child, self._linger)
        self._children.fork(self._slot, 0, work, job=JOB)

    def note(self, exit: Exit) -> None:
        """A child of the worker has ended; one of these has left the time of the next look."""
        if exit.child.job == JOB and not exit.status and not exit.signal:
            self.look_at = 0.0

    def _is_at_work(self) -> bool:
        return any(child.job == JOB for child in self._children.running.values())


def _dispatch(owner: str, in_child: Callable[[], None], linger: float) -> int:
    """In the child."""
    in_child()
    unblock()
    try:
        schedules.work(owner, linger)
    except (DatabaseError, InterfaceError, TaskLocksError) as error:
        emit("schedule.postponed", error=error)
        return 1
    return 0
