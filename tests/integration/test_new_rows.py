"""New rows are those that Django's own `save` and `bulk_create` would write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import F, Value
from django.db.models.signals import ModelSignal, post_init, post_save, pre_init, pre_save
from django.db.models.sql import InsertQuery
from django.test.utils import CaptureQueriesContext

from django_task_locks import dispatch, dispatch_many, new_rows
from django_task_locks.locks import LockManager
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import Task, TaskGroup
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.testapp import tasks

pytestmark = pytest.mark.django_db

Write = Callable[[Task], None]
MOMENT = datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC)
AWKWARD = "%s %% \\ '\" {a,b} NULL ü \U0001f512"


def insert(task: Task) -> None:
    new_rows.insert(task, "default")


def insert_many(task: Task) -> None:
    """Between others, whose columns have their defaults."""
    rows = [TaskFactory.build(), task, TaskFactory.build()]
    new_rows.insert_many(rows, "default", batch_size=2)


@pytest.fixture(params=[insert, insert_many])
def write(request: pytest.FixtureRequest) -> Write:
    """Both of them, called in the same way."""
    found: Write = request.param
    return found


def stored(task: Task, *, without: str = "id") -> dict[str, Any]:
    """The row's columns as the database has them."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT * FROM {connection.ops.quote_name(Task._meta.db_table)} WHERE id = %s",  # noqa: S608
            [Task._meta.pk.get_db_prep_save(task.pk, connection)],
        )
        columns = [column[0] for column in cursor.description]
        row = dict(zip(columns, cursor.fetchone(), strict=True))
    return {name: value for name, value in row.items() if name != without}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"args": [1, None, {"a": AWKWARD}], "kwargs": {AWKWARD: [[], {}]}},
        {"exclusive": ["a\0b", AWKWARD, ""], "shared": ["NULL"]},
        {"name": AWKWARD, "queue": "NULL", "worker_name": '"'},
        {"state": State.FAILED, "priority": -100, "lock_token": 2**62},
        {"immediate": True, "deferred": False},
        {"run_after": MOMENT, "started_at": MOMENT, "created_at": MOMENT},
        {"retry_delay": 0.1, "time_limit": 1e6, "max_attempts": 32_767, "retry_on": ["a.B"]},
        {"versions": {"app": "2"}, "unique_key": AWKWARD},
        {"result": None, "progress": {"done": 0.5}},
        {"result": 0},
        {"result": False},
        {"result": "null"},
        {"result": []},
        {"error": {"type": "", "message": AWKWARD, "traceback": ""}},
        {"parent_task_id": UUID(int=7)},
    ],
    ids=lambda values: ",".join(values) or "defaults",
)
def test_each_kind_of_value_is_stored_as_django_stores_it(
    write: Write, values: dict[str, Any]
) -> None:
    ours, saved, created = TaskFactory.build_batch(3, **{"created_at": MOMENT, **values})

    write(ours)

    saved.save(force_insert=True)
    Task.objects.bulk_create([created])
    assert stored(ours) == stored(saved) == stored(created)


def test_relations_are_stored(write: Write) -> None:
    group, process, parent = (
        TaskGroup.objects.create(),
        AppStatusFactory.create(),
        TaskFactory.create(),
    )
    task = TaskFactory.build(task_group=group, app_lock=process, parent_task=parent)
    write(task)
    found = Task.objects.get(pk=task.pk)
    assert (found.task_group, found.app_lock, found.parent_task) == (group, process, parent)


def test_an_instance_counts_as_saved_afterwards(write: Write) -> None:
    task = TaskFactory.build()
    write(task)
    assert (task._state.adding, task._state.db) == (False, "default")
    task.priority = 3
    task.save()
    assert Task.objects.get(pk=task.pk).priority == 3


def test_a_column_that_must_have_a_value_is_not_left_out(write: Write) -> None:
    for name in ("created_at", "args", "priority"):
        with pytest.raises(IntegrityError), transaction.atomic():
            write(TaskFactory.build(**{name: None}))


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite takes text of any length")
def test_text_that_is_too_long_is_refused_and_not_cut(write: Write) -> None:
    with pytest.raises(DatabaseError), transaction.atomic():
        write(TaskFactory.build(queue="q" * 101))


def test_an_error_in_a_transaction_marks_it_for_rollback() -> None:
    TaskFactory.create(key_claim="taken")
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            insert(TaskFactory.build(key_claim="taken"))
        assert connection.needs_rollback
        transaction.set_rollback(True)


class TestMade:
    VALUES: ClassVar[dict[str, Any]] = {
        name: value
        for name, value in TaskFactory.build(args=[7], priority=3).__dict__.items()
        if name != "_state"
    }

    def test_an_instance_is_what_django_makes(self) -> None:
        ours, theirs = new_rows.made(Task, **self.VALUES), Task(**self.VALUES)
        for task in (ours, theirs):
            task.parent_task_id = UUID(int=7)
        states = ours.__dict__.pop("_state"), theirs.__dict__.pop("_state")
        assert ours.__dict__ == theirs.__dict__
        assert type(ours) is Task
        assert states[0].__dict__ == states[1].__dict__

    @pytest.mark.parametrize("signal", [pre_init, post_init])
    def test_who_listens_hears_of_it(self, signal: ModelSignal) -> None:
        heard = []

        def hear(sender: object, **kwargs: object) -> None:
            heard.append(sender)

        signal.connect(hear, sender=Task)
        try:
            new_rows.made(Task, **self.VALUES)
        finally:
            signal.disconnect(hear, sender=Task)
        assert heard == [Task]


