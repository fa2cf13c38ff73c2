"""Runs tasks: manage.py task_worker."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from django_task_locks.abilities import abilities_from, own_abilities
from django_task_locks.exceptions import DatabaseUnavailable, InvalidTask
from django_task_locks.locks.requests import validated_queue
from django_task_locks.presence import default_name
from django_task_locks.worker import reloading
from django_task_locks.worker.executor import Orders
from django_task_locks.worker.output import log_to_terminal
from django_task_locks.worker.starting import CannotStart, is_away
from django_task_locks.worker.supervisor import Options, Supervisor


class Command(BaseCommand):
    help = (
        "Runs tasks until SIGTERM or SIGHUP (finishes what runs) or SIGINT (gives it "
        "TASK_LOCKS['shutdown_grace'] seconds, then aborts it). Waits for Redis and the database "
        "while they are away."
    )

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            BaseCommand.check(self, *args, **kwargs)
        except DatabaseError as error:
            if not is_away(error):
                raise CommandError(str(DatabaseUnavailable(error))) from None
            # Some check of the project asks the database, for which a worker waits; ours do not.
            BaseCommand.check(self, tags=["django_task_locks"])

    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        # Every command has a --version, which tells Django's; here it tells what tasks may need.
        return super().create_parser(*args, **{"conflict_handler": "resolve", **kwargs})

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--name",
            default=default_name(),
            help="name of this worker; a restart under the same name cleans up after its "
            "predecessor (default: the host's name)",
        )
        parser.add_argument(
            "--unique-name",
            action="store_true",
            help="promises that this name is used by one worker at a time, as for a pod of a "
            "StatefulSet: an earlier worker of this name is taken for dead at once",
        )
        parser.add_argument(
            "--queue",
            action="append",
            metavar="QUEUE",
            help="serve this queue only; may be repeated (default: all queues)",
        )
        parser.add_argument(
            "--version",
            action="append",
            metavar="NAME=VERSION",
            help="run tasks that need this version, too; may be repeated, also for the same name "
            "(default: TASK_LOCKS['versions'])",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=1,
            help="number of executor processes, each runs one task at a time (default: 1)",
        )
        parser.add_argument(
            "--max-tasks-per-child",
            type=int,
            metavar="N",
            help="replace an executor by a fresh one after so many tasks (default: never)",
        )
        parser.add_argument(
            "--max-memory-per-child",
            type=int,
            metavar="MB",
            help="replace an executor that has more resident memory than this after a task "
            "(default: never)",
        )
        parser.add_argument(
            "--burst", action="store_true", help="end when there is nothing left to do"
        )
        parser.add_argument(
            "--json-logs", action="store_true", help="print JSON, one object a line"
        )
        parser.add_argument(
            reloading.OPTION,
            action="store_true",
            help="for development: start anew when a source file changes",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["concurrency"] <= 1000:
            raise CommandError(
                f"--concurrency {options['concurrency']}: a number from 1 to 1,000 is accepted"
            )
        for option, unit in (("max_tasks_per_child", "a number"), ("max_memory_per_child", "MB")):
            if options[option] is not None and options[option] < 1:
                raise CommandError(
                    f"--{option.replace('_', '-')} {options[option]}: {unit} from 1 on is accepted"
                )
        name = options["name"]
        if not 1 <= len(name) <= 200 or not name.isprintable():
            raise CommandError(f"--name {name!r}: 1 to 200 printable characters are accepted")
        try:
            queues = [validated_queue(queue) for queue in options["queue"] or ()]
        except InvalidTask as error:
            raise CommandError(f"--queue: {error}") from None
        try:
            given = options["version"]
            versions = own_abilities() if given is None else abilities_from(given)
        except (InvalidTask, ImportError) as error:
            raise CommandError(f"--version or TASK_LOCKS['versions']: {error}") from None
        log_to_terminal(as_json=options["json_logs"])
        if options["autoreload"]:
            sys.exit(reloading.run())
        supervisor = Supervisor(
            Options(
                name=name,
                concurrency=options["concurrency"],
                is_name_unique=options["unique_name"],
                orders=Orders(
                    queues=frozenset(queues) or None,
                    burst=options["burst"],
                    max_tasks=options["max_tasks_per_child"],
                    max_memory=options["max_memory_per_child"],
                    versions=versions,
                ),
            )
        )
        try:
            status = supervisor.run()
        except CannotStart as error:
            raise CommandError(str(error)) from None
        if status:
            sys.exit(status)
