"""What must not be open while the supervisor forks."""

from django.db import connections

from django_task_locks.connections import close_connections
from django_task_locks.worker.control import ControlChannel
from django_task_locks.worker.heartbeat import Heartbeat
from django_task_locks.worker.schedule_watch import ScheduleWatch


class NothingOpen:
    """No second thread and no connection, for the time of a fork."""

    def __init__(
        self, heartbeat: Heartbeat, control: ControlChannel, schedules: ScheduleWatch
    ) -> None:
        self._heartbeat = heartbeat
        self._control = control
        self._schedules = schedules

    def __enter__(self) -> None:
        self._heartbeat.stop()  # or TimeoutError: then there is no fork for now
        self._control.close()
        self._schedules.close()
        connections.close_all()
        close_connections()

    def __exit__(self, *exc_info: object) -> None:
        self._heartbeat.start()
