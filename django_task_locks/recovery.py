"""Finds and releases what dead, restarted or cut-off processes left behind.

Used by a worker's start (`clean_predecessors`), the periodic hook (`run_periodic_cleanup`) and the
command `cleanup_locks`. Each owner and each task is a step of its own, whose failure is reported
and stops no other; every step may be repeated. A process's row goes last, when all of it worked.
"""

import time
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from django.db import router, transaction
from django.db.models import Exists, OuterRef

from django_task_locks import lock_files, rebuilding, reconciling, silence, strays
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import EpochLost, NameInUse
from django_task_locks.ids import uuid7
from django_task_locks.locks.keys import QUEUE_OWNER
from django_task_locks.managers import DatabaseNow, TaskQuerySet
from django_task_locks.models import AppStatus, Task
from django_task_locks.presence import default_name
from django_task_locks.reports import Report
from django_task_locks.scanning import Survey
from django_task_locks.scopes import Scope
from django_task_locks.settling import (
    HAND_BACK,
    MISSING,
    RELEASE,
    may_retry,
    plan_request,
    settle_request,
    settle_task,
)
from django_task_locks.silence import is_alive_here
from django_task_locks.states import State

_BATCH = 500
_SECOND_LOOK = 1.2  # heartbeat intervals
_LOOK_AGAIN = 0.2

_CLEAN_PROCESS = "declare missing, clean, remove"

# -- the ways in -----------------------------------------------------------------------------------


def run_periodic_cleanup() -> Report | None:
    """One round of clean-up if none was begun in the last `cleanup_interval` by any process.

    For a scheduler of the application's own (Celery beat, cron, a CronJob); workers do it by
    themselves. Returns None if another process has the turn. Inside a transaction the round comes
    after its commit, and None is returned: what is released must not come back by a rollback.
    """
    alias = router.db_for_write(Task)
    if transaction.get_connection(alias).in_atomic_block:
        transaction.on_commit(run_periodic_cleanup, using=alias, robust=True)
        return None
    settings = get_settings()
    if not get_lock_manager().lead("cleanup", default_name(), settings.cleanup_interval):
        return None
    return clean_up(second_look=True)


def clean_up(
    *,
    owner: str | None = None,
    task: UUID | None = None,
    resource: str | None = None,
    scan: bool = False,
    dry_run: bool = False,
    second_look: bool = False,
) -> Report:
    """One round now: missing processes, orphaned owners, running tasks that nobody owns, requests
    of tasks that have ended, waiting tasks that the lock manager does not know.

    owner, task, resource  only what is that owner's, of that task, or about that resource; together
                           only what is all of it
    scan         looks at every key of the server, with pauses, for requests and locks that nothing
                 leads to
    dry_run      changes nothing; the report has the steps that a run would now take
    second_look  for who does not know that the database was there all the time (a worker does, by
                 its own heartbeat): processes that look missing get the time for a heartbeat

    Raises TransactionManagementError inside a transaction, whose rollback would bring back tasks
    without the locks that were released.
    """
    if not dry_run and transaction.get_connection(_alias()).in_atomic_block:
        raise transaction.TransactionManagementError(
            "clean_up releases at once, so it cannot be part of a transaction; call "
            "run_periodic_cleanup, which waits for the commit"
        )
    report = Report(dry_run, scope=Scope(owner, task, resource), survey=Survey(is_wanted=scan))
    if not _has_locks(report):
        return report
    silence.note_silent(report)
    missing = _missing_for_long(owner, report) if second_look else _missing(owner)
    for status in missing:
        _clean_process(status, report, "no heartbeat for longer than its TTL", is_certain=False)
    _clean_orphans(report)
    if owner is None:
        _clean_unowned(report)
        reconciling.clean_queues(report)
        reconciling.release_finished(report)
        reconciling.send_unsent(report)
    if report.scope.is_everything:
        reconciling.finish_groups(report)
    if scan:
        strays.clean_unregistered(report)
        strays.clean_strays(report)
    if report.steps and not dry_run:
        emit("recovery.finished", steps=len(report.steps), failed=len(report.failures))
    return report


