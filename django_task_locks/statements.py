"""Statements that Django makes once and that then run with other values, on the way of every task:
to make them anew takes more than a third of an executor's processor time.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Expression
from django.db.models.sql import UpdateQuery
from django.db.models.sql.compiler import SQLCompiler

M = TypeVar("M", bound=models.Model)

Values = Mapping[str, Any]
_WHERE, _SET = "where ", "set "


class Parameter(Expression):
    """Takes the place of a value of this field that each run brings under its name."""

    def __init__(self, name: str, field: "models.Field[Any, Any]") -> None:
        super().__init__(output_field=field)
        self.slot = _Slot(name, field)

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self.slot,)


class _Slot(NamedTuple):
    name: str
    field: "models.Field[Any, Any]"

    def value(self, values: Values, connection: BaseDatabaseWrapper) -> Any:
        value = values[self.name]
        if isinstance(value, models.Model):
            value = value.pk
        return self.field.get_db_prep_save(value, connection)


def filled(params: Iterable[Any], values: Values, connection: BaseDatabaseWrapper) -> list[Any]:
    """The parameters of a statement, with the values by name in the places of each `Parameter`."""
    return [param.value(values, connection) if type(param) is _Slot else param for param in params]


class Update(NamedTuple):
    """As `objects.filter(**where).update(**changes)` does it. A tuple in `where`, and an expression
    in `changes`, are the same for all runs.
    """

    model: type[models.Model]
    where: Values
    changes: Values

    def run(self, alias: str) -> int:
        """The number of rows that it has changed."""
        connection = connections[alias]
        with transaction.mark_for_rollback_on_error(using=alias), connection.cursor() as cursor:
            cursor.execute(*self.text(connection))
            return int(cursor.rowcount)

    def text(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """The statement and its parameters."""
        where, changes = _shape(self.where), _shape(self.changes)
        sql, params = _update(self.model, connection.alias, connection.vendor, where, changes)
        values = {_WHERE + name: value for name, value in self.where.items()}
        values.update((_SET + name, value) for name, value in self.changes.items())
        return sql, filled(params, values, connection)


def _shape(values: Values) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value if isinstance(value, tuple | Expression) else None)
        for name, value in values.items()
    )


@lru_cache(maxsize=256)
def _update(
    model: type[models.Model],
    alias: str,
    vendor: str,
    where: tuple[tuple[str, Any], ...],
    changes: tuple[tuple[str, Any], ...],
) -> tuple[str, tuple[Any, ...]]:
    def parts(shape: tuple[tuple[str, Any], ...], prefix: str) -> dict[str, Any]:
        return {
            name: Parameter(prefix + name, _field(model, name)) if constant is None else constant
            for name, constant in shape
        }

    rows = model._base_manager.using(alias).filter(**parts(where, _WHERE))
    query: Any = rows.query.chain(UpdateQuery)
    query.add_update_values(parts(changes, _SET))
    sql, params = query.get_compiler(alias).as_sql()
    return sql, tuple(params)


def _field(model: type[models.Model], lookup: str) -> "models.Field[Any, Any]":
    name = lookup.partition("__")[0]
    return model._meta.pk if name == "pk" else model._meta.get_field(name)  # type: ignore[return-value]


def _takes_several(connection: BaseDatabaseWrapper, cursor: Any) -> bool:
    """With psycopg, which then puts the values into the text, and outside of any transaction."""
    if connection.vendor != "postgresql" or connection.in_atomic_block or not connection.autocommit:
        return False
    try:
        from psycopg import ClientCursor
    except ImportError:  # psycopg2, which gives the last result alone
        return False
    return isinstance(cursor.cursor, ClientCursor)


class Selection(Generic[M]):
    """One row of a queryset, whose filters may have a `Parameter`, with some of its annotations."""

    def __init__(self, rows: "models.QuerySet[M]", *annotations: str) -> None:
        self._model, self._alias = rows.model, rows.db
        self._fields = [field.attname for field in rows.model._meta.concrete_fields]
        query = rows.values_list(*self._fields, *annotations)[:1].query
        self._compiler = query.get_compiler(rows.db)
        self._sql, params = self._compiler.as_sql()
        self._params = tuple(params)
        self._converters = self._compiler.get_converters(
            [each[0] for each in self._compiler.select]
        )

    def first(self, values: Values) -> tuple[M, *tuple[Any, ...]] | None:
        """The instance and the annotations; None if there is no such row."""
        connection = connections[self._alias]
        with connection.cursor() as cursor:
            cursor.execute(*self._text(values, connection))
            return self._read(cursor.fetchone())

    def first_after(self, update: Update, values: Values) -> tuple[M, *tuple[Any, ...]] | None:
        """As `first`, once this update is committed: what others have committed before that is
        seen. In one round trip where the database takes several statements in one text.
        """
        connection = connections[self._alias]
        with connection.cursor() as cursor:
            if not _takes_several(connection, cursor):
                update.run(self._alias)
                return self.first(values)
            first, params = update.text(connection)
            second, more = self._text(values, connection)
            try:
                cursor.execute(f"BEGIN; {first}; COMMIT; {second}", [*params, *more])
                while cursor.nextset():
                    pass
                return self._read(cursor.fetchone())
            except BaseException:
                connection.close()  # it may be within the transaction
                raise

    def _text(self, values: Values, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        return self._sql, filled(self._params, values, connection)

    def _read(self, row: tuple[Any, ...] | None) -> tuple[M, *tuple[Any, ...]] | None:
        if row is None:
            return None
        (found,) = self._compiler.apply_converters([row], self._converters)
        count = len(self._fields)
        instance = self._model.from_db(self._alias, self._fields, found[:count])
        return instance, *found[count:]
