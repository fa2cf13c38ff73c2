"""The supervisor: keeps one worker's executors at work, and settles what they leave.

One thread does it all, waiting for signals, messages and children at once; the heartbeat has a
second one, stopped around every fork. It runs no task, and forks with no connection open.
"""

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from django.db import DatabaseError, connections
from django.db.utils import InterfaceError

from django_task_locks import epochs, messages, presence, rebuilding, recovery
from django_task_locks.abilities import as_json
from django_task_locks.conf import Settings, get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable, NameInUse
from django_task_locks.models import AppStatus
from django_task_locks.presence import Presence
from django_task_locks.worker.children import Children, Exit, Guard
from django_task_locks.worker.control import ControlChannel
from django_task_locks.worker.executor import EXIT_WORN, Executor, Orders
from django_task_locks.worker.forking import NothingOpen
from django_task_locks.worker.guard import NO_TASK, Board, kill_group, now
from django_task_locks.worker.heartbeat import Heartbeat
from django_task_locks.worker.leftovers import SETTLING, Leftovers
from django_task_locks.worker.os_signals import SupervisorSignals, unblock, wake_self
from django_task_locks.worker.schedule_watch import ScheduleWatch
from django_task_locks.worker.starting import CannotStart, Services, warn_of_eviction
from django_task_locks.worker.stopping import ABORTED, CANCELED, BodyStops

