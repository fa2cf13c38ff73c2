"""When a task group has finished: decided once, in the database."""

from uuid import UUID

from django.db import connections, router, transaction
from django.db.models import Exists, OuterRef

from django_task_locks.managers import DatabaseNow, TaskQuerySet
from django_task_locks.models import Task, TaskGroup
from django_task_locks.signals import task_group_finished

_MOST_OVERDUE = 500
# Databases that are not here let one transaction write at a time.
_SHARED_LOCKS = {"postgresql": "FOR KEY SHARE", "mysql": "LOCK IN SHARE MODE"}


def finish_if_done(pk: UUID) -> bool:
    """Marks the group as finished if all of its members have ended, and sends the signal after the
    commit. False if there is something left, or somebody else does it.
    """
    alias = router.db_for_write(TaskGroup)
    if _incomplete(alias, pk).exists():
        return False
    features = connections[alias].features
    with transaction.atomic(using=alias):
        rows = TaskGroup.objects.using(alias).filter(pk=pk, finished_at=None)
        if features.has_select_for_no_key_update:
            # Of several that end the last members one decides after the other: none of them may
            # look before another's commit and leave the decision to that one.
            rows.select_for_update(no_key=True).first()
        # Who is adding a member has the row locked (`may_join`): then the group has not finished.
        # Nobody waits for that transaction, however long it is.
        skips = features.has_select_for_update_skip_locked
        group = rows.select_for_update(skip_locked=skips).first()
        if group is None or _incomplete(alias, pk).exists():
            return False
        if not rows.update(finished_at=DatabaseNow()):
            return False

        def send() -> None:
            group.refresh_from_db(using=alias)
            task_group_finished.send_robust(sender=TaskGroup, group=group)

        transaction.on_commit(send, using=alias, robust=True)
    return True


def may_join(pk: UUID, alias: str) -> bool:
    """Whether the group takes members; it does not finish before the present transaction has ended.
    False if it has finished, or is gone.
    """
    rows = TaskGroup.objects.using(alias).filter(pk=pk, finished_at=None).values("pk")
    sql, params = rows.query.get_compiler(alias).as_sql()
    # Django knows no lock that those who add members can share.
    sharing = _SHARED_LOCKS.get(connections[alias].vendor, "")
    with connections[alias].cursor() as cursor:
        cursor.execute(f"{sql} {sharing}", params)
        return cursor.fetchone() is not None


def overdue() -> list[UUID]:
    """Groups all of whose members have ended, and that nobody has marked: who should have done it
    was killed, or the last ones were deleted. At most 500.
    """
    alias = router.db_for_write(TaskGroup)
    members = Task.objects.using(alias).filter(task_group=OuterRef("pk"))
    rows = TaskGroup.objects.using(alias).filter(finished_at=None)
    rows = rows.filter(Exists(members), ~Exists(members.incomplete()))
    return list(rows.order_by("pk").values_list("pk", flat=True)[:_MOST_OVERDUE])


def _incomplete(alias: str, pk: UUID) -> TaskQuerySet:
    return Task.objects.using(alias).filter(task_group=pk).incomplete()