def _has_locks(report: Report) -> bool:
    """Whether there is anything that clean-up could look at: Redis may have lost the locks, and
    then they are rebuilt first.
    """
    if rebuilding.are_locks_right():
        return True
    with report.step("locks", "all", "", "Redis does not hold the present ones", "rebuild"):
        if not report.dry_run:
            _rebuild()
    return not report.dry_run and not report.failures


def _rebuild() -> None:
    candidate = f"{default_name()}:{uuid7()}"  # there may be another on this host
    give_up_at = time.monotonic() + 2 * get_settings().ttl
    while not rebuilding.rebuild_if_wanted(candidate):
        if time.monotonic() > give_up_at:
            raise EpochLost("the locks are being rebuilt by another process, or it has left them")
        time.sleep(_LOOK_AGAIN)


def clean_predecessors(me: AppStatus, *, is_name_unique: bool) -> Report:
    """What earlier incarnations under this name left, before this one takes its first task.

    One is dead for certain if its lock file is on this host and free, or if the operator promises
    that the name is used once at a time. Otherwise it is cleaned when its heartbeat is older than
    its TTL: now or by a later clean-up. A live process of the same name is never touched.

    Raises NameInUse where a lock file on this host shows that the promise is broken.
    """
    report = Report()
    same_name = AppStatus.objects.using(_alias()).filter(name=me.name, app_type=me.app_type)
    for status in same_name.exclude(pk=me.pk):
        if is_name_unique:
            _refuse_to_share(status)
            why = "restarted under the same name, which is used once at a time"
        elif lock_files.is_free(status.lock_file, status.owner):
            why = "restarted under the same name; its lock file is free"
        elif any(found.pk == status.pk for found in _missing_for_long(status.owner)):
            why = "no heartbeat for longer than its TTL"
        else:
            emit("worker.predecessor", owner=status.owner, judged="not dead yet")
            continue
        emit("worker.predecessor", owner=status.owner, judged=why)
        _clean_process(status, report, why, is_certain=True)
    return report


def _refuse_to_share(status: AppStatus) -> None:
    # Executors end a moment after their killed supervisor.
    for _ in range(30):
        if not lock_files.is_held(status.lock_file, status.owner):
            return
        time.sleep(0.1)
    raise NameInUse(
        f"{status.name!r} was promised to be used by one process at a time, but {status.owner} "
        f"(pid {status.pid}) of this host lives; stop that one, or use another name"
    )


def clean_incarnation(status: AppStatus, why: str) -> Report:
    """What one incarnation left that the caller knows to be dead: its own former one."""
    report = Report()
    _clean_process(status, report, why, is_certain=True)
    return report


# -- processes -------------------------------------------------------------------------------------


def _alias() -> str:
    return router.db_for_write(AppStatus)


def _missing(owner: str | None) -> list[AppStatus]:
    rows = AppStatus.objects.using(_alias()).missing()
    if owner is not None:
        pk = _pk(owner)
        rows = rows.filter(pk=pk) if pk else rows.none()
    return [status for status in rows if not is_alive_here(status.owner, status.lock_file)]


def _missing_for_long(owner: str | None, report: Report | None = None) -> list[AppStatus]:
    """Those that are missing and stay so while live processes beat: after an outage of the database
    everybody's heartbeat is old. The report names the others.
    """
    missing = _missing(owner)
    if all(status.missing_at is not None for status in missing):
        return missing
    time.sleep(_SECOND_LOOK * get_settings().heartbeat_interval)
    still = _missing(owner)
    for status in missing:
        if report is not None and status not in still:
            report.postpone("process", status.owner, status.owner, silence.BEATS_AGAIN, "leave it")
    return still


