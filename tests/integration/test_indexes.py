"""Which index finds what is looked for, however many rows there are."""

import pytest
from django.db import connection
from django.db.models import QuerySet

from django_task_locks.ids import uuid7
from django_task_locks.models import State, Task, TaskGroup
from tests.factories import AppStatusFactory, TaskFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def few_rows_are_no_reason_to_read_them_all() -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        ("task_locks_app_lock", Task.objects.filter(app_lock=uuid7())),
        ("task_locks_app_lock", Task.objects.filter(app_lock__in=[uuid7(), uuid7()])),
        ("task_locks_parent", Task.objects.filter(parent_task=uuid7())),
        ("task_locks_group", Task.objects.filter(task_group=uuid7())),
        ("task_locks_group", Task.objects.filter(task_group=uuid7(), state=State.WAITING)),
        ("task_locks_state", Task.objects.filter(state=State.WAITING, pk__gt=uuid7())),
    ],
)
def test_each_question_has_its_index(index: str, rows: "QuerySet[Task]") -> None:
    assert index in rows.explain()


def test_what_refers_to_a_row_is_found() -> None:
    process, parent, group = AppStatusFactory.create(), TaskFactory.create(), TaskGroup()
    group.save()
    task = TaskFactory.create(running_by=process, parent_task=parent, task_group=group)
    for related in (process.tasks, parent.child_tasks, group.tasks):
        assert related.get() == task
