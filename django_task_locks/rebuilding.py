"""Rebuilds the locks when Redis has lost them, has older data, or is another server.

1. The number of the epoch is raised in the database, compare-and-set: of two processes one leads,
   and what was claimed under the old number does not start.
2. Redis is closed under the new number. Each running row gets its locks back, each waiting one its
   place in the queue.
3. Each process restores what it holds by itself, and says so in its row (`presence`). One that has
   not done so within its TTL is declared missing, and gets another TTL to find out: a worker kills
   its executors, other code is told.
4. What nobody has restored is ended, and the epoch opens.

A leader that dies or stalls is followed by another with a higher number, which shuts it out.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, connections, router, transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q

from django_task_locks import epochs, lock_files
from django_task_locks.conf import get_settings
from django_task_locks.connections import rebuilding_lock_manager, restoring_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import EpochLost, LockServiceUnavailable, TaskLocksError
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import queue_owner
from django_task_locks.locks.rebuild import Epoch, Found, Known, Rebuild, arrival
from django_task_locks.locks.requests import Claimant, Lane, LockRequest
from django_task_locks.managers import DatabaseNow
from django_task_locks.messages import send_look_at_epoch
from django_task_locks.models import AppStatus, LockEpoch, Task
from django_task_locks.moments import unix
from django_task_locks.states import State

_BATCH = 500
_LOOK_AGAIN = 0.1
_JOB = "rebuild"


def rebuild_if_wanted(candidate: str) -> bool:
    """Whether the locks are those of the present epoch. If they are not, this process rebuilds
    them, unless another one is at it, or this one reaches a server that the others have left: then
    False, and the caller looks again later.

    Raises LockServiceUnavailable, and the database's errors.
    """
    judgment = _judge(candidate)
    return rebuild(candidate) if judgment is None else judgment


def are_locks_right() -> bool:
    """Whether Redis holds the locks of the present epoch."""
    manager = rebuilding_lock_manager()
    try:
        return _are_right(Rebuild(manager).look(), LockEpoch.present())
    finally:
        manager.transport.drop_connections()


def is_wanted(candidate: str) -> bool:
    """Whether this process is to call `rebuild`; then nobody else does for one TTL."""
    return _judge(candidate) is None


def rebuild(leader: str = "", me: UUID | None = None) -> bool:
    """Rebuilds the locks under a new epoch. False if another rebuild, or another loss, came first.

    leader  the candidate for whom `is_wanted` was true
    me      row of this process, if it has nothing to restore and is not waited for

    Raises LockServiceUnavailable, and the database's errors.
    """
    manager = rebuilding_lock_manager()
    try:
        if is_done := _rebuild(manager, Rebuild(manager), leader, me):
            manager.extend_lead(_JOB, leader, 0)
        return is_done
    except EpochLost as error:
        emit("epoch.rebuild_failed", error=error)
        return False
    finally:
        manager.transport.drop_connections()


def _judge(candidate: str) -> bool | None:
    """Whether the locks are right; None if they are to be rebuilt by this process."""
    manager = restoring_lock_manager()
    try:
        found = Rebuild(manager).look()
        present = LockEpoch.present()
        if _are_right(found, present):
            return True
        is_left = present.server and found.is_itself and found.server != present.server
        if is_left and 0 < found.epoch.number < present.number:
            emit("epoch.demoted", endpoint=manager.endpoint, found=found.epoch, present=present)
            return False
        return None if manager.lead(_JOB, candidate, get_settings().ttl) else False
    finally:
        manager.transport.drop_connections()


def _are_right(found: Found, present: Epoch) -> bool:
    return bool(present.number and found.is_open and found.epoch == present and found.is_itself)


def _rebuild(manager: LockManager, keeper: Rebuild, leader: str, me: UUID | None) -> bool:
    began = time.monotonic()
    found = keeper.look()
    epoch = _raise_number(found)
    if epoch is None or not keeper.begin(epoch):
        return False
    is_first = epoch.number == 1
    if not is_first:
        emit("epoch.rebuilding", epoch=epoch, found=found.epoch)
    held, waiting, floor = 0, 0, _number_of_now()
    for tasks in _batches():
        known = _known_of(tasks)
        for id, reason in keeper.restore(epoch, known):
            emit("epoch.not_restored", request=id, reason=reason)
        held += sum(one.token is not None for one in known)
        waiting += sum(one.token is None for one in known)
        floor = max(floor, *(task.lock_token or 0 for task in tasks))
        manager.extend_lead(_JOB, leader, get_settings().ttl)
    _await_processes(manager, keeper, epoch, leader, me)
    swept = keeper.sweep(epoch, _owners(manager))
    keeper.open(epoch, floor)
    emit(
        "epoch.first" if is_first else "epoch.opened",
        epoch=epoch,
        held=held,
        waiting=waiting,
        swept=swept,
        seconds=time.monotonic() - began,
    )
    return True


def _raise_number(found: Found) -> Epoch | None:
    """The new epoch, as it stands in the database now; None if another process was faster."""
    present = LockEpoch.present()
    number = max(present.number, found.epoch.number) + 1
    server = found.server if get_settings().check_server else ""
    if get_settings().check_server and not server:
        raise LockServiceUnavailable(
            "the server does not tell its run id (INFO server), by which it is recognized: allow "
            "the user +info, or set TASK_LOCKS['check_server'] to False if it hides that"
        )
    rows = LockEpoch.objects.using(router.db_for_write(LockEpoch))
    values = {"number": number, "server": server, "raised_at": DatabaseNow()}
    if rows.filter(number=present.number).update(**values):
        return Epoch(number, server)
    try:
        with transaction.atomic(using=rows.db):
            rows.create(pk=1, **values)
    except IntegrityError:
        return None
    return Epoch(number, server)


# -- what the database knows -----------------------------------------------------------------------


def _batches() -> Iterator[list[Task]]:
    """The tasks that have not ended, each once, as it is when it is read: one that passes from one
    state to the other meanwhile is in either.
    """
    rows = Task.objects.using(router.db_for_write(Task)).incomplete().only(*_FIELDS)
    last: UUID | None = None
    while True:
        rest = rows if last is None else rows.filter(pk__gt=last)
        batch = list(rest.order_by("pk")[:_BATCH])
        if not batch:
            return
        last = batch[-1].pk
        yield batch


_FIELDS = (
    "name", "exclusive", "shared", "state", "queue", "priority", "run_after", "versions",
    "created_at", "app_lock_id", "worker_name", "lock_token",
)  # fmt: skip


def _known_of(tasks: list[Task]) -> list[Known]:
    """What runs is held, whether its process is alive or not: clean-up decides that later."""
    pks = {task.app_lock_id for task in tasks if task.app_lock_id is not None}
    processes = AppStatus.objects.using(router.db_for_write(AppStatus)).filter(pk__in=pks)
    ttls: dict[UUID | None, timedelta] = dict(processes.values_list("pk", "ttl"))
    known = []
    for task in tasks:
        claimant = None
        if task.state != State.WAITING:
            ttl = ttls.get(task.app_lock_id)
            claimant = Claimant(
                owner=f"{task.worker_name or 'nobody'}@{task.app_lock_id or task.pk}",
                ttl=ttl.total_seconds() if ttl else get_settings().ttl,
            )
        try:
            known.append(known_of(task, claimant))
        except TaskLocksError as error:
            emit("epoch.not_restored", request=task.pk, reason=error)
    return known


def known_of(task: Task, claimant: Claimant | None) -> Known:
    """A task as its row knows it; raises InvalidTask or InvalidResource for a row that no dispatch
    has written.
    """
    lane = Lane(queue=task.queue, versions=task.versions)
    request = LockRequest(
        id=str(task.pk),
        exclusive=tuple(task.exclusive),
        shared=tuple(task.shared),
        priority=task.priority,
        lane=lane,
        claimant=claimant,
        label=task.name,
        run_after=None if claimant else unix(task.run_after),
    )
    token = task.lock_token if claimant else None
    return Known(request, lane, token, arrival(task.created_at.timestamp() * 1000))


def _number_of_now() -> int:
    """By the database's clock, which all servers of Redis share."""
    rows = LockEpoch.objects.using(router.db_for_write(LockEpoch))
    return arrival(rows.values_list("raised_at", flat=True).get().timestamp() * 1000)


