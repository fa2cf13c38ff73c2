"""Rows as they are kept: names of resources, processes, and the clock that judges them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core import serializers
from django.db import connection, connections
from django.utils import timezone

from django_task_locks import presence
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus, Task, TaskGroup
from tests.factories import AppStatusFactory, TaskFactory
from tests.support.processes import refreshed

NAMES = [
    "plain",
    "with 'quotes\" and \\backslash",
    "nul \0 in it",
    "lines\nand\r\ntabs\t",
    "emoji \U0001f600",
    "é and e\u0301",
    "%s {} [] null",
    " ",
    "x" * 1024,
]


@pytest.mark.django_db
class TestNames:
    @pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
    def test_any_character_comes_back_as_it_was(self, name: str) -> None:
        task = TaskFactory.create(exclusive=[name], shared=[name, "other"])

        found = refreshed(task)

        assert found.exclusive == [name]
        assert found.shared == [name, "other"]

    def test_none_is_an_empty_list(self) -> None:
        assert refreshed(TaskFactory.create()).exclusive == []

    def test_ten_thousand_names_come_back(self) -> None:
        names = [f"resource:{number}:" + "x" * 100 for number in range(10_000)]

        assert refreshed(TaskFactory.create(exclusive=names)).exclusive == names

    def test_tuple_is_kept_as_a_list(self) -> None:
        assert refreshed(TaskFactory.create(exclusive=("a", "b"))).exclusive == ["a", "b"]

    def test_values_are_lists_too(self) -> None:
        TaskFactory.create(exclusive=NAMES)

        assert Task.objects.values_list("exclusive", flat=True).get() == NAMES

    def test_rows_are_found_by_their_names(self) -> None:
        task = TaskFactory.create(exclusive=NAMES)
        TaskFactory.create(exclusive=NAMES[1:])

        assert Task.objects.get(exclusive=NAMES) == task

    @pytest.mark.parametrize("kind", ["json", "xml"])
    def test_dump_can_be_loaded_again(self, kind: str) -> None:
        names = [name for name in NAMES if "\0" not in name]
        task = TaskFactory.create(exclusive=names)

        text = serializers.serialize(kind, [task])
        Task.objects.all().delete()
        for loaded in serializers.deserialize(kind, text):
            loaded.save()

        assert refreshed(task).exclusive == names

    def test_names_are_json_for_those_who_look_at_the_table(self) -> None:
        task = TaskFactory.create(exclusive=NAMES)

        with connection.cursor() as cursor:
            cursor.execute("SELECT exclusive FROM django_task_locks_task")
            ((text,),) = cursor.fetchall()

        assert json.loads(text) == task.exclusive


def ago(seconds: float) -> datetime:
    return timezone.now() - timedelta(seconds=seconds)


@pytest.mark.django_db
class TestProcesses:
    def test_owner_is_name_and_incarnation(self) -> None:
        status = AppStatusFactory.create(name="worker@host 1")

        assert status.owner == str(status) == f"worker@host 1@{status.pk}"

    def test_process_is_online_for_one_ttl_after_its_beat(self) -> None:
        fresh = AppStatusFactory.create(ttl=timedelta(seconds=60), last_heartbeat=ago(50))
        stale = AppStatusFactory.create(ttl=timedelta(seconds=60), last_heartbeat=ago(70))

        assert list(AppStatus.objects.online()) == [fresh]
        assert list(AppStatus.objects.missing()) == [stale]

    def test_each_process_is_judged_by_its_own_ttl(self) -> None:
        patient = AppStatusFactory.create(ttl=timedelta(hours=1), last_heartbeat=ago(600))
        hasty = AppStatusFactory.create(ttl=timedelta(seconds=0.5), last_heartbeat=ago(5))

        assert list(AppStatus.objects.online()) == [patient]
        assert list(AppStatus.objects.missing()) == [hasty]

    def test_process_that_was_declared_missing_never_comes_back(self) -> None:
        declared = AppStatusFactory.create(declared=True)

        assert list(AppStatus.objects.online()) == []
        assert list(AppStatus.objects.missing()) == [declared]

    @pytest.mark.parametrize("offset", [-3600, 3600], ids=["slow", "fast"])
    def test_host_whose_clock_is_wrong_judges_as_all_others(
        self, offset: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it writes and compares is the database's time, and never its own."""
        if connection.vendor == "sqlite":
            pytest.skip("the database is in this process")
        status = AppStatusFactory.create(stale=True)
        wrong = datetime.now(UTC) + timedelta(seconds=offset)
        monkeypatch.setattr("django.utils.timezone.now", lambda: wrong)

        AppStatus.objects.filter(pk=status.pk).update(last_heartbeat=DatabaseNow())

        assert list(AppStatus.objects.online()) == [status]
        status.refresh_from_db()
        assert abs(status.last_heartbeat - datetime.now(UTC)) < timedelta(seconds=5)


