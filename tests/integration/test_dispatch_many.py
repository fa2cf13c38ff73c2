"""dispatch_many: all of the tasks or none, in few statements and few round trips."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_task_locks import adispatch_many, bulk, cancel_task, dispatch, dispatch_many, recovery
from django_task_locks.exceptions import InvalidResource, InvalidTask, UniqueKeyTaken
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, TaskGroup
from django_task_locks.orders import Order
from django_task_locks.states import State
from tests.integration.by_hand import HandWorker, info
from tests.integration.conftest import PASSWORD, point_at
from tests.integration.transactions import at_once, rolled_back
from tests.support.processes import Worker, message, refreshed, wait_until_final
from tests.support.redis_state import leftovers
from tests.testapp import tasks

DispatchMany = Callable[..., list[Task]]


@pytest.fixture(params=["dispatch_many", "adispatch_many"])
def dispatched(request: pytest.FixtureRequest) -> DispatchMany:
    """Both of them, called in the same way."""
    return dispatch_many if request.param == "dispatch_many" else async_to_sync(adispatch_many)


def states(found: Iterable[Task]) -> list[str]:
    return [refreshed(task).state for task in found]


class TestRowsAndRequests:
    def test_each_is_as_its_item_says_and_otherwise_as_all(
        self, locks: LockManager, dispatched: DispatchMany
    ) -> None:
        group = TaskGroup.objects.create()

        first, second = dispatched(
            [
                {"args": [1], "exclusive": ["a", "b"]},
                {"func": tasks.add, "args": [2], "kwargs": {"b": 3}, "shared": "c", "priority": 5},
            ],
            func=tasks.record,
            queue="bulk",
            task_group=group,
            priority=1,
            on_worker_loss="requeue",
            max_attempts=3,
            time_limit=60,
        )

        found = refreshed(first)
        assert (found.name, found.args, found.kwargs) == ("tests.testapp.tasks.record", [1], {})
        assert (found.exclusive, found.shared, found.priority) == (["a", "b"], [], 1)
        found = refreshed(second)
        assert (found.name, found.args, found.kwargs) == ("tests.testapp.tasks.add", [2], {"b": 3})
        assert (found.exclusive, found.shared, found.priority) == ([], ["c"], 5)
        for task in (first, second):
            found = refreshed(task)
            assert (found.queue, found.task_group, found.time_limit) == ("bulk", group, 60)
            assert (found.on_worker_loss, found.max_attempts) == ("requeue", 3)
            assert (found.state, info(locks, task).state) == (State.WAITING, "granted")

    def test_they_stand_in_the_order_of_the_items(
        self, locks: LockManager, dispatched: DispatchMany
    ) -> None:
        found = dispatched(({"args": [number]} for number in range(450)), func=tasks.record)

        assert [task.args for task in found] == [[number] for number in range(450)]
        assert list(Task.objects.order_by("pk")) == found
        worker = HandWorker(locks)
        for task in found[:3]:
            claimed = worker.claim()
            assert claimed.id == str(task.pk)
            worker.release(claimed)

    def test_a_rival_waits_behind_the_one_before_it(self, locks: LockManager) -> None:
        first, second = dispatch_many([{}, {}], func=tasks.record, exclusive="a")

        assert [blocker.id for blocker in info(locks, second).blockers] == [str(first.pk)]

    def test_nothing_comes_to_nothing(self, locks: LockManager, dispatched: DispatchMany) -> None:
        assert dispatched([]) == []

    def test_later_ones_take_no_place(self, locks: LockManager) -> None:
        (task,) = dispatch_many([{"run_after": timedelta(hours=1)}], func=tasks.record)

        assert info(locks, task).state == "due"

    def test_thousands_take_few_statements_and_round_trips(self, locks: LockManager) -> None:
        reads = locks.client.info("stats")["total_reads_processed"]
        with CaptureQueriesContext(connection) as queries:
            dispatch_many(
                [{"exclusive": f"r{number}"} for number in range(2_000)], func=tasks.record
            )

        # SQLite takes 999 values at once: rows of 31 tasks
        assert len(queries) <= (70 if connection.vendor == "sqlite" else 5)
        assert locks.client.info("stats")["total_reads_processed"] - reads < 80
        assert Task.objects.count() == 2_000

    def test_a_server_that_has_forgotten_the_scripts_learns_them(self, locks: LockManager) -> None:
        locks.client.script_flush()

        found = dispatch_many([{}] * 3, func=tasks.record)

        assert [info(locks, task).state for task in found] == ["granted"] * 3

    def test_a_worker_runs_them(self, worker: Worker) -> None:
        found = dispatch_many(
            ({"args": [number], "exclusive": f"r{number % 3}"} for number in range(30)),
            func=tasks.add,
        )

        assert [task.result for task in wait_until_final(found)] == list(range(30))


class TestTransactions:
    def test_requests_are_sent_on_commit(self, locks: LockManager) -> None:
        with transaction.atomic():
            found = dispatch_many([{}, {}], func=tasks.record, exclusive="a")
            assert leftovers(locks) == set()

        assert [info(locks, task).state for task in found] == ["granted", "waiting"]

    def test_a_rollback_leaves_nothing(self, locks: LockManager) -> None:
        with rolled_back():
            dispatch_many([{}, {}], func=tasks.record, exclusive="a")

        assert not Task.objects.exists()
        assert leftovers(locks) == set()


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "value": ({"args": [{1}]}, InvalidTask, r"item 2: args \[\{1\}\] of .*record"),
    "resource": ({"exclusive": b"a"}, InvalidResource, "item 2: resources b'a'"),
    "option": ({"max_attempts": 0}, InvalidTask, "item 2: max_attempts 0"),
    "queue": ({"queue": ""}, InvalidTask, "item 2: queue ''"),
    "function": ({"func": "nowhere.f"}, InvalidTask, "item 2: function 'nowhere.f'"),
    "key": ({"unique_key": ""}, InvalidTask, "item 2: unique_key ''"),
    "typo": ({"exlusive": "a"}, InvalidTask, "item 2: argument 'exlusive': is 'exclusive' meant"),
    "immediate": ({"immediate": True}, InvalidTask, "item 2: argument 'immediate'"),
    "no name": ({1: 2}, InvalidTask, "item 2: argument 1"),
    "no dict": ([7], InvalidTask, r"item 2: \[7\]: a dict of arguments"),
}


class TestRefused:
    @pytest.mark.parametrize("case", BAD)
    def test_one_that_is_wrong_is_named_and_nothing_is_written(
        self, locks: LockManager, dispatched: DispatchMany, case: str
    ) -> None:
        item, error, text = BAD[case]

        with transaction.atomic():
            with pytest.raises(error, match=text):
                dispatched([{}, {}, item, {}], func=tasks.record)
            assert not connection.run_on_commit

        assert not Task.objects.exists()
        assert leftovers(locks) == set()

    def test_a_function_is_needed(self, locks: LockManager) -> None:
        with pytest.raises(InvalidTask, match="item 1: func is missing"):
            dispatch_many([{"func": tasks.record}, {}])

    def test_what_is_said_for_all_is_looked_at_too(self, locks: LockManager) -> None:
        with pytest.raises(InvalidTask, match="item 0: argument 'immediate'"):
            dispatch_many([{}], func=tasks.record, immediate=True)  # type: ignore[call-arg]

    def test_a_group_that_has_finished_takes_none(self, locks: LockManager) -> None:
        group = TaskGroup.objects.create()
        cancel_task(dispatch(tasks.record, task_group=group))

        with pytest.raises(InvalidTask, match=r"item 1: .*has finished"):
            dispatch_many([{}, {"task_group": group}], func=tasks.record)

        assert Task.objects.count() == 1

    def test_arguments_are_those_of_dispatch(self) -> None:
        taken = set(Order.__dataclass_fields__) - {"immediate", "deferred", "on_timeout"}

        assert set(bulk.TaskArguments.__annotations__) == taken


class TestUniqueKeys:
    def test_the_present_task_is_returned_in_its_place(
        self, locks: LockManager, dispatched: DispatchMany
    ) -> None:
        present = dispatch(tasks.record, unique_key="b")

        found = dispatched([{"unique_key": key} for key in "abc"], func=tasks.record)

        assert found[1] == present
        assert set(found) == set(Task.objects.all())
        assert Task.objects.count() == 3
        assert [task.unique_key for task in found] == ["a", "b", "c"]

    def test_two_items_with_one_key_come_to_one_task(self, locks: LockManager) -> None:
        first, other, again = dispatch_many(
            [{"unique_key": key} for key in "aba"], func=tasks.record
        )

        assert first == again
        assert set(Task.objects.all()) == {first, other}

    @pytest.mark.parametrize("choice", ["raise", "replace"])
    def test_two_items_with_one_key_are_refused_otherwise(
        self, locks: LockManager, choice: str
    ) -> None:
        with pytest.raises(InvalidTask, match="item 2: unique_key 'a' is that of item 0"):
            dispatch_many(
                [{"unique_key": key} for key in "aba"], func=tasks.record, on_conflict=choice
            )

        assert not Task.objects.exists()

    def test_raise_names_the_item_and_the_present_task(self, locks: LockManager) -> None:
        present = dispatch(tasks.record, unique_key="b")

        with pytest.raises(UniqueKeyTaken, match=f"item 1: .*'b' .*{present.pk}") as raised:
            dispatch_many([{}, {"unique_key": "b", "on_conflict": "raise"}], func=tasks.record)

        assert raised.value.task == present
        assert Task.objects.count() == 1

    def test_replace_cancels_those_that_have_not_started(self, locks: LockManager) -> None:
        present = dispatch(tasks.record, unique_key="b")

        _, task = dispatch_many([{}, {"unique_key": "b"}], func=tasks.record, on_conflict="replace")

        assert refreshed(present).state == State.CANCELED
        assert message(present) == f"Replaced by task {task.pk}."
        assert locks.inspect_request(str(present.pk)) is None
        assert info(locks, task).state == "granted"

    def test_replace_of_one_that_runs_replaces_none(self, locks: LockManager) -> None:
        waiting = dispatch(tasks.record, unique_key="a")
        dispatch(tasks.record, unique_key="b", priority=1)
        HandWorker(locks).run()

        with pytest.raises(UniqueKeyTaken, match=r"item 1: .*is running"):
            dispatch_many(
                [{"unique_key": "a"}, {"unique_key": "b"}],
                func=tasks.record,
                on_conflict="replace",
            )

        assert refreshed(waiting).state == State.WAITING
        assert Task.objects.count() == 2

    def test_a_key_is_free_again_when_its_task_has_ended(self, locks: LockManager) -> None:
        (first,) = dispatch_many([{"unique_key": "a"}], func=tasks.record)
        cancel_task(first)

        (second,) = dispatch_many([{"unique_key": "a"}], func=tasks.record)

        assert first != second

    @pytest.mark.parametrize("choice", ["return", "raise"])
    def test_of_two_at_once_one_writes_each_key(self, locks: LockManager, choice: str) -> None:
        keys = [f"k{number}" for number in range(50)]

        def run(order: list[str]) -> list[Task] | None:
            try:
                return dispatch_many(
                    [{"unique_key": key} for key in order], func=tasks.record, on_conflict=choice
                )
            except UniqueKeyTaken:
                return None

        found = at_once(lambda: run(keys), lambda: run(keys[::-1]))

        assert Task.objects.count() == 50
        ids = {task.unique_key: task.pk for task in Task.objects.all()}
        assert found.count(None) == (choice == "raise")
        for result in found:
            assert result is None or all(ids[task.unique_key] == task.pk for task in result)


class TestRedisAway:
    def test_one_warning_tells_how_many(
        self, no_redis: str, dispatched: DispatchMany, caplog: pytest.LogCaptureFixture
    ) -> None:
        found = dispatched([{}] * 500, func=tasks.record)

        assert states(found[:2]) == [State.WAITING] * 2
        (record,) = [found for found in caplog.records if found.__dict__.get("event")]
        assert record.__dict__["event"] == "tasks.not_sent"
        assert record.levelname == "WARNING"
        assert "count=500" in record.getMessage()
        assert no_redis in record.getMessage()
        assert PASSWORD not in caplog.text

    def test_clean_up_sends_them_when_redis_is_back(
        self, no_redis: str, redis_url: str, settings: Any, locks: LockManager
    ) -> None:
        found = dispatch_many([{}, {}], func=tasks.record)
        point_at(settings, redis_url)

        recovery.clean_up()

        assert [info(locks, task).state for task in found] == ["granted", "granted"]

    def test_a_foreign_value_in_the_way_of_one_keeps_nobody_else_out(
        self, locks: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        locks.client.rpush(locks.keys.lock("b"), "written by somebody else")

        found = dispatch_many([{"exclusive": name} for name in "abc"], func=tasks.record)

        assert locks.inspect_request(str(found[1].pk)) is None
        assert [info(locks, found[place]).state for place in (0, 2)] == ["granted", "granted"]
        assert "holds a value of another type" in caplog.text
        locks.client.delete(locks.keys.lock("b"))
