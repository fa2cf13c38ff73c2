"""Brings rows and requests into line: neither may be there without the other."""

from datetime import timedelta
from uuid import UUID

from django.db import router
from django.db.models import Q

from django_task_locks import grouping, sending
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.locks.keys import queue_owner
from django_task_locks.locks.reassertion import free_lost
from django_task_locks.managers import DatabaseNow, TaskQuerySet
from django_task_locks.models import Task
from django_task_locks.reports import Report
from django_task_locks.settling import HAND_BACK, task_id
from django_task_locks.states import State

_BATCH = 500


def _tasks() -> TaskQuerySet:
    return Task.objects.using(router.db_for_write(Task))


# -- requests of tasks that have ended otherwise ---------------------------------------------------


def clean_queues(report: Report) -> None:
    """Unclaimed requests whose row is final or gone: it was changed past the signals, or its
    release was lost with a process. A request is sent after the commit of its row, and a final
    state stays, so that one look is enough.
    """
    manager = get_lock_manager()
    for queue in sorted({lane.queue for lane in manager.lanes().values()}):
        owner = queue_owner(queue)
        ids = sorted(manager.registry(owner))
        for first in range(0, len(ids), _BATCH):
            batch = ids[first : first + _BATCH]
            rows = _tasks().incomplete().filter(pk__in=[pk for pk in map(task_id, batch) if pk])
            alive = {str(pk) for pk in rows.values_list("pk", flat=True)}
            for id in batch:
                if id not in alive and report.scope.covers_request(id):
                    release_ended(id, owner, report)


def release_ended(id: str, owner: str, report: Report) -> None:
    with report.step("request", id, owner, "its task has ended or is gone", "release"):
        if not report.dry_run:
            # Only while it is the queue's: a claim finds the row as it is, and releases.
            get_lock_manager().release(id, owner=owner)
            get_lock_manager().forget_entry(id, owner)
            emit("recovery.released", request=id, owner=owner)


# -- requests that a live process has not released -------------------------------------------------


def release_finished(report: Report) -> None:
    """Held requests of live processes whose task ended more than a TTL ago: its code runs no more,
    and its release, which is sent at once and repeated, has not come. One whose row is not there is
    left to its owner: the row may not be committed yet. Where the record alone was lost, the
    registry leads to the locks that still name it.
    """
    manager = get_lock_manager()
    holders: dict[str, str] = {}
    owners = list(manager.owners())
    for first in range(0, len(owners), _BATCH):
        for owner, ids in manager.registries(owners[first : first + _BATCH]).items():
            holders |= dict.fromkeys(ids, owner)
    held = sorted(id for id in holders if task_id(id) and report.scope.covers_request(id))
    ended = _tasks().filter(
        state__in=[state for state in State if state.is_final],
        finished_at__lt=DatabaseNow() - timedelta(seconds=get_settings().ttl),
    )
    for first in range(0, len(held), _BATCH):
        rows = ended.filter(pk__in=[task_id(id) for id in held[first : first + _BATCH]])
        for task in rows.order_by("pk").only("lock_token", "exclusive", "shared"):
            id, owner = str(task.pk), holders[str(task.pk)]
            with report.step("request", id, owner, "its task ended a TTL ago", "release"):
                if not report.dry_run:
                    released = manager.release(id, owner=owner, token=task.lock_token)
                    if released.status == "unknown":
                        free_lost(manager, id, owner, [*task.exclusive, *task.shared])
                    emit("recovery.released", request=id, owner=owner)


# -- waiting tasks that never reached Redis --------------------------------------------------------


def send_unsent(report: Report) -> None:
    """Waiting rows without a request (Redis was away at their commit), in batches by id."""
    manager = get_lock_manager()
    wanted = Q(state=State.WAITING)
    if report.dry_run:  # what a run has handed back by now
        wanted |= Q(pk__in=[step.subject for step in report.steps if step.action == HAND_BACK])
    last: UUID | None = None
    while True:
        rows = report.scope.tasks(_tasks().filter(wanted)).order_by("pk")
        if last is not None:
            rows = rows.filter(pk__gt=last)
        ids = list(rows.values_list("pk", flat=True)[:_BATCH])
        if not ids:
            return
        last = ids[-1]
        known = manager.known([str(id) for id in ids])
        for id in ids:
            if str(id) not in known:
                _send(id, wanted, report)


def _send(id: UUID, wanted: Q, report: Report) -> None:
    # A second look: it may have been on its way, or done, since the first.
    task = _tasks().filter(wanted, pk=id).first()
    if task is None or not report.scope.covers_task(task):
        return
    with report.step("unsent", str(id), "", "waiting, but Redis does not know it", "send") as step:
        if report.dry_run:
            return
        if sending.send_late(id):
            emit("recovery.resent", task=id)
        else:
            step.action = "nothing: it waits no more"


# -- groups that nobody has marked as finished -----------------------------------------------------


def finish_groups(report: Report) -> None:
    for pk in grouping.overdue():
        why = "all of its tasks have ended, and nobody has said so"
        with report.step("group", str(pk), "", why, "mark as finished"):
            if not report.dry_run:
                grouping.finish_if_done(pk)
