"""dispatch: a row and a request, both or neither; what is wrong is refused before either."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from django_task_locks import adispatch, dispatch, recovery
from django_task_locks.locks import LockManager
from django_task_locks.locks.protocol import text
from django_task_locks.models import Task, TaskGroup
from django_task_locks.states import State
from tests.factories import BookFactory
from tests.integration.by_hand import info
from tests.integration.conftest import PASSWORD, point_at
from tests.integration.transactions import elsewhere, rolled_back
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks
from tests.testapp.models import Audiobook, Reprint

Dispatch = Callable[..., Task]


@pytest.fixture(params=["dispatch", "adispatch"])
def dispatched(request: pytest.FixtureRequest) -> Dispatch:
    """Both of them, called in the same way."""
    return dispatch if request.param == "dispatch" else async_to_sync(adispatch)


def ready(locks: LockManager) -> list[str]:
    """What waits for a worker, in order."""
    return [text(id) for id in locks.client.zrange(locks.keys.ready("default"), 0, -1)]


class TestRowAndRequest:
    def test_row_says_what_to_run(self, locks: LockManager, dispatched: Dispatch) -> None:
        group = TaskGroup.objects.create(description="nightly")

        task = dispatched(
            tasks.add,
            [1],
            {"b": 2},
            exclusive="repo:1",
            shared=["remote:2", "remote:1"],
            queue="bulk",
            priority=5,
            task_group=group,
            on_worker_loss="requeue",
            max_attempts=3,
        )

        found = refreshed(task)
        assert (found.name, found.args, found.kwargs) == ("tests.testapp.tasks.add", [1], {"b": 2})
        assert (found.exclusive, found.shared) == (["repo:1"], ["remote:1", "remote:2"])
        assert (found.state, found.queue, found.priority) == (State.WAITING, "bulk", 5)
        assert (found.on_worker_loss, found.max_attempts, found.attempt) == ("requeue", 3, 1)
        assert (found.task_group, found.parent_task, found.app_lock) == (group, None, None)
        assert (found.immediate, found.deferred, found.lock_token) == (False, True, 0)
        assert abs(found.created_at - timezone.now()) < timedelta(seconds=5)

    def test_request_stands_for_the_task(self, locks: LockManager, dispatched: Dispatch) -> None:
        task = dispatched(tasks.record, exclusive=["a"], shared=["b"], queue="bulk")

        found = info(locks, task)
        assert (found.state, found.owner, found.token) == ("granted", "queue/bulk", None)
        assert (found.exclusive, found.shared) == (("a",), ("b",))
        assert (found.queue, found.label) == ("bulk", "tests.testapp.tasks.record")

    def test_second_one_on_the_same_resource_waits(self, locks: LockManager) -> None:
        first, second = (dispatch(tasks.record, exclusive="a") for _ in range(2))

        found = info(locks, second)
        assert found.state == "waiting"
        assert [blocker.id for blocker in found.blockers] == [str(first.pk)]

    def test_task_without_resources_is_granted(self, locks: LockManager) -> None:
        task = dispatch(tasks.record)

        found = info(locks, task)
        assert found.state == "granted"

    @pytest.mark.parametrize("func", [tasks.record, "tests.testapp.tasks.record", tasks.arecord])
    def test_function_or_its_path_is_accepted(self, locks: LockManager, func: Any) -> None:
        task = dispatch(func)

        assert task.name in ("tests.testapp.tasks.record", "tests.testapp.tasks.arecord")

    def test_later_ones_sort_behind_earlier_ones(self, locks: LockManager) -> None:
        found = [dispatch(tasks.record) for _ in range(20)]

        assert list(Task.objects.order_by("pk")) == found

    def test_priority_goes_before_the_order_of_dispatch(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        low, middle, high = (
            dispatched(tasks.record, priority=priority) for priority in (-100, 0, 100)
        )

        assert ready(locks) == [str(task.pk) for task in (high, middle, low)]

    def test_payload_of_any_characters_comes_back(self, locks: LockManager) -> None:
        args = ["é \U0001f600 \\u0000", [None, 1.5, True, {"": [[]]}], -(2**70)]

        assert refreshed(dispatch(tasks.record, args)).args == args

    def test_tuples_come_back_as_lists(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, ((1, 2),), {"a": (3,)})

        assert refreshed(task).args == [[1, 2]]
        assert refreshed(task).kwargs == {"a": [3]}


class TestResources:
    def names(self, **resources: Any) -> tuple[list[str], list[str]]:
        found = refreshed(dispatch(tasks.record, **resources))
        return found.exclusive, found.shared

    def test_single_values(self, locks: LockManager) -> None:
        book = BookFactory.create()

        assert self.names(exclusive="a", shared=book) == (["a"], [f"testapp.book:{book.pk}"])

    def test_lists_in_which_none_is_dropped(self, locks: LockManager) -> None:
        assert self.names(exclusive=["b", None, "a"], shared=[None]) == (["a", "b"], [])

    def test_no_resources_at_all(self, locks: LockManager) -> None:
        assert self.names(exclusive=None, shared=[]) == ([], [])

    def test_name_in_both_modes_is_exclusive(self, locks: LockManager) -> None:
        assert self.names(exclusive=["a", "a"], shared=["a", "b"]) == (["a"], ["b"])

    def test_proxy_and_multi_table_child_are_the_row_that_they_share(
        self, locks: LockManager
    ) -> None:
        book = Audiobook.objects.create(title="Emma", narrator="Anna")
        reprint = Reprint.objects.get(pk=book.pk)

        assert self.names(exclusive=[book, reprint]) == ([f"testapp.book:{book.pk}"], [])

    def test_names_may_have_any_characters(self, locks: LockManager) -> None:
        names = sorted(["\0", "a\nb", "{x}", "wait:x:a", "\U0001f600", "x" * 1024])

        task = dispatch(tasks.record, exclusive=names)

        found = info(locks, task)
        assert list(found.exclusive) == refreshed(task).exclusive == names

    def test_ten_thousand_are_accepted(self, locks: LockManager) -> None:
        names = [f"r{number}" for number in range(10_000)]

        task = dispatch(tasks.record, exclusive=names[:5_000], shared=names[5_000:])

        found = info(locks, task)
        assert (found.state, len(found.exclusive), len(found.shared)) == ("granted", 5_000, 5_000)


class TestTransaction:
    def test_request_is_sent_on_commit(self, locks: LockManager) -> None:
        with transaction.atomic():
            task = dispatch(tasks.record, exclusive="a")
            assert Task.objects.filter(pk=task.pk).exists()
            assert leftovers(locks) == set()

        assert locks.inspect_request(str(task.pk)) is not None

    def test_rollback_leaves_nothing_anywhere(self, locks: LockManager) -> None:
        with rolled_back():
            dispatch(tasks.record, exclusive="a")

        assert not Task.objects.exists()
        assert leftovers(locks) == set()

    def test_rollback_of_a_savepoint_leaves_the_others_alone(self, locks: LockManager) -> None:
        with transaction.atomic():
            kept = dispatch(tasks.record, exclusive="a")
            with rolled_back():
                dropped = dispatch(tasks.record, exclusive="b")

        assert list(Task.objects.all()) == [kept]
        assert locks.known([str(kept.pk), str(dropped.pk)]) == {str(kept.pk)}
        assert locks.inspect_resource("b").holder_count == 0

    def test_order_in_the_queue_is_the_order_in_the_transaction(self, locks: LockManager) -> None:
        with transaction.atomic():
            found = [dispatch(tasks.record) for _ in range(10)]

        assert ready(locks) == [str(task.pk) for task in found]

    def test_durable_transaction_is_no_obstacle(self, locks: LockManager) -> None:
        with transaction.atomic(durable=True):
            task = dispatch(tasks.record)

        assert locks.inspect_request(str(task.pk)) is not None

    def test_row_is_there_before_its_request(self, locks: LockManager) -> None:
        seen = []

        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(elsewhere(Task.objects.count)))
            transaction.on_commit(lambda: seen.append(len(leftovers(locks))))
            dispatch(tasks.record)

        assert seen == [1, 0]


class TestRedisAway:
    def test_task_stands_and_a_warning_names_the_server(
        self, no_redis: str, dispatched: Dispatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = dispatched(tasks.record, exclusive="a")

        assert refreshed(task).state == State.WAITING
        (record,) = [found for found in caplog.records if found.__dict__.get("event")]
        assert record.__dict__["event"] == "task.not_sent"
        assert record.levelname == "WARNING"
        assert str(task.pk) in record.getMessage()
        assert no_redis in record.getMessage()
        assert PASSWORD not in caplog.text

    def test_clean_up_sends_it_when_redis_is_back(
        self, no_redis: str, redis_url: str, settings: Any, locks: LockManager
    ) -> None:
        task = dispatch(tasks.record, exclusive="a")
        assert locks.inspect_request(str(task.pk)) is None
        point_at(settings, redis_url)

        recovery.clean_up()

        found = info(locks, task)
        assert found.state == "granted"

    def test_other_commit_hooks_still_run(self, no_redis: str) -> None:
        ran = []

        with transaction.atomic():
            dispatch(tasks.record)
            transaction.on_commit(lambda: ran.append("after"))

        assert ran == ["after"]

    def test_foreign_value_in_redis_does_not_break_the_dispatch(
        self, locks: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        locks.client.rpush(locks.keys.lock("a"), "written by somebody else")

        task = dispatch(tasks.record, exclusive="a")

        assert refreshed(task).state == State.WAITING
        assert "holds a value of another type" in caplog.text
        locks.client.delete(locks.keys.lock("a"))
        recovery.clean_up()
        assert locks.inspect_request(str(task.pk)) is not None


class TestInsideOfATask:
    def test_task_that_dispatches_is_the_parent(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        outer = dispatched(tasks.nested, ["x", ["a"]], shared="a", immediate=True)

        inner = Task.objects.get(pk=(outer.result or {})["inner"])
        assert inner.parent_task == outer
        assert outer.parent_task is None
        assert list(outer.child_tasks.all()) == [inner]


def test_many_async_dispatches_at_once(locks: LockManager) -> None:
    async def dispatch_all() -> Sequence[Task]:
        return await asyncio.gather(
            *(adispatch(tasks.record, exclusive=f"r{number}") for number in range(20))
        )

    found = async_to_sync(dispatch_all)()

    assert locks.known([str(task.pk) for task in found]) == {str(task.pk) for task in found}


def test_mapping_of_any_kind_is_accepted_as_kwargs(locks: LockManager) -> None:
    class Given(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return 7

        def __iter__(self) -> Any:
            return iter(["b"])

        def __len__(self) -> int:
            return 1

    assert refreshed(dispatch(tasks.add, [1], Given())).kwargs == {"b": 7}
