"""This process as others see it: its AppStatus row, its lock file and its heartbeat.

Web processes, scripts and shells are announced on their first use of locks, and a daemon thread
keeps their heartbeat. A worker registers by itself and keeps its own; its executors adopt it.
"""

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, IntegrityError, connections, router
from django.db.models import Subquery
from django.db.models.functions import Coalesce
from django.db.utils import InterfaceError

from django_task_locks import epochs, own_requests, reasserting, rebuilding
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import EpochLost, LockServiceUnavailable, OwnerClosed
from django_task_locks.ids import uuid7
from django_task_locks.lock_files import LockFile
from django_task_locks.locks.keys import NO_EPOCH
from django_task_locks.locks.rebuild import Epoch
from django_task_locks.locks.requests import Claimant
from django_task_locks.managers import AppStatusQuerySet, DatabaseNow, ThisProcess
from django_task_locks.models import AppStatus, LockEpoch

LOOK_AGAIN = 0.5  # seconds to the next beat while the locks are being rebuilt
# Seconds to the next beat in any case: whoever finds the locks in another epoch asks for one, beats
# among them.
SOONEST = 0.2
_FIRST_BEAT_TIMEOUT = 10.0


@dataclass(frozen=True)
class Presence:
    """One incarnation of this process; an executor's is its worker's, with its slot."""

    status: AppStatus
    lock_file: LockFile
    slot: str = ""

    @cached_property  # as `claimant`: each hold asks for it
    def owner(self) -> str:
        return self.status.owner

    @cached_property
    def claimant(self) -> Claimant:
        return Claimant(owner=self.owner, ttl=self.status.ttl.total_seconds(), slot=self.slot)


def default_name() -> str:
    return socket.gethostname() or "localhost"


def prepare(name: str, app_type: str) -> Presence:
    """A new incarnation with its lock file, not yet in the database.

    Raises ImproperlyConfigured where the lock file cannot be made.
    """
    settings = get_settings()
    status = AppStatus(
        pk=uuid7(),
        name=name,
        app_type=app_type,
        ttl=timedelta(seconds=settings.ttl),
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )
    try:
        lock_file = LockFile(settings.run_dir, status.owner)
    except OSError as error:
        raise ImproperlyConfigured(
            f"TASK_LOCKS['run_dir'] is {settings.run_dir!r}: the lock file of this process cannot "
            f"be made there ({error}); name a directory that this process may write"
        ) from error
    status.lock_file = str(lock_file.path)
    return Presence(status, lock_file)


class Pulse(Enum):
    """What a heartbeat has found: all is steady; the process is behind, since a new epoch has
    begun; or it is lost: its row is gone, or it was declared missing.
    """

    STEADY = "steady"
    BEHIND = "behind"
    LOST = "lost"


def register(presence: Presence) -> None:
    """Writes the row; its first heartbeat is now. Repeatable."""
    status = presence.status
    # What has been asked for already (see `_must_not_wait`) is restored first.
    status.epoch = 0 if own_requests.known() else LockEpoch.present().number
    status.started_at = status.last_heartbeat = DatabaseNow()
    try:
        status.save(using=_alias(), force_insert=True)
    except IntegrityError:
        # The reply to an earlier attempt was lost.
        if beat(presence) == Pulse.LOST:
            raise
    if status.epoch:
        # Not the one from above: a rebuild that has not seen this row may have come between.
        epochs.adopt(str(LockEpoch.present()))


def beat(presence: Presence) -> Pulse:
    """One heartbeat; one statement while it is steady."""
    rows = _own_row(presence)
    present = Coalesce(Subquery(LockEpoch.objects.values("number")[:1]), 0)
    if rows.filter(epoch=present).update(last_heartbeat=DatabaseNow()):
        return Pulse.STEADY
    return Pulse.BEHIND if rows.update(last_heartbeat=DatabaseNow()) else Pulse.LOST


