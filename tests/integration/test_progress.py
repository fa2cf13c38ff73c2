"""report_progress: seen by others within a second, cheap, and never in the way of the task."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.backends.signals import connection_created

from django_task_locks import current_task, dispatch
from django_task_locks.context import as_current
from django_task_locks.exceptions import InvalidProgress
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import HandWorker
from tests.integration.transactions import elsewhere
from tests.support.processes import refreshed, wait_until
from tests.testapp import tasks
from tests.testapp.models import Book


def report(*args: Any, **kwargs: Any) -> Task:
    task = current_task()
    assert task is not None
    task.report_progress(*args, **kwargs)
    return task


def noted(done: float) -> None:
    report(done)


def is_reporting() -> bool:
    return any(thread.name == "task-locks-progress" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _none_left(locks: LockManager) -> Iterator[None]:
    """No thread of one test is at work in the next."""
    yield
    wait_until(lambda: not is_reporting(), what="the end of the reporting thread")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When progress was written."""
    times: list[float] = []
    store = Task.store_progress

    def noted(task: Task) -> None:
        times.append(time.monotonic())
        store(task)

    monkeypatch.setattr(Task, "store_progress", noted)
    return times


def immediately(body: Callable[[], Any]) -> Task:
    with doing(body):
        return dispatch(bodies.run, immediate=True)


def test_it_is_seen_while_the_task_runs(locks: LockManager) -> None:
    def body() -> None:
        task = report(3, 10, "copying")
        assert task.progress == {"done": 3, "total": 10, "message": "copying"}
        wait_until(lambda: elsewhere(lambda: refreshed(task).progress) == task.progress)

    task = immediately(body)

    assert task.state == State.COMPLETED, task.error


def test_the_last_value_is_stored_with_the_outcome(locks: LockManager) -> None:
    def body() -> None:
        for number in range(100):
            report(number + 1)

    task = immediately(body)

    assert refreshed(task).progress == {"done": 100, "total": None, "message": ""}


def test_the_last_value_of_a_failed_task_is_stored_too(locks: LockManager) -> None:
    def body() -> None:
        report(1, 2)
        report(1.5, 2)
        raise ValueError

    task = immediately(body)

    assert refreshed(task).state == State.FAILED
    assert (refreshed(task).progress or {})["done"] == 1.5


def test_it_is_written_once_a_second_at_most(locks: LockManager, writes: list[float]) -> None:
    def body() -> None:
        end = time.monotonic() + 2.3
        while time.monotonic() < end:
            report(1)
            time.sleep(0.01)

    immediately(body)

    assert 2 <= len(writes) <= 3
    assert all(later - earlier >= 1 for earlier, later in pairwise(writes))


def test_a_coroutine_reports_without_waiting(locks: LockManager) -> None:
    async def body() -> None:
        report(1, 3)
        await asyncio.sleep(0)
        await sync_to_async(report)(2, 3)
        await asyncio.to_thread(report, 3, 3)

    with doing(body):
        task = dispatch(bodies.arun, immediate=True)

    assert task.state == State.COMPLETED, task.error
    assert (refreshed(task).progress or {})["done"] == 3


def test_it_is_seen_though_the_body_is_in_a_transaction(locks: LockManager) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("one transaction writes at a time: it is seen after the commit")

    def body() -> None:
        with transaction.atomic():
            Book.objects.create(title="in a transaction")
            task = report(1, 2)
            wait_until(lambda: elsewhere(lambda: refreshed(task).progress))
            transaction.set_rollback(True)

    task = immediately(body)

    assert task.state == State.COMPLETED, task.error
    assert not Book.objects.exists()
    assert refreshed(task).progress is not None


def test_a_database_that_refuses_is_no_concern_of_the_task(
    locks: LockManager, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(**kwargs: Any) -> None:
        if threading.current_thread().name == "task-locks-progress":
            raise OSError("no connection")

    def body() -> None:
        with transaction.atomic():
            report(1, 2)
            wait_until(lambda: "progress could not be stored" in caplog.text)
            Book.objects.create(title="goes on")

    connection_created.connect(refuse)
    try:
        task = immediately(body)
    finally:
        connection_created.disconnect(refuse)

    assert task.state == State.COMPLETED, task.error
    assert Book.objects.exists()
    assert (refreshed(task).progress or {})["done"] == 1


def test_the_thread_ends_and_leaves_no_connection(locks: LockManager) -> None:
    immediately(partial(noted, 1))
    wait_until(lambda: not is_reporting())

    immediately(partial(noted, 2))
    wait_until(lambda: not is_reporting())

    if connection.vendor == "postgresql":
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%progress%' AND "
                "pid <> pg_backend_pid()"
            )
            assert cursor.fetchone() == (0,)


def test_L27_who_has_lost_the_task_does_not_report_any_more(locks: LockManager) -> None:
    dispatch(tasks.record)
    task = HandWorker(locks).run()
    Task.objects.filter(pk=task.pk).update(lock_token=task.lock_token + 1)
    task.progress = {"done": 1}

    task.store_progress()

    assert refreshed(task).progress is None


def test_a_late_report_does_not_follow_the_end(locks: LockManager) -> None:
    dispatch(tasks.record)
    task = HandWorker(locks).run()
    task.finish(State.COMPLETED, token=task.lock_token)
    task.progress = {"done": 1}

    task.store_progress()

    assert refreshed(task).progress is None


def test_a_task_that_reports_nothing_writes_nothing(
    locks: LockManager, writes: list[float]
) -> None:
    task = immediately(lambda: None)

    assert writes == []
    assert refreshed(task).progress is None


def test_an_outer_task_reports_from_an_inner_one(locks: LockManager) -> None:
    def outer() -> None:
        task = current_task()
        assert task is not None

        def inner() -> None:
            assert task is not None
            task.report_progress(1, 2)
            report(2, 2)

        with doing(inner):
            dispatch(bodies.run, immediate=True)

    task = immediately(outer)

    inner = Task.objects.get(parent_task=task)
    assert (refreshed(task).progress or {})["done"] == 1
    assert (refreshed(inner).progress or {})["done"] == 2


def test_another_instance_of_the_same_task_will_do(locks: LockManager) -> None:
    def body() -> None:
        found = Task.objects.get()
        found.report_progress(1)

    task = immediately(body)

    assert task.state == State.COMPLETED, task.error
    assert (refreshed(task).progress or {})["done"] == 1


def test_only_the_task_s_own_code_reports(locks: LockManager) -> None:
    task = dispatch(tasks.record)

    with pytest.raises(InvalidProgress, match="by its own code only"):
        task.report_progress(1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([-1], "done -1: a number from 0"),
        (["1"], "done '1'"),
        ([True], "done True"),
        ([float("nan")], "done nan"),
        ([1, float("inf")], "total inf"),
        ([1, "2"], "total '2'"),
        ([1, 2, None], "message None: text of up to 1,000 characters"),
        ([1, 2, "x" * 1001], "message"),
        ([1, 2, "\0"], "message"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    locks: LockManager, arguments: list[Any], complaint: str
) -> None:
    with (
        as_current(dispatch(tasks.record)),
        pytest.raises(InvalidProgress, match=complaint),
    ):
        report(*arguments)

    assert not is_reporting()
