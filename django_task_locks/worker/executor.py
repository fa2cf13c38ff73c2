"""An executor: a warm process that claims, runs and records one task after the other.

Its life: advance in Redis (release the last, claim the next), one UPDATE to running and one SELECT
that loads the task and looks at the worker's own row, run, one UPDATE to the final state.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DatabaseError, OperationalError, connections, router
from django.db.utils import InterfaceError

from django_task_locks import (
    epochs,
    execution,
    moments,
    own_requests,
    presence,
    releasing,
    retrying,
)
from django_task_locks.abilities import Abilities, can_run
from django_task_locks.conf import get_settings
from django_task_locks.connections import new_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import (
    InvalidTransition,
    LockServiceUnavailable,
    OwnerClosed,
    StaleSlot,
)
from django_task_locks.execution import BodyFault, Interrupted, Outcome
from django_task_locks.locks.rebuild import Epoch
from django_task_locks.locks.requests import Claimed, Idle, Lane, Lanes
from django_task_locks.models import Task, described
from django_task_locks.presence import Presence
from django_task_locks.states import State
from django_task_locks.worker.guard import NO_TASK, Board, now
from django_task_locks.worker.loading import Loaded, Loader
from django_task_locks.worker.os_signals import ExecutorSignals, Woken, wake_parent
from django_task_locks.worker.restoring import Restorer
from django_task_locks.worker.wear import Wear

R = TypeVar("R")

EXIT_ENDED = 0
EXIT_SHUT_OUT = 75
EXIT_STOPPED = 76
EXIT_WORN = 77
_LONGEST_DELAY = 2.0
_BURST_WAIT = 0.2

_MOST_ATTEMPTS = 8


class _ShutOut(Exception):
    """The worker was declared missing, or the slot has a successor: this executor must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an executor is to do: the same for all of a worker.

    queues      None for all
    versions    those that tasks may need to run here
    burst       end when nothing is left to do, here and in the worker's other executors
    max_tasks   tasks after which an executor is replaced; None for no limit
    max_memory  MB of memory after which it is replaced; None for no limit
    """

    queues: frozenset[str] | None = None
    burst: bool = False
    versions: Abilities = field(default_factory=dict)
    max_tasks: int | None = None
    max_memory: int | None = None

    def shown_queues(self) -> str:
        return "all" if self.queues is None else ",".join(sorted(self.queues))

    def serves(self, lane: Lane) -> bool:
        is_ours = self.queues is None or lane.queue in self.queues
        return is_ours and can_run(self.versions, lane.versions)


class Executor:
    """One slot's process. `run` returns its exit status."""

    def __init__(self, worker: Presence, slot: int, generation: int, board: Board, orders: Orders):
        self._slot = slot
        self._board = board
        self._orders = orders
        self._status = worker.status
        self._loader = Loader(worker.status)
        presence.adopt(worker, slot=f"{slot}.{generation}")
        self._claimant = presence.present().claimant
        settings = get_settings()
        self._idle_wait = settings.heartbeat_interval
        self._locks = new_lock_manager(longest_wait=self._idle_wait)
        self._lanes: tuple[str, ...] = ()
        self._lanes_version = ""
        self._done: releasing.Release | None = None
        self._running = ""
        self._signals = ExecutorSignals(self._is_to_stop, Interrupted)
        self._pid = os.getpid()
        self._epoch = ""  # at the last claim
        self._number = 0  # of the epoch, when the last task was loaded
        self._attempts = 0
        self._wear = Wear(orders.max_tasks, orders.max_memory)
        self._worn = ""

    def run(self) -> int:
        self._signals.install()
        releasing.add_sink(self._take_release)
        epochs.share(lambda: self._board.epoch)
        epochs.set_nudge(self._doubt_epoch)
        own_requests.on_change(Restorer(self._board, self._slot).count)
        emit("executor.started", slot=self._claimant.slot, pid=os.getpid())
        status = EXIT_ENDED
        try:
            while self._step():
                pass
            if self._worn and not self._signals.is_stopping:
                emit("executor.worn", slot=self._claimant.slot, pid=os.getpid(), after=self._worn)
                status = EXIT_WORN
        except _ShutOut:
            status = EXIT_SHUT_OUT
        emit("executor.ended", slot=self._claimant.slot, pid=os.getpid(), status=status)
        return status

    # -- the loop ------------------------------------------------------------------------------

    def _step(self) -> bool:
        """One round; False when the executor is to end."""
        if self._is_ending() and self._done is None:
            return False
        reply = self._patiently("lock service", self._advance, stops=True)
        if isinstance(reply, Claimed):
            self._perform(UUID(reply.id), reply.token)
        elif isinstance(reply, Lanes):
            self._choose(reply.version, reply.lanes)
        elif isinstance(reply, Idle) and not self._is_ending():
            return self._wait(reply.next_due_in)
        return True

    def _is_ending(self) -> bool:
        """Whether no other task is to be claimed here."""
        return self._signals.is_stopping or bool(self._worn)

    def _advance(self) -> Claimed | Idle | Lanes:
        lanes = () if self._is_ending() else self._lanes
        if (epoch := epochs.current()) != self._epoch:
            self._epoch = epoch
            self._lanes_version = ""  # they are counted anew
        done = self._done
        if done is None or done.token is None:
            return self._locks.claim(self._claimant, self._lanes_version, lanes)
        reply = self._locks.advance(
            self._claimant, self._lanes_version, lanes, id=done.id, token=done.token
        )
        self._done = None
        return reply

    def _choose(self, version: str, lanes: Mapping[str, Lane]) -> None:
        self._lanes_version = version
        self._lanes = tuple(name for name, lane in lanes.items() if self._orders.serves(lane))

    def _wait(self, next_due_in: float | None) -> bool:
        """Until something is ready or due: blocked on Redis, with the heartbeat's interval as the
        limit in case the sign was lost with a process.
        """
        seconds = self._idle_wait if next_due_in is None else min(self._idle_wait, next_due_in)
        if self._orders.burst:
            others = (slot for slot in range(self._board.slots) if slot != self._slot)
            if not any(self._board.task(slot) != NO_TASK for slot in others):
                return False
            seconds = min(seconds, _BURST_WAIT)
        wait = partial(self._locks.wait_for_ready, self._lanes, seconds)
        self._patiently("lock service", partial(self._interruptible, wait), stops=True)
        return True

    # -- one task ------------------------------------------------------------------------------

    def _perform(self, id: UUID, token: int) -> None:
        self._board.set_task(self._slot, id.bytes, Board.CLAIMED)
        try:
            task = self._patiently("database", lambda: self._start(id, token), stops=True)
            if task is not None and task.state == State.RUNNING:
                if self._signals.is_stopping:
                    task = self._handed_back(task, "its worker stops")
                elif self._number != Epoch.from_text(self._epoch)[0].number:
                    task = self._handed_back(task, "it was claimed in an epoch that has ended")
            if task is not None:
                self._run(task)
                self._wear.tasks += 1
                self._worn = self._wear.reason()
        finally:
            self._board.set_task(self._slot, NO_TASK, Board.IDLE)

    def _start(self, id: UUID, token: int) -> Task | None:
        """The task, now running here; None if it is not to run, with its request taken care of."""
        return self._begun(id, token, self._loader.start(id, token))

    def _begun(self, id: UUID, token: int, loaded: Loaded) -> Task | None:
        task = loaded.task
        if task is None or not self._loader.is_ours(task, token):
            self._drop(id, token, task)
            return None
        # Is this worker still alive to the others? If not, they may have handed the lock on before
        # the row said that it runs here. And have the locks been lost since the claim?
        if not loaded.is_alive:
            raise _ShutOut
        self._number = loaded.epoch
        task.app_lock = self._status
        return task

    def _drop(self, id: UUID, token: int, present: Task | None) -> None:
        """Takes care of the request of a task that is not to run by this claim."""
        if present is not None and present.state == State.WAITING:
            # Somebody shuts this claim out to hand it back, and may not have come to that yet.
            run_after = moments.unix(present.run_after)
            self._locks.requeue(
                str(id), owner=self._claimant.owner, token=token, run_after=run_after
            )
        else:
            self._done = releasing.Release(str(id), token)
        if present is None:
            emit("task.unknown", task=id, prefix=self._locks.keys.prefix)
        else:
            emit("task.not_claimable", task=id, state=present.state)

    def _handed_back(self, task: Task, reason: str) -> Task | None:
        hand_back = partial(self._hand_back, task, reason)
        return self._patiently("its services", hand_back, stops=True)

    def _hand_back(self, task: Task, reason: str) -> Task | None:
        """The task's code has not begun, and is not to begin on this claim: another one shall run
        it. The task if it is this executor's all the same.
        """
        token = task.lock_token
        try:
            task.hand_back(token=token)
        except InvalidTransition:
            # Canceled, or the reply was lost.
            return self._begun(task.pk, token, self._loader.load(task.pk))
        self._locks.requeue(str(task.pk), owner=self._claimant.owner, token=token)
        emit("task.requeued", task=task.pk, name=task.name, reason=reason)
        return None

    def _run(self, task: Task) -> None:
        since = max(task.created_at, task.run_after or task.created_at)
        waited = (task.started_at - since).total_seconds() if task.started_at else 0.0
        waited = max(0.0, waited)
        emit("task.started", task=task.pk, name=task.name, waited=waited)
        began = time.monotonic()
        self._running = str(task.pk)
        outcome = self._outcome(task)
        self._board.set_task(self._slot, task.pk.bytes, Board.RECORDING)
        self._patiently("database", partial(self._record, task, outcome))
        self._running = ""
        if task.state == State.WAITING:
            hand_back = partial(retrying.hand_back, self._locks, task, self._claimant.owner)
            self._patiently("lock service", hand_back, stops=True)
            return
        fields: dict[str, Any] = {
            "name": task.name,
            "seconds": time.monotonic() - began,
            "waited": waited,
        }
        if task.error:
            fields.update(reason=described(task.error), traceback=task.error["traceback"])
        emit(_EVENTS.get(State(task.state), "task.finished"), task=task.pk, **fields)

    def _outcome(self, task: Task) -> Outcome:
        signals = self._signals
        outcome, has_ended_by_itself = None, False
        try:
            limit = task.time_limit or 0.0
            self._board.set_limit(self._slot, limit, now() + limit if limit else 0.0)
            self._board.set_task(self._slot, task.pk.bytes, Board.BODY)
            if limit:
                wake_parent()  # whose next look may be further away
            signals.in_body = True
            if task.state != State.CANCELING and not self._is_to_stop():
                outcome = execution.run(task, _drive)
            has_ended_by_itself = signals.in_body  # or it has caught the interrupt
            signals.in_body = False
        except Interrupted:
            has_ended_by_itself = False
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that the body made and that has come back here
        if outcome is None or not has_ended_by_itself:
            # Threads and programs of the body may go on. The supervisor records the end, and
            # releases, when this process and its group are gone.
            sys.stdout.flush()
            os._exit(EXIT_STOPPED)
        outcome = execution.with_connections_left(outcome)
        close_broken_connections()
        return outcome

    def _record(self, task: Task, outcome: Outcome) -> None:
        """Stores the outcome; after several attempts on a database that answers, its refusal."""
        self._attempts += 1
        try:
            if not retrying.put_back(task, outcome):
                execution.record(task, outcome)
        except OperationalError as error:
            if self._attempts < _MOST_ATTEMPTS or not _answers(task):
                raise
            failed = Outcome.failed(f"The outcome cannot be stored: {str(error)[:500]}")
            execution.record(task, failed)
        self._attempts = 0

    def _is_to_stop(self) -> bool:
        """Whether the supervisor asks the present body to end."""
        asked, _ = self._board.stop_of(self._slot)
        return asked != NO_TASK and asked == self._board.task(self._slot)

    def _take_release(self, release: releasing.Release) -> bool:
        """The release of the present task goes with the next step; all others are sent at once."""
        if release.id != self._running or release.token is None:
            return False
        self._done = release
        return True

    def _doubt_epoch(self) -> bool:
        """Redis has another epoch than the worker's: its heartbeat looks into it."""
        self._board.is_epoch_doubted = True
        wake_parent()
        return True

    # -- patience ------------------------------------------------------------------------------

    def _interruptible(self, wait: Callable[[], object]) -> None:
        """Waits, unless asked to end; a signal ends the wait."""
        try:
            self._signals.is_waiting = True
            if not self._signals.is_stopping:
                wait()
            self._signals.is_waiting = False
        except Woken:
            pass
        finally:
            self._signals.is_waiting = False

    def _patiently(self, what: str, do: Callable[[], R], *, stops: bool = False) -> R | None:
        """Repeats until it works: an outage changes when, never what. The guard ends this process
        if the worker has to give up. With `stops`, a worker that ends does not wait for it: None.
        """
        delay, problem = 0.05, None
        while True:
            try:
                result = do()
            except (OwnerClosed, StaleSlot) as error:
                raise _ShutOut from error
            except (DatabaseError, InterfaceError, LockServiceUnavailable) as error:
                if problem is None:
                    emit("worker.unavailable", what=what, error=error)
                problem = error
                connections.close_all()
                if stops and self._signals.is_stopping:
                    self._done = None  # the supervisor settles what this slot holds
                    return None
                if stops:
                    self._interruptible(partial(time.sleep, delay))
                else:
                    time.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)
            else:
                if problem is not None:
                    emit("worker.available", what=what)
                return result


_EVENTS = {State.FAILED: "task.failed", State.CANCELED: "task.canceled"}


def _drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a body's coroutine in this thread's own event loop, where an interrupt reaches it."""

    async def run() -> Any:
        try:
            result = await coroutine
        finally:
            # The thread in which the ORM works for coroutines keeps its connections.
            problem = await sync_to_async(execution.tidy_connections)()
            await sync_to_async(close_broken_connections)()
        if problem:
            raise BodyFault(problem)
        return result

    try:
        return asyncio.run(run())
    finally:
        coroutine.close()


def close_broken_connections() -> None:
    """Closes this thread's connections on which errors occurred and that are of no use any more."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


def _answers(task: Task) -> bool:
    with connections[router.db_for_write(Task, instance=task)].cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone() is not None
