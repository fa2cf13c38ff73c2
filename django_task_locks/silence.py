"""Processes that are silent, and not yet judged: named, so that an operator knows what comes."""

from datetime import timedelta

from django.db import connections, router
from django.db.models import DurationField, ExpressionWrapper, F

from django_task_locks import lock_files
from django_task_locks.conf import get_settings
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus
from django_task_locks.reports import Report

SILENT = "has missed a heartbeat"
BEATS_AGAIN = "had no heartbeat for longer than its TTL, and has one again"
_SILENT_AFTER = 2.0  # heartbeat intervals


def note_silent(report: Report) -> None:
    """Those that have missed a heartbeat, and are not missing yet."""
    alias = router.db_for_write(AppStatus)
    limit = timedelta(seconds=_SILENT_AFTER * get_settings().heartbeat_interval)
    silence = ExpressionWrapper(DatabaseNow() - F("last_heartbeat"), output_field=DurationField())
    rows = AppStatus.objects.using(alias).online().annotate(silence=silence)
    for status in rows.filter(last_heartbeat__lt=DatabaseNow() - limit).order_by("pk"):
        owner = status.owner
        if not report.scope.covers_owner(owner) or is_alive_here(owner, status.lock_file):
            continue
        left = status.ttl - status.silence  # type: ignore[attr-defined]
        report.postpone("process", owner, owner, SILENT, f"missing in {left.total_seconds():.0f} s")


def is_alive_here(owner: str, lock_file: str) -> bool:
    """On SQLite all processes share a host, and a writer may hold up every heartbeat: there the
    lock file tells who lives.
    """
    vendor = connections[router.db_for_write(AppStatus)].vendor
    return vendor == "sqlite" and lock_files.is_held(lock_file, owner)
