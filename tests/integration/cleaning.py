"""manage.py cleanup_locks as a test calls it, and all that it might change."""

import json
from io import StringIO
from typing import Any

from django.core.management import call_command

from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, Task, TaskGroup
from tests.locks.snapshot import snapshot


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("cleanup_locks", *arguments, stdout=output)
    return output.getvalue()


def report(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--format", "json", *arguments))
    return found


def steps(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report(*arguments)["steps"]
    return found


def everything(locks: LockManager) -> tuple[Any, ...]:
    """All rows and all keys."""
    rows = [list(kind.objects.values().order_by("pk")) for kind in (Task, AppStatus, TaskGroup)]
    return (*rows, snapshot(locks.client, locks.keys.prefix))
