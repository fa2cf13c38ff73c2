"""Immediate tasks: run in the process that dispatches them, if their resources are free."""

import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from django.db import OperationalError, connections, router, transaction
from django.db.utils import InterfaceError

from django_task_locks import execution, own_requests, presence, releasing, retrying
from django_task_locks.abilities import can_run, own_abilities
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import (
    InvalidTransition,
    LockServiceUnavailable,
    OwnerClosed,
)
from django_task_locks.execution import Interrupted, Outcome
from django_task_locks.inserting import insert, make_room
from django_task_locks.locks.requests import Grant
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import Task, described, reason
from django_task_locks.orders import Order, lock_request
from django_task_locks.own_requests import OwnRequest
from django_task_locks.releasing import Release
from django_task_locks.states import OnConflict, OnTimeout, State

BLOCKED = "Resources temporarily unavailable."
UNAVAILABLE = "Lock service unavailable."
INCAPABLE = "This process does not have the versions that it needs."

_PASSING = (OperationalError, InterfaceError)
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


@dataclass(frozen=True, slots=True)
class ImmediateRun:
    """An immediate task that has its locks and its row."""

    task: Task
    alias: str
    on_timeout: str = OnTimeout.FAIL

    def here(self) -> Task:
        try:
            outcome = self._run()
        except BaseException:
            self.finish(CANCELED_BY_CALLER)
            raise
        self.finish(outcome)
        return self.task

    def finish(self, outcome: Outcome) -> None:
        """Records the outcome. A database that is away may get it later; then its error is raised
        all the same. In the caller's transaction the row goes with it.
        """
        connection = transaction.get_connection(self.alias)
        try:
            self._record(outcome)
        except _PASSING:
            if connection.in_atomic_block:
                raise
            connection.close()  # the next use opens a new one
            try:
                self._record(outcome)
            except _PASSING as error:
                emit("task.not_recorded", task=self.task.pk, name=self.task.name, error=error)
                self.record_later(outcome)
                raise

    def record_later(self, outcome: Outcome) -> None:
        """Records it in a thread, as soon as the database can be reached."""
        Thread(target=self._keep_recording, args=(outcome,), daemon=True).start()

    def _keep_recording(self, outcome: Outcome) -> None:
        delay = _FIRST_DELAY
        while True:
            time.sleep(delay)
            try:
                self._record(outcome)
                return
            except _PASSING:
                delay = min(delay * 2, _LONGEST_DELAY)
            finally:
                connections.close_all()

    def _record(self, outcome: Outcome) -> None:
        if retrying.put_back(self.task, outcome):
            retrying.leave_to_workers(self.task, self.alias)
            return
        if outcome.has_timed_out and self.on_timeout == OnTimeout.DEFER and self._deferred():
            return
        execution.record(self.task, outcome)
        fields: dict[str, Any] = {"reason": described(self.task.error)} if self.task.error else {}
        emit(
            "task.failed" if self.task.state == State.FAILED else "task.finished",
            task=self.task.pk,
            name=self.task.name,
            state=self.task.state,
            **fields,
        )

    def _deferred(self) -> bool:
        """Leaves the task to a worker: the row first, then its request. False if somebody has
        decided the task, or wants it to end.
        """
        task, token = self.task, self.task.lock_token
        try:
            task.hand_back(token=token)
        except InvalidTransition:
            return False
        emit("task.deferred", task=task.pk, name=task.name)
        retrying.leave_to_workers(task, self.alias)
        return True

    def _run(self) -> Outcome:
        drive = execution.drive_within(time_limit(self.task), self.task)
        if not transaction.get_connection(self.alias).in_atomic_block:
            before = execution.aliases_in_transaction()
            return execution.with_connections_left(execution.run(self.task, drive), before)
        # In the caller's transaction: what the body wrote goes if it fails, and a database error
        # in it leaves the caller able to go on.
        with suppress(_Undo), transaction.atomic(using=self.alias):
            outcome = execution.run(self.task, drive)
            if outcome.state != State.COMPLETED:
                raise _Undo
        return outcome


class _Undo(Exception):
    """Rolls the body's savepoint back."""


CANCELED_BY_CALLER = Outcome(State.CANCELED, error=reason("Canceled by its caller."))


def time_limit(task: Task) -> float | None:
    """Seconds that an immediate coroutine may take; None for no limit."""
    return task.time_limit or get_settings().immediate_time_limit


def acquire(order: Order, task: Task) -> ImmediateRun | str:
    """Takes the locks and writes the row as running; or says why it cannot run here: then nothing
    is written. Raises UniqueKeyTaken.
    """
    is_able = not task.versions or can_run(own_abilities(), task.versions)
    if is_able or order.on_conflict != OnConflict.REPLACE:
        make_room(task, order.on_conflict)
    if not is_able:
        return INCAPABLE
    present = presence.present()
    id = str(task.pk)
    own = OwnRequest(lock_request(task, present.claimant), waits=False, made_at=time.time())
    own_requests.add(own)
    try:
        own.sending()
        outcome = get_lock_manager().try_request(own.request)
    except OwnerClosed:
        own_requests.forget(id)
        if not presence.renounce(present):
            raise
        return acquire(order, task)  # as the process that it is from now on
    except LockServiceUnavailable:
        # It may have been granted all the same.
        releasing.release(Release(id, owner=present.owner))
        return UNAVAILABLE
    except BaseException:  # an interrupt, after which it may have been granted as well
        releasing.release(Release(id, owner=present.owner))
        raise
    if not isinstance(outcome, Grant) or outcome.token is None:
        own_requests.forget(id)
        return BLOCKED
    if not own.is_granted(outcome.token):
        releasing.release(Release(id, outcome.token))
        return UNAVAILABLE
    alias = router.db_for_write(Task)
    try:
        if transaction.get_connection(alias).in_atomic_block:
            releasing.release_at_transaction_end([alias], Release(id, outcome.token))
        task.state = State.RUNNING
        task.app_lock = present.status
        task.worker_name = present.status.name
        task.lock_token = outcome.token
        task.started_at = DatabaseNow()
        insert(task, order.on_conflict)
        task.__dict__.pop("started_at", None)
    except Interrupted:
        raise  # the row may be there: this executor's supervisor looks, and releases
    except BaseException as error:
        if isinstance(error, _PASSING) and not transaction.get_connection(alias).in_atomic_block:
            # The row may be there: only the reply was lost. It is ended, and released, when the
            # database is back.
            ImmediateRun(task, alias).record_later(Outcome.failed("Its start was not confirmed."))
        else:
            releasing.release(Release(id, outcome.token))
        raise
    task.announce(State.WAITING)
    return ImmediateRun(task, alias, order.on_timeout)