def test_process_that_used_no_locks_has_no_row(locks: LockManager) -> None:
    AppStatusFactory.create()

    assert AppStatus.objects.current() is None


def test_current_process_is_the_one_that_announced_itself(locks: LockManager) -> None:
    AppStatusFactory.create()
    present = presence.present()

    assert AppStatus.objects.current() == present.status


@pytest.mark.django_db
class TestClock:
    def now(self) -> datetime:
        """As a row has it that was written by the database's clock."""
        group = TaskGroup.objects.create()
        TaskGroup.objects.filter(pk=group.pk).update(created_at=DatabaseNow())
        return TaskGroup.objects.get(pk=group.pk).created_at

    def test_is_the_present_time_in_utc(self) -> None:
        assert abs(self.now() - datetime.now(UTC)) < timedelta(seconds=1)

    @pytest.fixture
    def _in_tokyo(self) -> Iterator[None]:
        """A session whose local time is nine hours ahead."""
        if connection.vendor != "postgresql":
            pytest.skip("SQLite has no time zone of the session")
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
        yield
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")

    @pytest.mark.usefixtures("_in_tokyo")
    def test_session_in_another_zone_judges_as_all_others(self) -> None:
        fresh = AppStatusFactory.create(last_heartbeat=ago(1))
        stale = AppStatusFactory.create(last_heartbeat=ago(3600))

        assert list(AppStatus.objects.online()) == [fresh]
        assert list(AppStatus.objects.missing()) == [stale]

    def test_session_in_another_zone_writes_the_same_time(
        self, request: pytest.FixtureRequest
    ) -> None:
        status = AppStatusFactory.create(stale=True)
        request.getfixturevalue("_in_tokyo")
        AppStatus.objects.filter(pk=status.pk).update(last_heartbeat=DatabaseNow())
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE 'UTC'")

        status.refresh_from_db()

        assert abs(status.last_heartbeat - datetime.now(UTC)) < timedelta(seconds=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_database_whose_time_zone_is_set_in_the_settings(zone: str) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("there the setting changes what is written, too")
    settings: dict[str, Any] = {**connection.settings_dict, "TIME_ZONE": zone}
    ours = connections["default"]
    ours.close()
    connections["default"] = type(ours)(settings, "default")
    try:
        status = AppStatusFactory.create(stale=True)
        AppStatus.objects.filter(pk=status.pk).update(last_heartbeat=DatabaseNow())
        status.refresh_from_db()
        online = list(AppStatus.objects.online())
    finally:
        connections["default"].close()
        connections["default"] = ours

    assert abs(status.last_heartbeat - datetime.now(UTC)) < timedelta(seconds=1)
    assert online == [status]


@pytest.mark.django_db
def test_row_of_a_process_may_be_deleted_before_its_tasks() -> None:
    """A constraint would make every claim lock the row that the heartbeat writes."""
    task = TaskFactory.create(running_by=AppStatusFactory.create())

    AppStatus.objects.all().delete()

    found = Task.objects.get(pk=task.pk)
    assert found.app_lock_id == task.app_lock_id
    assert not Task.objects.filter(app_lock__name=task.worker_name).exists()


@pytest.mark.django_db
def test_parent_may_be_deleted_before_its_children() -> None:
    parent = TaskFactory.create()
    child = TaskFactory.create(parent_task=parent)

    Task.objects.filter(pk=parent.pk).delete()

    assert Task.objects.get(pk=child.pk).parent_task_id == parent.pk


@pytest.mark.django_db
def test_rows_are_named_for_people() -> None:
    group = TaskGroup.objects.create(description="nightly")
    task = TaskFactory.create(id=uuid7(), task_group=group)

    assert str(group) == "nightly"
    assert str(TaskGroup.objects.create()) != ""
    assert str(task) == f"tests.testapp.tasks.record ({task.pk})"
