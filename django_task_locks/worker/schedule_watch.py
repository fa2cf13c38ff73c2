"""When this worker has to look at the schedules: told by the lock service, so that the database is
not asked. One process at a time has the lead; it lasts until the next time of any schedule.
"""

from django_task_locks.conf import Settings
from django_task_locks.connections import quick_lock_manager
from django_task_locks.exceptions import TaskLocksError
from django_task_locks.schedules import JOB, LEASE
from django_task_locks.worker.guard import now

LINGER = 5.0
_PATIENCE = 0.5
_MARGIN = 0.02


class ScheduleWatch:
    """look_at  when to ask next: at each heartbeat's interval, and at the end of the lead"""

    def __init__(self, settings: Settings) -> None:
        self._interval = settings.heartbeat_interval
        self._locks = quick_lock_manager(min(_PATIENCE, self._interval))
        self.look_at = 0.0

    def look_soon(self) -> None:
        self.look_at = 0.0

    def is_turn(self, owner: str) -> bool:
        """Whether it is this worker's turn to dispatch what is due; it has the lead then."""
        if now() < self.look_at:
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
        finally:
            self._locks.transport.drop_connections()  # no fork may share one
        return False
