"""The worker's heartbeat: a thread of its own that is stopped around every fork."""

import threading
from collections.abc import Callable

from django.db import DatabaseError, connections, router
from django.db.utils import InterfaceError

from django_task_locks import presence
from django_task_locks.conf import Settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable, OwnerClosed
from django_task_locks.models import AppStatus
from django_task_locks.presence import Presence
from django_task_locks.worker.guard import Board, now


class Heartbeat:
    """Beats in the database, and moves the guard's deadline by what was beaten.

    is_lost      this incarnation's row is gone, or it was declared missing
    steady_from  since when (on the guard's clock) no beat has failed
    wake         called from the thread when is_lost becomes true
    """

    def __init__(
        self, presence: Presence, board: Board, settings: Settings, wake: Callable[[], None]
    ) -> None:
        self.presence = presence
        self.is_lost = False
        self.steady_from = now()
        self._board = board
        self._ttl = settings.ttl
        self._interval = settings.heartbeat_interval
        self._wake = wake
        self._next = now() + self._interval
        self._problem: Exception | None = None
        self._redis_problem: Exception | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beaten(self, sent_at: float) -> None:
        """A beat that was sent then has been written: nobody may judge this worker before that
        time plus the TTL, and the guard acts at two thirds of it.
        """
        self._board.deadline = sent_at + self._ttl * 2 / 3

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="task-locks-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended and its connections are closed."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self._thread = None

    def is_steady(self) -> bool:
        """Whether it has beaten without a gap for one TTL: only then it may judge others, whose
        beats an outage may have kept back.
        """
        return self._problem is None and now() - self.steady_from >= self._ttl

    def _run(self) -> None:
        try:
            limit_time(min(self._interval, self._ttl / 6))
            while not self._stopped.wait(max(0.0, self._next - now())):
                self._next = now() + self._interval
                if not self._beat():
                    self.is_lost = True
                    self._wake()
                    return
        finally:
            connections.close_all()

    def _beat(self) -> bool:
        sent_at = now()
        try:
            if not presence.beat(self.presence):
                return False
        except (DatabaseError, InterfaceError) as error:
            connections.close_all()
            limit_time(min(self._interval, self._ttl / 6))
            if is_busy_sqlite(error):
                # Its one writer is somebody else just now. There the lock file tells that we live.
                self.beaten(sent_at)
                return True
            if self._problem is None:
                emit("presence.beat_failed", owner=self.presence.owner, error=error)
            self._problem, self.steady_from = error, now()
            self._next = now() + min(1.0, self._interval)
            return True
        self.beaten(sent_at)
        if self._problem is not None:
            emit("presence.beat_again", owner=self.presence.owner)
            self._problem, self.steady_from = None, sent_at
        return self._beat_in_redis()

    def _beat_in_redis(self) -> bool:
        try:
            get_lock_manager().beat(self.presence.owner, self._ttl)
        except OwnerClosed:
            return False
        except LockServiceUnavailable as error:
            if self._redis_problem is None:
                emit("worker.unavailable", what="lock service", error=error)
            self._redis_problem = error
        else:
            if self._redis_problem is not None:
                emit("worker.available", what="lock service")
            self._redis_problem = None
        return True


def is_busy_sqlite(error: Exception) -> bool:
    alias = router.db_for_write(AppStatus)
    return connections[alias].vendor == "sqlite" and "locked" in str(error)


def limit_time(seconds: float) -> None:
    """Gives this thread's connection for heartbeats time limits: a database that hangs must not
    look like one that answers soon.
    """
    connection = connections[router.db_for_write(AppStatus)]
    whole = max(1, round(seconds))
    milliseconds = max(100, round(seconds * 1000))
    options = dict(connection.settings_dict.get("OPTIONS", {}))
    if connection.vendor == "postgresql":
        options["connect_timeout"] = max(2, whole)  # libpq knows nothing shorter
        options["tcp_user_timeout"] = milliseconds
        given = options.get("options", "")
        options["options"] = f"{given} -c statement_timeout={milliseconds}".strip()
    elif connection.vendor == "mysql":
        options.update(connect_timeout=whole, read_timeout=whole, write_timeout=whole)
    elif connection.vendor == "sqlite":
        options["timeout"] = seconds
    # A dict of this connection's own: the one that it has is shared by all threads.
    connection.settings_dict = {**connection.settings_dict, "OPTIONS": options}
