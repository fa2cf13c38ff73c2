"""New rows, written as Django writes them, without what it does anew for each of them."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Value
from django.db.models.base import ModelState
from django.db.models.signals import post_init, post_save, pre_init, pre_save
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLCompiler

from django_task_locks.statements import Parameter, filled

M = TypeVar("M", bound=models.Model)


def made(model: type[M], **values: Any) -> M:
    """As `model(**values)`, of columns, in a fifth of the time. Those whose default is made anew
    for each row must be among them.
    """
    row = _lasting_defaults(model) | values
    if _is_made_by_django(model):
        return model(*[row[name] for _, name, _ in _columns(model)])
    instance = model.__new__(model)
    instance._state = ModelState()
    instance.__dict__.update(row)
    return instance


def insert(instance: models.Model, alias: str) -> None:
    """Writes the row of a new instance, as `instance.save(using=alias, force_insert=True)` does for
    a model of one table whose key has a value; by a statement that Django makes once.
    """
    model = type(instance)
    signal = {"sender": model, "instance": instance, "raw": False, "using": alias}
    pre_save.send(**signal, update_fields=None)
    with transaction.mark_for_rollback_on_error(using=alias):
        sql, params = _row(instance, alias)
        with connections[alias].cursor() as cursor:
            cursor.execute(sql, params)
    instance._state.db, instance._state.adding = alias, False
    post_save.send(**signal, update_fields=None, created=True)


def insert_many(instances: Sequence[models.Model], alias: str, batch_size: int) -> None:
    """Writes the rows of new instances, as `bulk_create(instances, batch_size=batch_size)` does for
    such a model, in the present transaction. No value may be an expression.
    """
    if not instances:
        return
    connection = connections[alias]
    if connection.vendor != "postgresql":
        type(instances[0])._base_manager.using(alias).bulk_create(instances, batch_size=batch_size)
        return
    with connection.cursor() as cursor:
        for first in range(0, len(instances), batch_size):
            cursor.execute(*_rows(instances[first : first + batch_size], connection))
    for instance in instances:
        instance._state.db, instance._state.adding = alias, False


@cache
def _columns(model: type[models.Model]) -> list[tuple[Any, str, Any]]:
    """Each field with its attribute and its default, which is what most rows have in most columns:
    a value that equals it is stored as it is.
    """
    return [
        (field, field.attname, field.get_default())
        for field in model._meta.concrete_fields
        if not field.generated
    ]


def _is_made_by_django(model: type[models.Model]) -> bool:
    """Whether anybody else takes part when an instance is made."""
    return (
        model.__init__ is not models.Model.__init__
        or pre_init.has_listeners(model)
        or post_init.has_listeners(model)
    )


@cache
def _lasting_defaults(model: type[models.Model]) -> dict[str, Any]:
    return {
        name: default
        for field, name, default in _columns(model)
        if not (field.has_default() and callable(field.default))
    }


# -- one row ---------------------------------------------------------------------------------------


def _row(instance: models.Model, alias: str) -> tuple[str, Sequence[Any]]:
    model, connection = type(instance), connections[alias]
    row, given = {}, []
    for field, name, default in _columns(model):
        value = field.pre_save(instance, True)
        if value is None and field.null:
            continue  # left out
        row[name] = value
        if value != default:
            given.append(name)
    if any(hasattr(row[name], "resolve_expression") for name in given):
        return _compiled(model, alias, row)
    sql, params = _statement(model, alias, connection.vendor, tuple(row), tuple(given))
    return sql, filled(params, row, connection)


@lru_cache(maxsize=256)
def _statement(
    model: type[models.Model],
    alias: str,
    vendor: str,
    names: tuple[str, ...],
    given: tuple[str, ...],
) -> tuple[str, Sequence[Any]]:
    """For these columns, with a parameter for each that is given; the others have their default."""
    row = {
        name: Parameter(name, field) if name in given else _Constant(default, field)
        for field, name, default in _columns(model)
        if name in names
    }
    return _compiled(model, alias, row)


class _Constant(Value):
    """Part of the text where Django can write it there: to bind it each time takes longer."""

    def as_postgresql(
        self, compiler: SQLCompiler, connection: Any, **extra: Any
    ) -> tuple[str, tuple[Any, ...]]:
        sql, params = self.as_sql(compiler, connection)
        return connection.ops.compose_sql(sql, params).replace("%", "%%"), ()


def _compiled(
    model: type[models.Model], alias: str, row: Mapping[str, Any]
) -> tuple[str, Sequence[Any]]:
    query: Any = InsertQuery(model)
    fields = [model._meta.get_field(name) for name in row]
    query.insert_values(fields, [SimpleNamespace(**row)], raw=True)
    ((sql, params),) = query.get_compiler(alias).as_sql()
    return sql, params


# -- many rows, on PostgreSQL ----------------------------------------------------------------------

# What is equal may be stored in different ways: 1 and true, an hour that comes twice.
_AMBIGUOUS = (models.JSONField, models.DateTimeField)


def _rows(
    instances: Sequence[models.Model], connection: BaseDatabaseWrapper
) -> tuple[str, list[Any]]:
    """An array for the key and for each other column, as `bulk_create` has it, but for those that
    are the same in all of the rows.
    """
    model, quoted = type(instances[0]), connection.ops.quote_name
    constants, arrays = [], []
    for field, _, default in _columns(model):
        values = _values(field, instances)
        kind = field.db_type(connection).partition("(")[0]  # text that is too long is not cut
        common = default if isinstance(field, _AMBIGUOUS) else values[0]
        if field.primary_key or values.count(common) < len(values):
            prepared = [field.get_db_prep_save(value, connection) for value in values]
            arrays.append((quoted(field.column), f"(%s)::{kind}[]", prepared))
        elif common is not None:
            constant = field.get_db_prep_save(common, connection)
            constants.append((quoted(field.column), f"(%s)::{kind}", constant))
    columns, _, params = zip(*constants, *arrays, strict=True)
    selected = [*(text for _, text, _ in constants), "*"]
    table, lists = quoted(model._meta.db_table), [text for _, text, _ in arrays]
    into, what = ", ".join(columns), ", ".join(selected)
    sql = f"INSERT INTO {table} ({into}) SELECT {what} FROM UNNEST({', '.join(lists)})"  # noqa: S608
    return sql, list(params)


def _values(field: Any, instances: Sequence[models.Model]) -> list[Any]:
    if type(field).pre_save is models.Field.pre_save:  # as most, which give what is there
        return list(map(attrgetter(field.attname), instances))
    return [field.pre_save(instance, True) for instance in instances]
