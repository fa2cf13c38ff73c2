"""Querysets, and the database's clock by which heartbeats are written and judged."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler

from django_task_locks.states import State

if TYPE_CHECKING:
    from django_task_locks.models import AppStatus, Task  # noqa: F401 - Task: as a text below


class DatabaseNow(Now):
    """The database's present time in UTC, to the microsecond where it has them: no host's clock
    decides who is alive.
    """

    def as_mysql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        # CURRENT_TIMESTAMP is local to the session's time zone on MySQL and MariaDB.
        sql, params = self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra)
        return sql, tuple(params)


class ThisProcess:
    """Which AppStatus row is this process's own; `presence` keeps it."""

    pk: UUID | None = None


class AppStatusQuerySet(models.QuerySet["AppStatus"]):
    def online(self) -> "AppStatusQuerySet":
        """Processes whose last heartbeat is younger than their TTL, by the database's clock."""
        return self.filter(missing_at=None, last_heartbeat__gte=DatabaseNow() - models.F("ttl"))

    def missing(self) -> "AppStatusQuerySet":
        """Processes declared missing, and those whose last heartbeat is older than their TTL."""
        return self.filter(
            models.Q(missing_at__isnull=False)
            | models.Q(last_heartbeat__lt=DatabaseNow() - models.F("ttl"))
        )

    def current(self) -> "AppStatus | None":
        """The row of this process; None before its first use of locks."""
        return self.filter(pk=ThisProcess.pk).first() if ThisProcess.pk else None


class TaskQuerySet(models.QuerySet["Task"]):
    def incomplete(self) -> "TaskQuerySet":
        """Tasks without a final state."""
        return self.filter(state__in=State.incomplete())

    def owned(self) -> "TaskQuerySet":
        """Tasks that a process runs."""
        return self.filter(state__in=State.owned())
