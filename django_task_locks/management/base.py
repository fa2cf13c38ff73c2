"""What the commands of this package have in common."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from django_task_locks.exceptions import DatabaseUnavailable


class DatabaseCommand(BaseCommand):
    """A command that says in a sentence when the database is away, also if Django's own checks of
    the models are the first to ask it.
    """

    def check(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().check(*args, **kwargs)
        except DatabaseError as error:
            raise CommandError(str(DatabaseUnavailable(error))) from None
