"""Statements that are made once: they change and find what the ORM's own would."""

from typing import Any

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, connection, transaction
from django.db.models import F, Value
from django.test.utils import CaptureQueriesContext

from django_task_locks import statements
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory

pytestmark = pytest.mark.django_db


def change(where: dict[str, Any], **changes: Any) -> int:
    return statements.update(Task, "default", where, changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("result", None),
        ("result", {"a": [1, None, "ü"]}),
        ("result", "text"),
        ("result", 0),
        ("error", {"type": "", "message": "%s %% \\ '\"", "traceback": ""}),
        ("exclusive", ["a\0b", "c"]),
        ("worker_name", "100 % 'quoted' %s"),
        ("lock_token", 2**62),
        ("retry_delay", None),
        ("retry_delay", 0.1),
        ("immediate", True),
        ("key_claim", None),
    ],
)
def test_each_kind_of_value_is_stored_as_the_orm_stores_it(name: str, value: Any) -> None:
    ours, theirs = TaskFactory.create(), TaskFactory.create()

    assert change({"pk": ours.pk}, **{name: value}) == 1

    Task.objects.filter(pk=theirs.pk).update(**{name: value})
    column = Task.objects.values_list(name, flat=True)
    assert column.get(pk=ours.pk) == column.get(pk=theirs.pk) == value
    assert Task.objects.filter(**{f"{name}__isnull": value is None}, pk=ours.pk).exists()


def test_a_relation_takes_an_instance() -> None:
    task, process = TaskFactory.create(), AppStatusFactory.create()
    change({"pk": task.pk}, app_lock=process)
    task.refresh_from_db()
    assert task.app_lock == process
    change({"pk": task.pk}, app_lock=None)
    task.refresh_from_db()
    assert task.app_lock is None


def test_an_expression_is_part_of_the_statement() -> None:
    task = TaskFactory.create(attempt=3, finished_at=None)
    change({"pk": task.pk}, attempt=F("attempt") + Value(2), finished_at=DatabaseNow())
    task.refresh_from_db()
    assert task.attempt == 5
    assert task.finished_at is not None


def test_a_row_that_does_not_match_is_left_alone() -> None:
    task = TaskFactory.create(state=State.WAITING, lock_token=5)
    states = (State.WAITING, State.RUNNING)
    assert not change({"pk": task.pk, "state__in": (State.RUNNING,)}, lock_token=9)
    assert not change({"pk": task.pk, "state__in": states, "lock_token__lt": 5}, lock_token=9)
    assert change({"pk": task.pk, "state__in": states, "lock_token__lt": 6}, lock_token=9)
    task.refresh_from_db()
    assert task.lock_token == 9


def test_the_same_name_may_be_asked_for_and_changed() -> None:
    task = TaskFactory.create(attempt=1)
    for attempt in (1, 2, 3):
        assert change({"pk": task.pk, "attempt": attempt}, attempt=attempt + 1)
    task.refresh_from_db()
    assert task.attempt == 4


def test_it_is_one_statement_each_time() -> None:
    task = TaskFactory.create()
    for number in range(3):
        with CaptureQueriesContext(connection) as queries:
            change({"pk": task.pk}, lock_token=number)
        assert len(queries) == 1


def test_an_error_in_a_transaction_marks_it_for_rollback() -> None:
    task, other = TaskFactory.create(key_claim="taken"), TaskFactory.create()
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            change({"pk": other.pk}, key_claim="taken")
        assert connection.needs_rollback
        transaction.set_rollback(True)
    assert Task.objects.get(pk=task.pk).key_claim == "taken"


def test_a_name_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(FieldDoesNotExist, match="nope"):
        change({"pk": TaskFactory.create().pk}, nope=1)
