"""Cancels tasks: manage.py cancel_task."""

import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_task_locks.dispatching import cancel_task
from django_task_locks.exceptions import DatabaseUnavailable, InvalidTask, TaskLocksError
from django_task_locks.management.base import DatabaseCommand
from django_task_locks.models import State, Task


class Command(DatabaseCommand):
    help = (
        "Cancels tasks by their ids, with a line for each: a waiting one is canceled at once, "
        "a running one is stopped by its process, one that has ended stays as it is. Exit status "
        "0: none of them goes on; 1: an id was wrong or unknown."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", metavar="ID", help="id of a task")

    def handle(self, *args: Any, **options: Any) -> None:
        failures = 0
        for id in options["ids"]:
            try:
                self.stdout.write(f"{id}  {_canceled(id)}")
            except (TaskLocksError, Task.DoesNotExist) as error:
                self.stderr.write(f"{id}  {_explained(error)}")
                failures += 1
            except DatabaseError as error:
                raise CommandError(str(DatabaseUnavailable(error))) from None
        if failures:
            sys.exit(1)


def _canceled(id: str) -> str:
    task = cancel_task(id)
    if task.state == State.CANCELING:
        return f"canceling: {task.worker_name or 'its process'} stops it ({task.name})"
    if task.state == State.CANCELED:
        return f"canceled ({task.name})"
    return f"has ended: {task.state} ({task.name})"


def _explained(error: Exception) -> str:
    if isinstance(error, Task.DoesNotExist):
        return "unknown: no task has this id"
    if isinstance(error, InvalidTask):
        return "no id of a task: a UUID is accepted"
    return str(error)
