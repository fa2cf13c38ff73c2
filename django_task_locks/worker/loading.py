"""Loads the tasks that an executor has claimed."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connections, router
from django.db.models import Exists, Subquery
from django.db.models.functions import Coalesce

from django_task_locks.models import AppStatus, LockEpoch, Task

_ANY = UUID(int=0)


class Loader:
    """Loads by one statement, which is made once: that takes Django longer than all of the rest."""

    def __init__(self, status: AppStatus) -> None:
        self._status = status
        self._statements: dict[str, tuple[str, Sequence[Any]]] = {}

    def load(self, id: UUID) -> tuple[Task | None, bool, int]:
        """The task, None if there is none; whether this worker is alive to the others, and the
        number of the epoch, by the same look at the database.
        """
        alias = router.db_for_write(Task)
        if alias not in self._statements:
            self._statements[alias] = self._statement(alias)
        sql, params = self._statements[alias]
        placeholder, value = _prepared(_ANY, alias), _prepared(id, alias)
        params = [value if param == placeholder else param for param in params]
        task = next(iter(Task.objects.using(alias).raw(sql, params)), None)
        if task is None:
            return None, False, 0
        return task, bool(task.is_ours), int(task.epoch)  # type: ignore[attr-defined]

    def _statement(self, alias: str) -> tuple[str, Sequence[Any]]:
        me = AppStatus.objects.filter(pk=self._status.pk, missing_at=None)
        number = Coalesce(Subquery(LockEpoch.objects.values("number")[:1]), 0)
        tasks = Task.objects.using(alias).annotate(is_ours=Exists(me), epoch=number)
        rows = tasks.filter(pk=_ANY)
        statement: tuple[str, Sequence[Any]] = rows.query.get_compiler(alias).as_sql()
        return statement


def _prepared(id: UUID, alias: str) -> Any:
    return Task._meta.pk.get_db_prep_value(id, connections[alias])
