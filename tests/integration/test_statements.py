"""Statements that are made once: they change and find what the ORM's own would."""

from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Subquery, Value
from django.test.utils import CaptureQueriesContext

from django_task_locks.managers import DatabaseNow
from django_task_locks.models import Task
from django_task_locks.statements import Parameter, Selection, Update
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.transactions import at_once, rolled_back
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db


def change(where: dict[str, Any], **changes: Any) -> int:
    return Update(Task, where, changes).run("default")


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


def somebody_waits_for_a_row() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


class TestUpdateAndThenSelect:
    """As it is without a transaction around it, when each of them is one of its own."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def selection(self) -> Selection[Task]:
        rows = Task.objects.annotate(others=Count("pk")).filter(pk=Parameter("id", Task._meta.pk))
        return Selection(rows, "others")

    def test_the_row_is_found_as_it_is_after_the_update(self, selection: Selection[Task]) -> None:
        task = TaskFactory.create(worker_name="old")
        found = selection.first_after(
            Update(Task, {"pk": task.pk, "worker_name": "old"}, {"worker_name": "100 % 'new'"}),
            {"id": task.pk},
        )
        assert found is not None
        assert (found[0].pk, found[0].worker_name, found[1]) == (task.pk, "100 % 'new'", 1)
        assert not connection.in_atomic_block

    def test_the_row_is_found_where_the_update_does_not_match(
        self, selection: Selection[Task]
    ) -> None:
        task = TaskFactory.create(worker_name="old")
        update = Update(Task, {"pk": task.pk, "worker_name": "x"}, {"worker_name": "new"})
        found = selection.first_after(update, {"id": task.pk})
        assert found is not None
        assert found[0].worker_name == "old"
        assert selection.first_after(update, {"id": uuid4()}) is None

    def test_what_others_commit_while_the_update_waits_for_the_row_is_seen(self) -> None:
        task, other = TaskFactory.create(), TaskFactory.create(worker_name="before")
        name = Task.objects.filter(pk=other.pk).values("worker_name")
        rows = Task.objects.annotate(seen=Subquery(name))
        selection = Selection(rows.filter(pk=Parameter("id", Task._meta.pk)), "seen")
        has_row = Event()

        def change_both() -> None:
            with transaction.atomic():
                Task.objects.filter(pk=task.pk).update(attempt=2)
                has_row.set()
                if connection.vendor == "postgresql":  # SQLite has one writer, and tells nobody
                    wait_until(somebody_waits_for_a_row)
                Task.objects.filter(pk=other.pk).update(worker_name="after")

        def update() -> Any:
            has_row.wait(10)
            changes = {"lock_token": 7}
            return selection.first_after(Update(Task, {"pk": task.pk}, changes), {"id": task.pk})

        _, found = at_once(change_both, update)
        assert (found[0].attempt, found[0].lock_token, found[1]) == (2, 7, "after")

    def test_within_a_transaction_it_is_a_part_of_it(self, selection: Selection[Task]) -> None:
        task = TaskFactory.create(worker_name="old")
        update = Update(Task, {"pk": task.pk}, {"worker_name": "new"})
        with rolled_back():
            found = selection.first_after(update, {"id": task.pk})
            assert found is not None
            assert found[0].worker_name == "new"
        assert Task.objects.get(pk=task.pk).worker_name == "old"

    def test_an_update_that_fails_leaves_a_connection_that_works(
        self, selection: Selection[Task]
    ) -> None:
        task, other = TaskFactory.create(key_claim="taken"), TaskFactory.create()
        update = Update(Task, {"pk": other.pk}, {"key_claim": "taken"})
        with pytest.raises(IntegrityError):
            selection.first_after(update, {"id": other.pk})
        assert Task.objects.get(pk=task.pk).key_claim == "taken"
        with transaction.atomic():
            assert selection.first({"id": other.pk}) is not None

    def test_it_is_one_round_trip_where_the_database_takes_both_at_once(
        self, selection: Selection[Task]
    ) -> None:
        task = TaskFactory.create()
        with CaptureQueriesContext(connection) as queries:
            selection.first_after(Update(Task, {"pk": task.pk}, {"attempt": 2}), {"id": task.pk})
        assert len(queries) == (1 if connection.vendor == "postgresql" else 2)

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="an option of psycopg")
    def test_where_the_server_puts_the_values_in_it_is_two(
        self, selection: Selection[Task], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = TaskFactory.create()
        connection.close()
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
        try:
            with CaptureQueriesContext(connection) as queries:
                update = Update(Task, {"pk": task.pk}, {"attempt": 2})
                found = selection.first_after(update, {"id": task.pk})
        finally:
            connection.close()
        assert found is not None
        assert found[0].attempt == 2
        assert len(queries) == 2
