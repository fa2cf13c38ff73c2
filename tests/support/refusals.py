"""A database that refuses one kind of change for a while, and works otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from django_task_locks.models import Task

_CREATE = {
    "postgresql": (
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE EXCEPTION 'refused for a test' USING ERRCODE = '57000';
        END $$
        """,
        "CREATE TRIGGER refuse BEFORE UPDATE ON {table} FOR EACH ROW "
        "WHEN (NEW.state = '{state}' AND OLD.state <> '{state}') EXECUTE FUNCTION refuse()",
    ),
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE UPDATE ON {table} "
        "WHEN NEW.state = '{state}' AND OLD.state <> '{state}' "
        "BEGIN SELECT RAISE(ABORT, 'refused for a test'); END",
    ),
}
_DROP = {
    "postgresql": ("DROP TRIGGER refuse ON {table}", "DROP FUNCTION refuse"),
    "sqlite": ("DROP TRIGGER refuse",),
}


@contextmanager
def refused_transition(state: str) -> Iterator[None]:
    """No task can come to this state meanwhile."""
    _execute(_CREATE[connection.vendor], state)
    try:
        yield
    finally:
        _execute(_DROP[connection.vendor], state)


def _execute(statements: tuple[str, ...], state: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.format(table=Task._meta.db_table, state=state))
