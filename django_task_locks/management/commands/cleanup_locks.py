"""Releases what dead processes left: manage.py cleanup_locks."""

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_task_locks import recovery
from django_task_locks.exceptions import DatabaseUnavailable, TaskLocksError
from django_task_locks.management.base import DatabaseCommand
from django_task_locks.reports import Report


class Command(DatabaseCommand):
    help = (
        "Finds and releases what missing processes and owners without a record left behind, and "
        "sends waiting tasks that the lock service does not know. Safe beside live workers. Exit "
        "status 0: nothing is left to do; 1: something failed and is tried again by the next run."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what a run would do now"
        )
        parser.add_argument("--owner", help="only this owner, as <name>@<id>")
        parser.add_argument("--format", choices=["table", "json"], default="table")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["owner"] is not None and not recovery.is_owner(options["owner"]):
            raise CommandError(
                f"--owner {options['owner']!r}: <name>@<id> is accepted, as --dry-run prints it"
            )
        try:
            report = recovery.clean_up(
                owner=options["owner"], dry_run=options["dry_run"], second_look=True
            )
        except (TaskLocksError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            raise CommandError(str(DatabaseUnavailable(error))) from None
        if options["format"] == "json":
            self.stdout.write(json.dumps([asdict(step) for step in report.steps], indent=2))
        else:
            self.stdout.write(_table(report))
        if report.failures:
            sys.exit(1)


def _table(report: Report) -> str:
    if not report.steps:
        return "Nothing to clean up."
    rows = [("KIND", "SUBJECT", "STATUS", "ACTION", "REASON")]
    rows += [
        (step.kind, step.subject, step.status, step.action, step.error or step.reason)
        for step in report.steps
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows]
    counts: dict[str, int] = {}
    for step in report.steps:
        counts[step.kind] = counts.get(step.kind, 0) + 1
    found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    verb = "would be cleaned" if report.dry_run else "found"
    return "\n".join([*lines, f"{found} {verb}; {len(report.failures)} failed."])