def catch_up(presence: Presence, restore: Callable[[Epoch], bool]) -> bool:
    """The process takes the present epoch for its own, restores its locks in it, and says so in its
    row. False if that has to be repeated.

    restore  brings everything back that this process alone knows of; False if it cannot yet
    """
    epoch = LockEpoch.present()
    epochs.adopt(str(epoch))
    if not restore(epoch):
        return False
    if _own_row(presence).update(epoch=epoch.number):
        emit("epoch.adopted", owner=presence.owner, epoch=epoch)
    return True


def _own_row(presence: Presence) -> AppStatusQuerySet:
    return AppStatus.objects.using(_alias()).filter(pk=presence.status.pk, missing_at=None)


def withdraw(presence: Presence) -> None:
    """A clean end: nothing of this incarnation stays. What it still holds keeps the row, so that
    clean-up finds it.
    """
    try:
        left = get_lock_manager().forget_owner(presence.owner)
    except EpochLost:
        left = 0  # of what it held the rebuild keeps what its tasks' rows say
    if not left:
        AppStatus.objects.using(_alias()).filter(pk=presence.status.pk, tasks=None).delete()
        presence.lock_file.remove()


def _alias() -> str:
    return router.db_for_write(AppStatus)


# -- the presence of this process ------------------------------------------------------------------


class _Beater(threading.Thread):
    """Keeps the heartbeat of a process that is no worker."""

    def __init__(self, presence: Presence) -> None:
        super().__init__(name="task-locks-heartbeat", daemon=True)
        self.presence = presence
        self.is_registered = threading.Event()
        self.problem: Exception | None = None
        self.has_epoch = False
        self._watch = reasserting.Watch(reasserting.OwnHoldings())
        self._is_over = False
        self._wake = threading.Event()

    def end(self) -> None:
        self._is_over = True
        self._wake.set()

    def nudge(self) -> None:
        """The next beat comes at once, or soon if the last one has only just been."""
        self._wake.set()

    def run(self) -> None:
        interval = get_settings().heartbeat_interval
        while not self._is_over:
            self._wake.clear()
            soonest, wait = time.monotonic() + SOONEST, interval
            try:
                if self._beat():
                    self._tend_epoch()
                else:
                    emit("presence.lost", owner=self.presence.owner)
                    _State.forget(self.presence)
                    own_requests.tell_lost("its process was declared missing")
                    break
                if self.problem:
                    emit("presence.beat_again", owner=self.presence.owner)
                self.problem = None
                if not self.has_epoch:
                    wait = min(LOOK_AGAIN, interval)
            except Exception as error:  # whatever it is, the next beat may succeed
                if not self.problem:
                    emit("presence.beat_failed", owner=self.presence.owner, error=error)
                self.problem = error
                connections.close_all()
            if not self._is_over:
                self._wake.wait(wait)
                if not self._is_over:
                    time.sleep(max(0.0, soonest - time.monotonic()))
        connections.close_all()

    def _beat(self) -> bool:
        if not self.is_registered.is_set():
            register(self.presence)
            emit("presence.announced", owner=self.presence.owner)
            self._establish_epoch()
            self.is_registered.set()
        else:
            pulse = beat(self.presence)
            if pulse == Pulse.LOST:
                return False
            if pulse == Pulse.BEHIND:
                catch_up(self.presence, own_requests.restore)
        try:
            get_lock_manager().beat(self.presence.owner, get_settings().ttl)
            self.has_epoch = epochs.current() != NO_EPOCH
            if self.has_epoch:
                self._watch.look(get_lock_manager())
        except OwnerClosed:
            return False
        except EpochLost:
            self.has_epoch = False
        for duty in list(_duties):
            duty()
        return True

    def _establish_epoch(self) -> None:
        """The first process of a deployment makes its first epoch, before it asks for anything."""
        me = self.presence.status.pk
        try:
            if epochs.current() == NO_EPOCH and rebuilding.is_wanted(self.presence.owner):
                rebuilding.rebuild(self.presence.owner, me)
                catch_up(self.presence, own_requests.restore)
        except LockServiceUnavailable as error:
            emit("epoch.rebuild_failed", error=error)  # a later beat does it

    def _tend_epoch(self) -> None:
        if not self.has_epoch and rebuilding.is_wanted(self.presence.owner):
            # This thread goes on beating meanwhile.
            threading.Thread(
                target=_rebuild,
                args=[self.presence.owner],
                name="task-locks-rebuild",
                daemon=True,
            ).start()