class TestOne:
    @pytest.mark.parametrize("values", [{}, {"args": [7], "result": None}, {"priority": 5}])
    def test_django_makes_its_statement_once(
        self, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        insert(TaskFactory.build(**values))
        monkeypatch.delattr(InsertQuery, "insert_values")

        with CaptureQueriesContext(connection) as queries:
            insert(TaskFactory.build(**values))

        assert len(queries) == 1

    def test_an_expression_is_evaluated_by_the_database(self) -> None:
        task = TaskFactory.build(finished_at=DatabaseNow(), attempt=Value(1) + Value(2), args=[7])
        insert(task)
        found = Task.objects.get(pk=task.pk)
        assert found.finished_at is not None
        assert (found.attempt, found.args, found.state) == (3, [7], State.WAITING)

    def test_an_expression_that_needs_a_row_is_refused_as_by_save(self) -> None:
        for write in (insert, Task.save):
            with pytest.raises(ValueError, match="can only be used to update"):
                write(TaskFactory.build(attempt=F("attempt")))

    def test_the_signals_are_those_of_save(self) -> None:
        ours, theirs = TaskFactory.build_batch(2)
        with sent_signals() as from_us:
            insert(ours)
        with sent_signals() as from_save:
            theirs.save(using="default", force_insert=True)

        for signals, task in ((from_us, ours), (from_save, theirs)):
            assert [kwargs.pop("instance") for kwargs in signals] == [task, task]
        assert from_us == from_save

    def test_what_a_receiver_changes_before_is_written(self) -> None:
        def change(instance: Task, **kwargs: object) -> None:
            instance.queue, instance.finished_at = "changed", DatabaseNow()

        task = TaskFactory.build()
        pre_save.connect(change, sender=Task)
        try:
            insert(task)
        finally:
            pre_save.disconnect(change, sender=Task)

        found = Task.objects.get(pk=task.pk)
        assert found.queue == "changed"
        assert found.finished_at is not None


class TestMany:
    def test_none_are_no_error(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            new_rows.insert_many([], "default", batch_size=2)
        assert not queries

    def test_each_row_has_its_own_values(self) -> None:
        # some of which Python takes for equal
        given = [[1], [True], [1.0], ["1"], [], [0], [False], [None]]
        rows = [TaskFactory.build(args=args, result=args or None) for args in given]

        new_rows.insert_many(rows, "default", batch_size=3)

        found = [Task.objects.get(pk=row.pk) for row in rows]
        assert repr([task.args for task in found]) == repr(given)
        assert repr([task.result for task in found]) == repr([args or None for args in given])

    def test_an_hour_that_comes_twice_stays_two(self) -> None:
        """Python takes its times for equal."""
        first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
        moments = [first, first.replace(fold=1)]
        rows = [TaskFactory.build(run_after=moment) for moment in moments]

        new_rows.insert_many(rows, "default", batch_size=2)

        found = [Task.objects.get(pk=row.pk).run_after for row in rows]
        assert found == [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]

    def test_no_more_statements_than_batches(self) -> None:
        rows = TaskFactory.build_batch(7)
        with transaction.atomic(), CaptureQueriesContext(connection) as queries:
            new_rows.insert_many(rows, "default", batch_size=3)
        assert len(queries) == 3


@contextmanager
def sent_signals() -> Iterator[list[dict[str, Any]]]:
    """What is sent of Task before and after it is saved, in this order."""
    found: list[dict[str, Any]] = []

    def note(**kwargs: Any) -> None:
        found.append(kwargs)

    for signal in (pre_save, post_save):
        signal.connect(note, sender=Task)
    try:
        yield found
    finally:
        for signal in (pre_save, post_save):
            signal.disconnect(note, sender=Task)


class TestRowsOfTasks:
    def test_dispatch_and_dispatch_many_write_what_create_writes(self, locks: LockManager) -> None:
        group = TaskGroup.objects.create()
        plain: dict[str, Any] = {"name": "tests.testapp.tasks.record"}
        full: dict[str, Any] = {
            "name": "tests.testapp.tasks.record",
            "args": [1, AWKWARD],
            "kwargs": {"a": None},
            "exclusive": ["a", "b"],
            "shared": ["c"],
            "queue": "other",
            "priority": 7,
            "task_group": group,
            "on_worker_loss": "requeue",
            "max_attempts": 3,
            "run_after": datetime(2100, 1, 1, tzinfo=UTC),
            "retry_on": ["builtins.OSError"],
            "retry_delay": 2.5,
            "time_limit": 60.0,
            "versions": {"app": "2"},
        }
        for values in (plain, full):
            arguments = {name: value for name, value in values.items() if name != "name"}
            one = dispatch(tasks.record, **arguments)
            (of_many,) = dispatch_many([arguments], func=tasks.record)  # type: ignore[list-item]
            expected = Task.objects.create(**values, created_at=one.created_at)

            rows = [stored(task) for task in (one, of_many, expected)]
            assert rows[1].pop("created_at") >= rows[0]["created_at"]
            created_at = rows[0].pop("created_at")
            assert rows[2].pop("created_at") == created_at
            assert rows[0] == rows[1] == rows[2]

    def test_a_task_that_was_dispatched_has_the_fields_of_its_row(self, locks: LockManager) -> None:
        group = TaskGroup.objects.create()
        for task in (
            dispatch(tasks.record, [1], task_group=group),
            *dispatch_many([{"args": [1]}], func=tasks.record, task_group=group),
        ):
            found = Task.objects.get(pk=task.pk)
            for field in Task._meta.concrete_fields:
                assert getattr(task, field.attname) == getattr(found, field.attname), field.name
            assert task.task_group is group
            assert task.parent_task is None
