"""How an executor loads what it has claimed: by one statement, made once, like any other."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_task_locks.ids import uuid7
from django_task_locks.models import AppStatus, LockEpoch, State, Task, TaskGroup
from django_task_locks.signals import task_state_changed
from django_task_locks.worker.loading import Loader
from tests.factories import AppStatusFactory, TaskFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def process() -> AppStatus:
    return AppStatusFactory.create()


def full(process: AppStatus) -> Task:
    """A row in which nothing is as by default."""
    return TaskFactory.create(
        args=[1, {"a": None}],
        kwargs={"b": [2.5]},
        exclusive=["a\0b"],
        shared=["é"],
        run_after=timezone.now() + timedelta(days=1),
        versions={"app": "2"},
        retry_on=["builtins.OSError"],
        retry_delay=1.5,
        time_limit=60,
        unique_key="k",
        key_claim="claim",
        task_group=TaskGroup.objects.create(),
        parent_task=TaskFactory.create(),
        error={"message": "earlier"},
        progress={"done": 1},
        running_by=process,
        lock_token=7,
    )


def test_each_task_comes_as_the_orm_has_it_by_one_statement(process: AppStatus) -> None:
    loader = Loader(process)
    for task in (full(process), TaskFactory.create()):
        with CaptureQueriesContext(connection) as queries:
            found, is_alive, _ = loader.load(task.pk)

        assert len(queries) == 1
        assert found is not None
        assert is_alive
        wanted = Task.objects.get(pk=task.pk)
        assert not found.get_deferred_fields()
        for field in Task._meta.concrete_fields:
            assert getattr(found, field.attname) == getattr(wanted, field.attname), field.name


@pytest.mark.parametrize("id", [uuid7(), UUID(int=0)])
def test_one_that_is_not_there_is_none(process: AppStatus, id: UUID) -> None:
    assert Loader(process).load(id) == (None, False, 0)


def test_a_worker_declared_missing_or_without_a_row_is_told() -> None:
    task = TaskFactory.create()
    for process in (AppStatusFactory.create(declared=True), AppStatusFactory.build()):
        assert Loader(process).load(task.pk) == (task, False, 0)


def test_what_has_changed_since_is_seen(process: AppStatus) -> None:
    loader, task = Loader(process), TaskFactory.create()
    loader.load(task.pk)
    Task.objects.filter(pk=task.pk).update(queue="other")
    AppStatus.objects.filter(pk=process.pk).update(missing_at=timezone.now())

    found, is_alive, _ = loader.load(task.pk)

    assert found is not None
    assert (found.queue, is_alive) == ("other", False)


def test_the_number_of_the_epoch_comes_with_it(process: AppStatus) -> None:
    loader, task = Loader(process), TaskFactory.create()
    assert loader.load(task.pk)[2] == 0
    LockEpoch.objects.create(number=7, raised_at=timezone.now())
    assert loader.load(task.pk)[2] == 7


class TestStart:
    def test_what_waits_runs_by_the_claim(self, process: AppStatus) -> None:
        task = TaskFactory.create()
        loader = Loader(process)

        found, is_alive, _ = loader.start(task.pk, 5)

        assert is_alive
        assert found is not None
        assert (found.state, found.worker_name) == (State.RUNNING, process.name)
        assert found.started_at is not None
        assert loader.is_ours(found, 5)
        assert not loader.is_ours(found, 4)

    def test_again_changes_nothing(self, process: AppStatus) -> None:
        """As after a lost reply."""
        task = TaskFactory.create()
        loader = Loader(process)
        first = loader.start(task.pk, 5).task
        again = loader.start(task.pk, 5).task
        assert first is not None
        assert again is not None
        assert loader.is_ours(again, 5)
        assert again.started_at == first.started_at

    @pytest.mark.parametrize(
        "given", [{"state": State.CANCELED}, {"running_by": True, "lock_token": 4}]
    )
    def test_what_does_not_wait_stays_as_it_is(
        self, process: AppStatus, given: dict[str, Any]
    ) -> None:
        if "running_by" in given:
            given = {**given, "running_by": AppStatusFactory.create()}
        task = TaskFactory.create(**given)
        loader = Loader(process)

        found = loader.start(task.pk, 5).task

        assert found is not None
        assert (found.state, found.lock_token) == (task.state, task.lock_token)
        assert not loader.is_ours(found, 5)

    def test_a_claim_that_was_shut_out_starts_nothing(self, process: AppStatus) -> None:
        task = TaskFactory.create()
        assert task.fence(5)
        loader = Loader(process)
        found = loader.start(task.pk, 5).task
        assert found is not None
        assert found.state == State.WAITING
        assert not loader.is_ours(found, 5)

    def test_one_that_is_not_there_is_none(self, process: AppStatus) -> None:
        assert Loader(process).start(uuid7(), 5) == (None, False, 0)

    def test_a_worker_declared_missing_is_told(self) -> None:
        loader = Loader(AppStatusFactory.create(declared=True))
        assert not loader.start(TaskFactory.create().pk, 5).is_alive


class TestTelling:
    @pytest.fixture
    def told(self) -> Iterator[list[tuple[str, str, str]]]:
        """Of each change of a state: the task's name, the old and the new one."""
        found: list[tuple[str, str, str]] = []

        def note(task: Task, old_state: State, new_state: State, **kwargs: Any) -> None:
            found.append((task.name, old_state, new_state))

        task_state_changed.connect(note)
        yield found
        task_state_changed.disconnect(note)

    pytestmark = pytest.mark.django_db(transaction=True)

    def test_a_start_is_told_once_with_the_whole_task(
        self, process: AppStatus, told: list[Any]
    ) -> None:
        task, loader = TaskFactory.create(name="a"), Loader(process)
        loader.start(task.pk, 5)
        loader.load(task.pk)
        assert told == [("a", State.WAITING, State.RUNNING)]

    def test_a_start_whose_reply_was_lost_is_told_though_the_task_was_canceled_since(
        self, process: AppStatus, told: list[Any]
    ) -> None:
        task = TaskFactory.create(name="a", running_by=process, lock_token=5)
        task.request_cancel()
        Loader(process).start(task.pk, 5)
        assert told == [
            ("a", State.RUNNING, State.CANCELING),
            ("a", State.WAITING, State.RUNNING),
        ]

    def test_a_start_by_a_worker_that_was_declared_missing_is_told(self, told: list[Any]) -> None:
        task = TaskFactory.create(name="a")
        loader = Loader(AppStatusFactory.create(declared=True))
        assert not loader.start(task.pk, 5).is_alive
        assert told == [("a", State.WAITING, State.RUNNING)]

    def test_what_does_not_start_is_not_told(self, process: AppStatus, told: list[Any]) -> None:
        Loader(process).start(TaskFactory.create(state=State.CANCELED).pk, 5)
        assert told == []