def _clean_process(status: AppStatus, report: Report, why: str, *, is_certain: bool) -> None:
    owner, scope = status.owner, report.scope
    if scope.is_in_part and not _has_in_scope(owner, status.pk, report):
        return
    action = "declare missing, clean in part" if scope.is_in_part else _CLEAN_PROCESS
    before = len(report.failures)
    with report.step("process", owner, owner, why, action) as step:
        # The commit point: from here on its beats fail, and nobody has to judge again.
        rows = AppStatus.objects.using(_alias()).filter(pk=status.pk)
        if not report.dry_run:
            stale = rows if is_certain else rows.missing()
            if stale.filter(missing_at=None).update(missing_at=DatabaseNow()):
                emit("recovery.missing", owner=owner, reason=why)
            elif not is_certain and not rows.filter(missing_at__isnull=False).exists():
                step.action = "nothing: it beats again or is gone"
                return
        _clean_owner(owner, status.pk, report)
        if len(report.failures) > before:
            raise _Incomplete
        if report.dry_run or scope.is_in_part:
            return
        # Code that bypasses the state machine may have left rows naming a process that runs none.
        _tasks().filter(app_lock_id=status.pk).exclude(state__in=State.owned()).update(
            app_lock=None
        )
        rows.filter(tasks=None).delete()
        lock_files.discard(status.lock_file, owner)


class _Incomplete(Exception):
    """some of its tasks or requests could not be settled; the process's row stays for a retry"""

    def __str__(self) -> str:
        return self.__doc__ or ""


def _clean_owner(owner: str, pk: UUID | None, report: Report) -> None:
    """Everything of a dead owner, in the order in which a crash at any point is repeated well:
    shut out in Redis, tasks by their rows, then what the registry still has.
    """
    manager = get_lock_manager()
    had = manager.registry(owner) if report.dry_run else set(manager.close_owner(owner))
    tasks = _owned_tasks(pk, report)
    # Without a registry these tell that there must have been one.
    clues = {str(task.pk) for task in tasks} | (
        set() if had else set(manager.slots(owner).values())
    )
    lost = set()
    if clues and not had:
        emit("recovery.registry_lost", owner=owner)
    if report.survey.is_wanted or (clues and not had):
        lost = report.survey.of(owner) - had
    report.survey.of_dead |= had | lost
    _clean_requests(owner, lost - clues, report)  # the clues last, for who has to go by them again
    for task in tasks:
        with report.step("task", str(task.pk), owner, MISSING, _task_action(task)) as step:
            if not report.dry_run and not settle_task(task, MISSING):
                step.action = "nothing: decided by somebody else"
    left, ending = had | (lost & clues), {str(task.pk) for task in tasks if not may_retry(task)}
    if left and not report.dry_run:
        left &= manager.registry(owner) | (manager.known(sorted(lost)) if lost else set())
    _clean_requests(owner, left, report, ending)
    if not report.dry_run and not report.scope.is_in_part:
        manager.forget_owner(owner)


def _clean_requests(
    owner: str, ids: Collection[str], report: Report, ending: Collection[str] = ()
) -> None:
    """ending: those that follow their tasks, which a dry run has only planned to end."""
    for id in sorted(filter(report.scope.covers_request, ids)):
        plan = plan_request(id, owner, ending) if report.dry_run else RELEASE
        if plan is None:
            continue
        with report.step("request", id, owner, "registered by a dead process", plan) as step:
            if not report.dry_run:
                step.action = settle_request(id, owner, MISSING)


def _has_in_scope(owner: str, pk: UUID | None, report: Report) -> bool:
    ids = get_lock_manager().registry(owner)
    if report.survey.is_wanted:
        ids |= report.survey.of(owner)
    return bool(_owned_tasks(pk, report)) or any(map(report.scope.covers_request, ids))


def _owned_tasks(pk: UUID | None, report: Report) -> list[Task]:
    if pk is None:
        return []
    rows = report.scope.tasks(_tasks().owned().filter(app_lock_id=pk))
    return [task for task in rows.order_by("pk") if report.scope.covers_task(task)]


def _task_action(task: Task) -> str:
    if task.state == State.CANCELING:
        return "record as canceled"
    return HAND_BACK if may_retry(task) else "record as failed"


def _tasks() -> TaskQuerySet:
    return Task.objects.using(router.db_for_write(Task))


# -- owners without a row --------------------------------------------------------------------------


def is_owner(owner: str) -> bool:
    """Whether this text names an owner, known or not."""
    return _pk(owner) is not None and owner.rpartition("@")[0] != ""