def _rebuild(leader: str) -> None:
    try:
        rebuilding.rebuild(leader)
    except Exception as error:  # the next beat finds it as it is
        emit("epoch.rebuild_failed", error=error)
    finally:
        connections.close_all()


# What the heartbeat's thread does besides, see add_duty.
_duties: set[Callable[[], None]] = set()


def add_duty(duty: Callable[[], None]) -> None:
    """Has it called after each heartbeat of this process; an error of it counts as one of the
    heartbeat's. Adding it again changes nothing.
    """
    _duties.add(duty)


class _State:
    lock: ClassVar[threading.RLock] = threading.RLock()
    presence: ClassVar[Presence | None] = None
    beater: ClassVar[_Beater | None] = None

    @classmethod
    def forget(cls, presence: Presence) -> None:
        with cls.lock:
            if cls.presence is presence:
                cls.presence = cls.beater = ThisProcess.pk = None

    @classmethod
    def forget_in_child(cls) -> None:
        # The parent's thread does not run here, and its row is not this process's. Its lock file
        # stays open on purpose: a fork of it may run what it protects.
        cls.lock = threading.RLock()
        cls.presence = cls.beater = ThisProcess.pk = None


os.register_at_fork(after_in_child=_State.forget_in_child)


def present() -> Presence:
    """This process's presence, announced on first use.

    Raises ImproperlyConfigured or the database's error when the process cannot be announced.
    """
    with _State.lock:
        if _State.presence is None:
            # What it imports is imported here: a fork during an import of the thread's would leave
            # its child with a lock that nobody opens.
            get_lock_manager()
            presence = prepare(default_name(), AppStatus.AppType.OTHER)
            beater = _Beater(presence)
            beater.start()
            _State.presence, _State.beater = presence, beater
            ThisProcess.pk = presence.status.pk
        presence, started = _State.presence, _State.beater
    if started is not None and not _must_not_wait():
        started.is_registered.wait(_FIRST_BEAT_TIMEOUT)
        if not started.is_registered.is_set() and started.problem:
            raise started.problem
    return presence


def renounce(presence: Presence) -> bool:
    """This incarnation was declared missing: the next use announces a new one. False if that is
    not this process's to do, but its worker's.
    """
    with _State.lock:
        beater = _State.beater
        if _State.presence is not presence:
            return True  # the heartbeat has found out, too
        if beater is None:
            return False
        beater.end()
        _State.forget(presence)
    emit("presence.lost", owner=presence.owner)
    own_requests.tell_lost("its process was declared missing")
    return True


def nudge() -> bool:
    """Has this process's heartbeat come at once; False if it has none of its own."""
    beater = _State.beater
    if beater is None:
        return False
    beater.nudge()
    return True


epochs.set_nudge(nudge)


def adopt(presence: Presence, slot: str = "") -> None:
    """This process is the registered presence itself, or an executor of it in this slot."""
    with _State.lock:
        _State.presence = replace(presence, slot=slot)
        _State.beater = None
        ThisProcess.pk = presence.status.pk


def _must_not_wait() -> bool:
    """SQLite has one writer: inside a transaction the thread's row has to wait for us. There the
    lock file, and not the heartbeat, tells that we live.
    """
    connection = connections[_alias()]
    return connection.vendor == "sqlite" and connection.in_atomic_block


def leave() -> None:
    """A clean end of this process's presence, as at its exit; the next use announces it anew."""
    with _State.lock:
        presence, beater = _State.presence, _State.beater
    if presence is None or beater is None:
        return  # none, or an executor's, which is its worker's to end
    beater.end()
    beater.join(timeout=2)
    _State.forget(presence)
    epochs.forget()
    try:
        withdraw(presence)
    except (DatabaseError, InterfaceError, LockServiceUnavailable) as error:
        emit("presence.left_behind", owner=presence.owner, error=error)


atexit.register(leave)
