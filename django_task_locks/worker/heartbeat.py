"""The worker's heartbeat: a thread of its own that is stopped around every fork."""

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from uuid import UUID

from django.db import connections, router

from django_task_locks import own_requests, presence, reasserting, rebuilding
from django_task_locks.conf import Settings
from django_task_locks.connections import quick_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import EpochLost, OwnerClosed
from django_task_locks.locks.keys import NO_EPOCH
from django_task_locks.locks.rebuild import Epoch
from django_task_locks.models import AppStatus, Task
from django_task_locks.presence import Presence, Pulse
from django_task_locks.states import State
from django_task_locks.worker.guard import NO_TASK, Board, kill_group, now
from django_task_locks.worker.running import RunningTasks


class Heartbeat:
    """Beats in the database, and moves the guard's deadline by what was beaten. In the same thread,
    whose connections have time limits, it looks for what the supervisor has to know.

    is_lost      this incarnation's row is gone, or it was declared missing
    to_stop      ids of tasks whose rows say, or whose absence says, that they are to be stopped: a
                 message may have been lost
    has_lead     it is this worker's turn to clean up
    must_rebuild  Redis has lost the locks, and this worker is the one to rebuild them
    wake         called from the thread when one of these has something new
    """

    def __init__(
        self,
        presence: Presence,
        board: Board,
        settings: Settings,
        generations: Mapping[int, int],
        wake: Callable[[], None],
    ) -> None:
        self.presence = presence
        self.is_lost = False
        self.has_lead = False
        self.must_rebuild = False
        self.to_stop: SimpleQueue[UUID] = SimpleQueue()
        self._board = board
        self._settings = settings
        self._tasks = RunningTasks(presence, board, generations)
        self._watch = reasserting.Watch(self._tasks)
        self._interval = settings.heartbeat_interval
        self._limit = min(self._interval, settings.ttl / 6)
        self._wake = wake
        self._locks = quick_lock_manager(self._limit)
        self._steady_from = now()
        self._next = now() + self._interval
        self._soonest = 0.0
        self._epoch_since = now()
        self._next_lead = now() + settings.ttl
        self._problems: dict[str, Exception] = {}
        self._stopped = threading.Event()
        self._nudged = threading.Event()
        self._thread: threading.Thread | None = None

    def beaten(self, sent_at: float) -> None:
        """A beat that was sent then has been written: nobody may judge this worker before that
        time plus the TTL, and the guard acts at two thirds of it.
        """
        if not self.is_lost:
            self._board.deadline = sent_at + self._settings.ttl * 2 / 3

    def nudge(self) -> bool:
        """The next beat comes at once, or soon if the last one has only just been."""
        self._nudged.set()
        return True

    def start(self) -> None:
        self._stopped.clear()
        self._nudged.clear()
        self._thread = threading.Thread(target=self._run, name="task-locks-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended and its connections are closed.

        Raises TimeoutError if the database holds it up: then it is still there.
        """
        if self._thread is None:
            return
        self._stopped.set()
        self._nudged.set()
        self._thread.join(self._limit + 1.0)
        if self._thread.is_alive():
            self._stopped.clear()
            raise TimeoutError("the heartbeat waits for a database that does not answer")
        self._thread = None

    def abandon(self) -> None:
        """Leaves the thread to itself, for good: it changes nothing any more."""
        self.is_lost = True
        self._stopped.set()
        self._nudged.set()
        self._thread = None

    def _run(self) -> None:
        try:
            limit_time(self._limit)
            while not self._is_stopped_within(max(0.0, self._next - now())):
                self._next = now() + self._interval
                self._soonest = now() + presence.SOONEST
                if not self._beat():
                    self.is_lost = True
                    self._wake()
                    return
        finally:
            connections.close_all()
            self._locks.transport.drop_connections()

    def _is_stopped_within(self, seconds: float) -> bool:
        self._nudged.wait(seconds)
        self._stopped.wait(max(0.0, self._soonest - now()))
        self._nudged.clear()
        return self._stopped.is_set()

    def _beat(self) -> bool:
        sent_at = now()
        try:
            pulse = presence.beat(self.presence)
            if pulse == Pulse.LOST:
                return False
            self._look_for_stops()
        except Exception as error:
            connections.close_all()
            limit_time(self._limit)
            if is_busy_sqlite(error):
                # Its one writer is somebody else just now. There the lock file tells that we live.
                self.beaten(sent_at)
                return True
            self._failed("database", error)
            self._steady_from = now()
            self._next = now() + min(1.0, self._interval)
            return True
        self.beaten(sent_at)
        if self._works("database"):
            self._steady_from = sent_at
        try:
            if pulse == Pulse.BEHIND:
                presence.catch_up(self.presence, self._restore)
            self._locks.beat(self.presence.owner, self._settings.ttl)
            self._ask_for_lead()
            if not (is_epoch_lost := self._board.epoch == NO_EPOCH):
                self._watch.look(self._locks)
        except OwnerClosed:
            return False
        except EpochLost:
            is_epoch_lost = True
        except Exception as error:
            # Redis does not decide who is alive.
            self._failed("lock service", error)
            return True
        self._works("lock service")
        if is_epoch_lost:
            self._tend_epoch()
        return True

    def _tend_epoch(self) -> None:
        self._next = min(self._next, now() + presence.LOOK_AGAIN)
        try:
            if rebuilding.is_wanted(self.presence.owner):
                self.must_rebuild = True
                self._wake()
        except Exception as error:
            self._failed("rebuild", error)
        else:
            self._works("rebuild")

    def _restore(self, epoch: Epoch) -> bool:
        """What the database does not say: which slots run the tasks, and what executors hold by
        themselves, which they restore.
        """
        if self._board.epoch != str(epoch):
            self._board.epoch = str(epoch)
            self._epoch_since = now()
        self._board.is_epoch_doubted = False
        is_done = own_requests.restore(epoch, self._tasks.held())
        return is_done and self._have_executors_restored(epoch)

    def _have_executors_restored(self, epoch: Epoch) -> bool:
        """One that cannot (C code that never lets go of the interpreter) is killed, before others
        give up the whole worker for it.
        """
        behind = [
            slot
            for slot in range(self._board.slots)
            for count, number in [self._board.own_requests(slot)]
            if count and number != epoch.number
        ]
        if now() - self._epoch_since > self._settings.ttl / 2:
            for slot in behind:
                emit("executor.given_up", slot=slot, group=self._board.group(slot))
                kill_group(self._board.group(slot))
        return not behind

    def _look_for_stops(self) -> None:
        busy = [
            UUID(bytes=id)
            for id in map(self._board.task, range(self._board.slots))
            if id != NO_TASK
        ]
        if not busy:
            return
        rows = Task.objects.using(router.db_for_write(Task)).filter(pk__in=busy)
        states = dict(rows.values_list("pk", "state"))
        for id in busy:
            if states.get(id, State.CANCELING) == State.CANCELING:
                self.to_stop.put(id)
                self._wake()

    def _ask_for_lead(self) -> None:
        """Whoever has beaten without a gap for one TTL may judge others, whose beats an outage may
        have kept back.
        """
        if now() < self._next_lead or now() - self._steady_from < self._settings.ttl:
            return
        self._next_lead = now() + self._settings.cleanup_interval
        # A little shorter, so that the same worker's next turn does not just miss it.
        seconds = self._settings.cleanup_interval * 0.95
        if self._locks.lead("cleanup", self.presence.owner, seconds):
            self.has_lead = True
            self._wake()

    def _failed(self, what: str, error: Exception) -> None:
        if what not in self._problems:
            emit("worker.beat_failed", what=what, owner=self.presence.owner, error=error)
        self._problems[what] = error

    def _works(self, what: str) -> bool:
        """Whether it works again after a failure."""
        if self._problems.pop(what, None) is None:
            return False
        emit("worker.available", what=what)
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
