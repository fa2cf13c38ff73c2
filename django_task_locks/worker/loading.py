"""Loads the tasks that an executor has claimed."""

from uuid import UUID

from django.db import router
from django.db.models import Exists, Subquery
from django.db.models.functions import Coalesce

from django_task_locks.models import AppStatus, LockEpoch, Task
from django_task_locks.statements import Parameter, Selection


class Loader:
    """Loads each by the same statement."""

    def __init__(self, status: AppStatus) -> None:
        self._status = status
        self._selections: dict[str, Selection[Task]] = {}

    def load(self, id: UUID) -> tuple[Task | None, bool, int]:
        """The task, None if there is none; whether this worker is alive to the others, and the
        number of the epoch, by the same look at the database.
        """
        alias = router.db_for_write(Task)
        if alias not in self._selections:
            self._selections[alias] = self._selection(alias)
        found = self._selections[alias].first({"id": id})
        if found is None:
            return None, False, 0
        task, is_ours, number = found
        return task, bool(is_ours), int(number)

    def _selection(self, alias: str) -> Selection[Task]:
        me = AppStatus.objects.filter(pk=self._status.pk, missing_at=None)
        number = Coalesce(Subquery(LockEpoch.objects.values("number")[:1]), 0)
        tasks = Task.objects.using(alias).annotate(is_ours=Exists(me), epoch=number)
        return Selection(tasks.filter(pk=Parameter("id", Task._meta.pk)), "is_ours", "epoch")
