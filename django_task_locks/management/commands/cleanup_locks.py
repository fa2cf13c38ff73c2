"""Releases what dead processes left: manage.py cleanup_locks."""

import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_task_locks import recovery
from django_task_locks.exceptions import DatabaseUnavailable, TaskLocksError
from django_task_locks.locks.resources import resource_name
from django_task_locks.management.base import DatabaseCommand
from django_task_locks.management.rendering import as_json, as_table
from django_task_locks.management.repeating import repeat

_LONGEST_WATCH = 86_400


class Command(DatabaseCommand):
    help = (
        "Finds and releases what missing processes and owners without a record left behind, and "
        "sends waiting tasks that the lock service does not know. Safe beside live workers. Exit "
        "status 0: nothing is left to do, but for what is told to be pending; 1: something failed "
        "and is tried again by the next run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what a run would do now"
        )
        parser.add_argument("--owner", help="only this owner, as <name>@<id>")
        parser.add_argument("--task", metavar="ID", help="only what is of this task")
        parser.add_argument("--resource", metavar="NAME", help="only what is about this resource")
        parser.add_argument(
            "--scan",
            action="store_true",
            help="also look at every key of the server, with pauses, for locks that nothing leads "
            "to because keys were lost",
        )
        parser.add_argument("--format", choices=["table", "json"], default="table")
        parser.add_argument(
            "--watch",
            metavar="SECONDS",
            help="repeat it, with so many seconds between two rounds, until SIGINT or SIGTERM",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._options = options
        self._has_failed = False
        self._limits = {
            "owner": _accepted(options, "owner", _owner),
            "task": _accepted(options, "task", _task),
            "resource": _accepted(options, "resource", resource_name),
        }
        seconds = _accepted(options, "watch", _seconds)
        if seconds is None:
            self._round()
        else:
            repeat(self._watched_round, seconds)
        if self._has_failed:
            sys.exit(1)

    def _watched_round(self) -> None:
        """An outage ends no watch."""
        try:
            self._round()
        except CommandError as error:
            self._has_failed = True
            self.stderr.write(str(error))

    def _round(self) -> None:
        options = self._options
        try:
            report = recovery.clean_up(
                **self._limits,
                scan=options["scan"],
                dry_run=options["dry_run"],
                second_look=True,
            )
        except (TaskLocksError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(str(DatabaseUnavailable(error))) from None
        if options["format"] == "table":
            text = as_table(report)
        else:
            text = as_json(report, indent=None if options["watch"] else 2)
        self.stdout.write(text)
        self.stdout.flush()
        self._has_failed = bool(report.failures)


def _accepted(options: dict[str, Any], name: str, accept: Callable[[Any], Any]) -> Any:
    """The option's value, as `accept` returns it; None if it was not given."""
    if options[name] is None:
        return None
    try:
        return accept(options[name])
    except ValueError as error:
        raise CommandError(f"--{name} {options[name]!r}: {error}") from None


def _owner(text: str) -> str:
    if not recovery.is_owner(text):
        raise ValueError("<name>@<id> is accepted, as --dry-run prints it")
    return text


def _task(text: str | UUID) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise ValueError("the id of a task, a UUID, is accepted") from None


def _seconds(text: str | float) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_WATCH:
        raise ValueError(f"seconds above 0 are accepted, up to {_LONGEST_WATCH}")
    return seconds
