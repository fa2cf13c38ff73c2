"""New rows, written as Django's `save` writes them, by statements that it makes once."""

from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Value
from django.db.models.signals import post_save, pre_save
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLCompiler

from django_task_locks.statements import Parameter, filled

Statement = tuple[str, tuple[Any, ...]]


def insert(instance: models.Model, alias: str) -> None:
    """Writes the row of a new instance, as `instance.save(using=alias, force_insert=True)` does for
    a model of one table whose key has a value.
    """
    model, connection = type(instance), connections[alias]
    signal = {"sender": model, "instance": instance, "raw": False, "using": alias}
    pre_save.send(**signal, update_fields=None)
    values, defaults = {}, []
    for field, name, default in _columns(model):
        value = field.pre_save(instance, True)
        if value is None:
            continue  # left out: the column is NULL
        if value == default:
            defaults.append(name)
        else:
            values[name] = value
    if any(hasattr(value, "as_sql") for value in values.values()):
        constants = {name: getattr(instance, name) for name in defaults}
        sql, params = _compiled(model, alias, values | constants)
    else:
        sql, params = _statement(model, alias, connection.vendor, tuple(values), tuple(defaults))
        params = filled(params, values, connection)
    with transaction.mark_for_rollback_on_error(using=alias), connection.cursor() as cursor:
        cursor.execute(sql, params)
    instance._state.db, instance._state.adding = alias, False
    post_save.send(**signal, update_fields=None, created=True)


class _Constant(Value):
    """A value that becomes part of the text where Django can write it there: to bind it each time
    costs more than the database takes to read it.
    """

    def as_postgresql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra: Any
    ) -> tuple[str, tuple[Any, ...]]:
        sql, params = self.as_sql(compiler, connection)
        return connection.ops.compose_sql(sql, params).replace("%", "%%"), ()


@lru_cache(maxsize=16)
def _columns(model: type[models.Model]) -> list[tuple["models.Field[Any, Any]", str, Any]]:
    """Each with its attribute and its default, which is what most rows have in most columns."""
    return [
        (field, field.attname, field.get_default())
        for field in model._meta.concrete_fields
        if not field.generated
    ]


@lru_cache(maxsize=256)
def _statement(
    model: type[models.Model],
    alias: str,
    vendor: str,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
) -> Statement:
    """With a parameter for each of these names, and the defaults prepared already."""
    row: dict[str, Any] = {}
    for field, name, default in _columns(model):
        if name in names:
            row[name] = Parameter(name, field)
        elif name in defaults:
            row[name] = _Constant(default, field)
    return _compiled(model, alias, row)


def _compiled(model: type[models.Model], alias: str, row: Mapping[str, Any]) -> Statement:
    query = InsertQuery(model)
    fields = [model._meta.get_field(name) for name in row]
    query.insert_values(fields, [SimpleNamespace(**row)], raw=True)
    ((sql, params),) = query.get_compiler(alias).as_sql()
    return sql, tuple(params)