def _pk(owner: str) -> UUID | None:
    try:
        return UUID(owner.rpartition("@")[2])
    except ValueError:
        return None


def _clean_orphans(report: Report) -> None:
    """Owners that Redis or a running task names and that have no row: seen so for one TTL."""
    manager = get_lock_manager()
    ttls = manager.owners()
    has_row = Exists(AppStatus.objects.filter(pk=OuterRef("app_lock_id")))
    nameless = _tasks().owned().filter(~has_row, app_lock_id__isnull=False)
    in_rows = {
        f"{name}@{pk}" for name, pk in nameless.values_list("worker_name", "app_lock_id").distinct()
    }
    if report.survey.is_wanted:
        in_rows |= report.survey.unregistered().keys()
    for owner in in_rows:
        ttls.setdefault(owner, get_settings().ttl)
    ttls = {owner: ttl for owner, ttl in ttls.items() if report.scope.covers_owner(owner)}
    pks = {owner: _pk(owner) for owner in ttls}
    with_row: set[UUID] = set()
    wanted = [pk for pk in pks.values() if pk is not None]
    for first in range(0, len(wanted), _BATCH):
        rows = AppStatus.objects.using(_alias()).filter(pk__in=wanted[first : first + _BATCH])
        with_row.update(rows.values_list("pk", flat=True))
    ended = _ended_meanwhile(ttls.keys() - in_rows, pks, with_row)
    for owner, ttl in sorted(ttls.items()):
        if owner.startswith(QUEUE_OWNER) or pks[owner] in with_row or owner in ended:
            continue
        if is_alive_here(owner, str(lock_files.path_of(get_settings().run_dir, owner))):
            continue
        if report.scope.is_in_part and not _has_in_scope(owner, pks[owner], report):
            continue
        _after_one_ttl(
            report,
            owner,
            ttl,
            "process",
            "no record of this process",
            lambda owner=owner: _clean_orphan(owner, pks[owner], report),  # type: ignore[misc]
        )


def _clean_orphan(owner: str, pk: UUID | None, report: Report) -> None:
    before = len(report.failures)
    _clean_owner(owner, pk, report)
    if len(report.failures) > before:
        raise _Incomplete
    if report.dry_run or report.scope.is_in_part:
        return
    lock_files.discard(str(lock_files.path_of(get_settings().run_dir, owner)), owner)
    emit("recovery.orphan", owner=owner)


def _ended_meanwhile(
    owners: Iterable[str], pks: dict[str, UUID | None], with_row: set[UUID]
) -> set[str]:
    """Those without a row that Redis no longer knows: a process that ends takes its bookkeeping
    there along first, then its row.
    """
    without_row = {owner for owner in owners if pks[owner] not in with_row}
    return without_row - get_lock_manager().owners().keys() if without_row else set()


def _clean_unowned(report: Report) -> None:
    """Running or canceling rows that name no process (written by hand, or by other code)."""
    for task in report.scope.tasks(_tasks().owned().filter(app_lock_id=None)).order_by("pk"):
        if not report.scope.covers_task(task):
            continue

        def settle(task: Task = task) -> None:
            if not report.dry_run:
                settle_task(task, "It ran without a process that owns it.")
                get_lock_manager().release(str(task.pk), token=task.lock_token)
                get_lock_manager().forget_owner(f"task/{task.pk}")

        _after_one_ttl(
            report,
            f"task/{task.pk}",
            get_settings().ttl,
            "task",
            "owned by no process",
            settle,
        )


def _after_one_ttl(
    report: Report, owner: str, ttl: float, kind: str, why: str, clean: Callable[[], None]
) -> None:
    """Acts on what has been out of order for one TTL, and only notes what is newer: it may be in
    the making. A dry run does not even note it.
    """
    manager = get_lock_manager()
    age, its_ttl = (manager.suspected(owner), None) if report.dry_run else manager.suspect(owner)
    left = (its_ttl or ttl) - age
    if left > 0:
        report.postpone(kind, owner, owner, why, f"looked at again in {left:.0f} s")
        return
    with report.step(kind, owner, owner, f"{why} for longer than its TTL", "clean"):
        clean()