# -- what the processes know -----------------------------------------------------------------------


def _await_processes(
    manager: LockManager, keeper: Rebuild, epoch: Epoch, leader: str, me: UUID | None
) -> None:
    """Returns when every live process has restored its own, or can do nothing with it any more.

    One that has not restored it within its TTL reaches the database and not the locks, and others
    wait: it is declared missing. From then on its heartbeats are refused, and when the last one is
    older than its TTL it has been fenced, as any other missing process.

    Raises EpochLost when nobody can restore anything here any more.
    """
    began = time.monotonic()
    told: set[UUID] = set()
    while True:
        if (found := keeper.look()).epoch != epoch:
            raise EpochLost(f"{epoch} was lost while it was made (found: {found.epoch})")
        waited = timedelta(seconds=time.monotonic() - began)
        behind = [status for status in _behind(epoch, me) if _is_awaited(status, waited)]
        if not behind:
            return
        for status in behind:
            if status.pk not in told:
                told.add(status.pk)
                if status.app_type == AppStatus.AppType.WORKER:  # who reads its messages
                    send_look_at_epoch(manager, status.owner)
                epochs.nudge()  # it may be this process
            if waited > status.ttl and status.missing_at is None:
                _declare_missing(manager, status, epoch)
        manager.extend_lead(_JOB, leader, get_settings().ttl)
        time.sleep(_LOOK_AGAIN)


_BEATS = Q(last_heartbeat__gte=DatabaseNow() - F("ttl"))
_TIME_FOR_A_BEAT = 0.2  # of a process's TTL


def _behind(epoch: Epoch, me: UUID | None) -> Iterator[AppStatus]:
    rows = AppStatus.objects.using(router.db_for_write(AppStatus)).filter(epoch__lt=epoch.number)
    beats = ExpressionWrapper(_BEATS, output_field=BooleanField())
    return (status for status in rows.annotate(beats=beats) if status.pk != me)


def _is_awaited(status: AppStatus, waited: timedelta) -> bool:
    if status.beats:  # type: ignore[attr-defined]
        return True
    if status.missing_at is not None:
        return False
    if connections[router.db_for_write(AppStatus)].vendor == "sqlite":
        # A long transaction of somebody's keeps it from writing; its lock file tells if it lives.
        return lock_files.is_held(status.lock_file, status.owner)
    # The database may have been away, and only just be back.
    return waited < status.ttl * _TIME_FOR_A_BEAT


def _declare_missing(manager: LockManager, status: AppStatus, epoch: Epoch) -> None:
    rows = AppStatus.objects.using(router.db_for_write(AppStatus))
    cut_off = rows.filter(_BEATS, pk=status.pk, epoch__lt=epoch.number, missing_at=None)
    if cut_off.update(missing_at=DatabaseNow()):
        manager.close_owner(status.owner)
        emit(
            "recovery.missing",
            owner=status.owner,
            reason="it did not restore its locks in the new epoch within its TTL",
        )


def _owners(manager: LockManager) -> list[str]:
    queues = {queue_owner(lane.queue) for lane in manager.lanes().values()}
    return [*manager.owners(), *sorted(queues)]