_UNAVAILABLE = (DatabaseError, InterfaceError, LockServiceUnavailable)
_LONGEST_ROUND = 1.0
_LONGEST_IDLE_ROUND = 5.0
_RETRY_DELAY = 1.0
_LONGEST_DELAY = 5.0
_CRASH_DELAY = 1.0
_LINGER_DELAY = 0.01
_EPOCH_DELAY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `manage.py task_worker` was asked for."""

    name: str
    concurrency: int = 1
    is_name_unique: bool = False
    orders: Orders = field(default_factory=Orders)


class Supervisor:
    """`run` returns the exit status when the worker has been asked to stop and has stopped."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._settings: Settings = get_settings()
        # Behind the executors' slots those of the children that do a job for the supervisor: one to
        # clean up, for each executor's slot one to settle what it has left, one for schedules and
        # one to rebuild the locks.
        self._cleanup_slot = options.concurrency
        self._rebuild_slot = 2 * options.concurrency + 2
        self._board = Board(2 * options.concurrency + 3)
        self._guard = Guard(self._board)
        self._children = Children(self._board, self._guard)
        self._schedules = ScheduleWatch(
            self._children,
            2 * options.concurrency + 1,
            self._settings.heartbeat_interval,
            lingers=not options.orders.burst,
        )
        self._signals = SupervisorSignals()
        self._generations = dict.fromkeys(range(options.concurrency), 0)
        self._start_at = dict.fromkeys(range(options.concurrency), 0.0)
        self._leftovers = Leftovers(self._children, options.concurrency + 1, self._settings.ttl)
        self._stops = BodyStops(self._board, self._children)
        self._is_stopping = False
        self._is_shut_out = False
        self._abort_at: float | None = None
        self._give_up_at: float | None = None
        self._burst_done: set[int] = set()
        self._presence: Presence
        self._heartbeat: Heartbeat
        self._control: ControlChannel
        self._retry_at = 0.0

    # -- life ----------------------------------------------------------------------------------

    def run(self) -> int:
        """Waits for the database and Redis as long as they are away.

        Raises CannotStart for what waiting does not mend.
        """
        self._signals.install()
        try:
            services = Services(self._signals)
            if services.patiently(self._incarnate) is None:
                emit("worker.stopped", name=self._options.name)
                return 0
            if services.patiently(partial(self._clean_predecessors, services)):
                self._work()
            return self._end()
        finally:
            self._children.signal_all(signal.SIGKILL)
            self._guard.stop()
            self._signals.uninstall()

    def _work(self) -> None:
        emit(
            "worker.started",
            owner=self._presence.owner,
            host=self._presence.status.hostname,
            pid=os.getpid(),
            redis=get_lock_manager().endpoint,
            prefix=self._settings.prefix,
            queues=self._options.orders.shown_queues(),
            executors=self._options.concurrency,
        )
        warn_of_eviction()
        while not self._is_over():
            self._round()
            if not self._is_over():
                self._listen()

    def _clean_predecessors(self, services: Services) -> bool:
        if not self._await_epoch():
            return False
        try:
            report = recovery.clean_predecessors(
                self._presence.status, is_name_unique=self._options.is_name_unique
            )
        except NameInUse as error:
            with suppress(*_UNAVAILABLE):
                self._heartbeat.stop()
                presence.withdraw(self._presence)
            raise CannotStart(str(error)) from error
        if report.failures:
            services.ask()  # if one is away, all is tried again when it is back
        return True

    def _incarnate(self) -> bool:
        """Becomes a new owner: row, lock file, heartbeat, guard's deadline, control channel."""
        me = presence.prepare(self._options.name, AppStatus.AppType.WORKER)
        me.status.versions = as_json(self._options.orders.versions)
        sent_at = now()
        try:
            presence.register(me)
        except BaseException:
            me.lock_file.remove()
            raise
        self._presence = me
        presence.adopt(self._presence)
        self._board.epoch = epochs.current()
        self._heartbeat = Heartbeat(
            self._presence, self._board, self._settings, self._generations, wake_self
        )
        epochs.set_nudge(self._heartbeat.nudge)
        self._board.is_fenced = False
        self._heartbeat.beaten(sent_at)
        self._guard.lock_file = self._presence.lock_file.descriptor
        self._guard.ensure()
        self._heartbeat.start()
        self._control = ControlChannel(self._presence.owner, self._settings.heartbeat_interval)
        return True

    def _is_over(self) -> bool:
        if self._children.running:
            return False
        if self._leftovers:
            return self._give_up_at is not None and now() > self._give_up_at
        return self._is_stopping or len(self._burst_done) == self._options.concurrency

    def _end(self) -> int:
        with suppress(TimeoutError):
            self._heartbeat.stop()
        self._control.close()
        problem: object = "what it left could not be settled" if self._leftovers else ""
        if self._is_shut_out:
            problem = "the database did not come back"
        if not problem:
            try:
                presence.withdraw(self._presence)
            except _UNAVAILABLE as error:
                problem = error
        if problem:
            emit("worker.unclean_end", owner=self._presence.owner, problem=problem)
            return 1
        emit("worker.stopped", owner=self._presence.owner)
        return 0

    # -- one round -----------------------------------------------------------------------------

    def _round(self) -> None:
        """What there is to do now. An error in one step is logged, stops no other, and the step is
        taken again in the next round.
        """
        self._retry_at = 0.0
        steps: list[Callable[[], None]] = [self._guard.ensure, self._heed_signals, self._reap]
        if self._heartbeat.is_lost or self._board.is_fenced:
            steps += [self._start_over]
        else:
            steps += [
                self._settle_leftovers,
                self._stops.heed_limits,
                self._stops.kill_overdue,
                self._heed_rows,
                self._heed_epoch,
                self._clean_up_in_turn,
                self._heed_schedules,
                self._fill_slots,
            ]
        for step in steps:
            try:
                step()
            except Exception as error:
                emit("worker.error", step=step.__name__, error=error, exc_info=error)
                self._retry_at = now() + _RETRY_DELAY

    def _reap(self) -> None:
        for exit in self._children.reap():
            self._note_exit(exit)

    def _listen(self) -> None:
        """Waits for a signal, a message or the next thing to do."""
        watched = [self._signals.descriptor]
        control = self._control.descriptor()
        if control is not None:
            watched.append(control)
        readable, _, _ = select.select(watched, [], [], self._time_to_wait())
        self._signals.drain()
        if control is not None and control in readable and (message := self._control.read()):
            self._obey(message)

    def _time_to_wait(self) -> float:
        """Until the next appointment; children that end and signals come through the pipe."""
        present = now()  # once: the clock may pass an appointment, or all, while they are compared
        appointments = [present + (_LONGEST_ROUND if self._is_busy() else _LONGEST_IDLE_ROUND)]
        appointments += self._stops.appointments()
        appointments += self._leftovers.appointments()
        appointments.append(self._schedules.look_at)
        if self._children.is_any_lingering():
            appointments.append(present + _LINGER_DELAY)
        appointments += [self._retry_at, self._abort_at or 0.0, *self._start_at.values()]
        # What is past was heeded in this round, as far as it could be.
        return min(at for at in appointments if at > present) - present

    def _is_busy(self) -> bool:
        return any(self._board.task(slot) != NO_TASK for slot in self._generations)

    # -- messages and signals ------------------------------------------------------------------

    def _obey(self, message: str) -> None:
        if task := messages.task_to_cancel(message):
            self._stops.ask(task.bytes, Board.CANCEL, CANCELED)
        elif messages.is_look_at_epoch(message):
            self._heartbeat.nudge()

    def _heed_signals(self) -> None:
        if not self._signals.is_asked_to_stop:
            return
        graceful, soon = self._signals.graceful, self._signals.soon
        if not self._is_stopping:
            self._is_stopping = True
            emit("worker.stopping", owner=self._presence.owner)
        # In each round: a child that has only just been forked may not have heard it yet.
        self._children.signal_all(signal.SIGTERM, but=SETTLING)
        if not self._children.running and self._give_up_at is None:
            # Only what is left to settle keeps it: clean-up can do that as well.
            self._give_up_at = now() + self._settings.shutdown_grace
        if (soon or graceful > 1) and self._abort_at is None:
            self._abort_at = now() + self._settings.shutdown_grace
        if self._abort_at is not None and now() >= self._abort_at:
            for slot in self._generations:
                if self._stops.ask(self._board.task(slot), Board.ABORT, ABORTED):
                    emit("worker.aborting", task=UUID(bytes=self._board.task(slot)))

    # -- cancels -------------------------------------------------------------------------------

    def _heed_rows(self) -> None:
        """What the heartbeat has found to stop: the message may have been lost."""
        while not self._heartbeat.to_stop.empty():
            self._stops.ask(self._heartbeat.to_stop.get().bytes, Board.CANCEL, CANCELED)

    # -- executors that ended ------------------------------------------------------------------

    def _note_exit(self, exit: Exit) -> None:
        child = exit.child
        if child.job:
            if child.job == SETTLING:
                self._leftovers.note(exit)
            self._schedules.note(exit)
            return
        stop = self._stops.forget(child)
        if exit.signal or exit.status not in (0, EXIT_WORN):
            if stop is None and not self._is_stopping:
                emit("executor.died", slot=child.slot, pid=child.pid, reason=exit.reason)
            if now() - child.started_at < _CRASH_DELAY:
                self._start_at[child.slot] = now() + _CRASH_DELAY
        elif self._options.orders.burst and not exit.status:
            self._burst_done.add(child.slot)
        is_over = stop is not None and stop.why == Board.TIME_LIMIT
        self._leftovers.add(
            exit,
            stop.reason if stop else exit.reason,
            at_fault=str(UUID(bytes=stop.task)) if stop and is_over else "",
        )

    def _settle_leftovers(self) -> None:
        if due := self._leftovers.due():
            with self._nothing_open():
                for left in due:
                    self._leftovers.start(left, self._presence.owner, self._forget_supervision)

    def _fill_slots(self) -> None:
        if self._is_stopping:
            return
        taken = {child.slot for child in self._children.running.values()}
        taken |= self._leftovers.slots() | self._burst_done
        free = [
            slot
            for slot, start_at in self._start_at.items()
            if slot not in taken and start_at <= now()
        ]
        if not free:
            return
        with self._nothing_open():
            for slot in free:
                self._generations[slot] += 1
                self._children.fork(slot, self._generations[slot], partial(self._execute, slot))

    def _execute(self, slot: int) -> int:
        """In the child."""
        self._forget_supervision()
        return Executor(
            self._presence, slot, self._generations[slot], self._board, self._options.orders
        ).run()

    # -- the epoch -----------------------------------------------------------------------------

    def _await_epoch(self) -> bool:
        """Nothing can be cleaned or claimed before Redis has the present locks. False if the worker
        is asked to stop first.
        """
        while not self._has_epoch():
            if self._signals.is_asked_to_stop:
                return False
            self._heartbeat.nudge()
            self._signals.wait(_EPOCH_DELAY)
        return True

    def _has_epoch(self) -> bool:
        if self._heartbeat.must_rebuild:
            self._heartbeat.must_rebuild = False
            return rebuilding.rebuild(self._presence.owner)
        return rebuilding.rebuild_if_wanted(self._presence.owner)

    def _heed_epoch(self) -> None:
        """A child rebuilds the locks: this process has to restore its own meanwhile."""
        if self._board.is_epoch_doubted:
            self._board.is_epoch_doubted = False
            self._heartbeat.nudge()
        if not self._heartbeat.must_rebuild:
            return
        stalled = [child for child in self._children.running.values() if child.job == "rebuild"]
        if stalled:  # for one TTL: otherwise this worker would not have been given the lead
            kill_group(stalled[0].pid)
            return
        with self._nothing_open():
            self._children.fork(self._rebuild_slot, 0, self._rebuild, job="rebuild")
        self._heartbeat.must_rebuild = False

    def _rebuild(self) -> int:
        """In the child."""
        self._forget_supervision()
        unblock()
        try:
            return 0 if rebuilding.rebuild(self._presence.owner) else 1
        except _UNAVAILABLE as error:
            emit("epoch.rebuild_failed", error=error)
            return 1

    # -- clean-up ------------------------------------------------------------------------------

    def _clean_up_in_turn(self) -> None:
        """A child does it: a long clean-up must hold up neither heartbeats nor cancels."""
        if not self._heartbeat.has_lead or self._is_stopping:
            return
        self._heartbeat.has_lead = False
        if not any(child.job == "cleanup" for child in self._children.running.values()):
            with self._nothing_open():
                self._children.fork(self._cleanup_slot, 0, self._clean_up, job="cleanup")

    def _clean_up(self) -> int:
        """In the child."""
        self._forget_supervision()
        unblock()
        return 1 if recovery.clean_up().failures else 0

    # -- schedules -----------------------------------------------------------------------------

    def _heed_schedules(self) -> None:
        """A child dispatches, for the same reason."""
        if not self._is_stopping and self._schedules.is_turn(self._presence.owner):
            with self._nothing_open():
                self._schedules.start(self._presence.owner, self._forget_supervision)

    # -- forking -------------------------------------------------------------------------------

    def _nothing_open(self) -> NothingOpen:
        return NothingOpen(self._heartbeat, self._control, self._schedules)

    def _forget_supervision(self) -> None:
        self._signals.uninstall()
        self._signals.close()
        self._guard.close_pipe()
        epochs.set_nudge(None)

    # -- fencing -------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """This incarnation may be dead to the others: nothing of it may go on. What it held is
        settled by the next incarnation, as what any dead process left.
        """
        emit("worker.fenced", owner=self._presence.owner)
        self._heartbeat.abandon()
        self._control.close()
        self._board.deadline = 0
        while self._children.running:
            self._board.kill_groups()
            self._children.reap()
            self._signals.wait(0.05)
        self._stops.clear()
        self._leftovers.clear()
        old = self._presence
        self._guard.stop()  # which holds the old lock file; the next incarnation has another
        old.lock_file.remove()
        delay = 0.1
        while True:
            try:
                self._incarnate()
                break
            except Exception as error:
                if delay < 0.2:
                    emit("worker.unavailable", what="database", error=error)
                connections.close_all()
            if self._signals.is_asked_to_stop:
                self._is_stopping = self._is_shut_out = True
                return
            self._signals.wait(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        recovery.clean_incarnation(old.status, "it fenced itself")
