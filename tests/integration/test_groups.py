"""TaskGroup: how far its members are, all of them canceled or awaited, and one "finished"."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from pytest_django import DjangoAssertNumQueries

from django_task_locks import cancel_task, current_task, dispatch, grouping, recovery
from django_task_locks.exceptions import InvalidTask, TaskTimeout, WouldDeadlock
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, TaskGroup
from django_task_locks.settling import settle_task
from django_task_locks.signals import task_group_finished
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import HandWorker
from tests.integration.transactions import at_once, elsewhere, rolled_back
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.testapp import tasks


@pytest.fixture
def group(locks: LockManager) -> TaskGroup:
    return TaskGroup.objects.create(description="nightly")


@pytest.fixture
def signals(locks: LockManager) -> Iterator[list[TaskGroup]]:
    """The groups that were said to have finished."""
    found: list[TaskGroup] = []

    def note(group: TaskGroup, **kwargs: Any) -> None:
        assert not connection.in_atomic_block
        found.append(group)

    task_group_finished.connect(note)
    yield found
    task_group_finished.disconnect(note)


def run_all(locks: LockManager, count: int) -> list[Task]:
    """The next ones that are ready, each with an executor of its own."""
    worker, found = HandWorker(locks), []
    for _ in range(count):
        found.append(worker.run())
        worker.next_slot()
    return found


def finish(task: Task, state: State = State.COMPLETED) -> None:
    task.finish(state, token=task.lock_token)


class TestSummary:
    def test_it_counts_members_by_state_in_one_query(
        self, group: TaskGroup, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for state, count in ((State.WAITING, 3), (State.RUNNING, 1), (State.CANCELED, 2)):
            TaskFactory.create_batch(count, task_group=group, state=state)
        TaskFactory.create_batch(2, state=State.COMPLETED)

        with django_assert_num_queries(1):
            found = group.summary()

        assert found.counts == {
            State.WAITING: 3,
            State.RUNNING: 1,
            State.COMPLETED: 0,
            State.FAILED: 0,
            State.CANCELING: 0,
            State.CANCELED: 2,
        }
        assert (found.done, found.total) == (2, 6)
        assert async_to_sync(group.asummary)() == found

    def test_an_empty_one_has_none(self, group: TaskGroup) -> None:
        assert (group.summary().done, group.summary().total) == (0, 0)


class TestFinished:
    def test_it_is_said_once_after_the_last_member(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        for _ in range(3):
            dispatch(tasks.record, task_group=group)
        running = run_all(locks, 3)

        finish(running[0])
        finish(running[1], State.FAILED)
        assert signals == []
        finish(running[2])

        assert signals == [group]
        assert signals[0].finished_at is not None
        assert refreshed(running[2]).finished_at <= signals[0].finished_at  # type: ignore[operator]

    @pytest.mark.parametrize("immediate", [True, False])
    def test_a_canceled_and_an_immediate_member_are_members(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup], immediate: bool
    ) -> None:
        task = dispatch(tasks.record, task_group=group, immediate=immediate)
        if not immediate:
            cancel_task(task)

        assert signals == [group]

    def test_a_member_whose_process_was_lost(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        dispatch(tasks.record, task_group=group)
        HandWorker(locks, AppStatusFactory.create(stale=True)).run()

        recovery.clean_up()

        assert signals == [group]

    def test_members_that_end_at_the_same_time_say_it_once(
        self, locks: LockManager, signals: list[TaskGroup]
    ) -> None:
        for _ in range(5):
            group = TaskGroup.objects.create()
            for _ in range(4):
                dispatch(tasks.record, task_group=group)
            running = run_all(locks, 4)

            at_once(*[lambda task=task: finish(task) for task in running])
            for task in running:
                locks.release(str(task.pk))

            assert signals == [group]
            signals.clear()

    def test_nothing_is_said_of_what_is_rolled_back(
        self, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        with rolled_back():
            dispatch(tasks.record, task_group=group, immediate=True)

        assert signals == []
        group.refresh_from_db()
        assert group.finished_at is None

    def test_in_a_transaction_it_is_said_after_the_commit(
        self, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        with transaction.atomic():
            dispatch(tasks.record, task_group=group, immediate=True)
            assert signals == []

        assert signals == [group]

    def test_a_receiver_that_fails_disturbs_nobody(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        def refuse(**kwargs: Any) -> None:
            raise ValueError("a receiver's own")

        task_group_finished.connect(refuse)
        try:
            task = dispatch(tasks.record, task_group=group, immediate=True)
        finally:
            task_group_finished.disconnect(refuse)

        assert task.state == State.COMPLETED
        assert signals == [group]
        assert leftovers(locks) == set()

    def test_what_a_killed_process_did_not_say_clean_up_says(
        self, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        TaskFactory.create_batch(2, task_group=group, state=State.COMPLETED)
        busy, empty = TaskGroup.objects.create(), TaskGroup.objects.create()
        TaskFactory.create(task_group=busy, state=State.COMPLETED)
        TaskFactory.create(task_group=busy)

        planned = recovery.clean_up(dry_run=True)
        assert signals == []
        recovery.clean_up()
        recovery.clean_up()

        assert str(group.pk) in [step.subject for step in planned.steps]
        assert signals == [group]
        assert TaskGroup.objects.filter(finished_at=None).count() == len([busy, empty])

    def test_it_costs_one_more_question_for_members_and_none_for_others(
        self,
        locks: LockManager,
        group: TaskGroup,
        django_assert_num_queries: DjangoAssertNumQueries,
    ) -> None:
        for its in (None, group, group):
            dispatch(tasks.record, task_group=its)
        alone, first, _ = run_all(locks, 3)

        with django_assert_num_queries(1):
            finish(alone)
        with django_assert_num_queries(2):
            finish(first)


class TestMembers:
    def test_a_finished_group_takes_no_more(self, locks: LockManager, group: TaskGroup) -> None:
        stale = TaskGroup.objects.get()
        dispatch(tasks.record, task_group=group, immediate=True)

        for immediate in (True, False):
            with pytest.raises(InvalidTask, match="has finished, or is gone"):
                dispatch(tasks.record, task_group=stale, exclusive="r", immediate=immediate)

        assert Task.objects.count() == 1
        assert leftovers(locks) == set()

    def test_the_refusal_leaves_a_transaction_usable(
        self, locks: LockManager, group: TaskGroup
    ) -> None:
        dispatch(tasks.record, task_group=group, immediate=True)

        with transaction.atomic():
            with pytest.raises(InvalidTask):
                dispatch(tasks.record, task_group=group)
            other = dispatch(tasks.record)

        assert refreshed(other).state == State.WAITING

    def test_a_group_that_a_transaction_adds_to_has_not_finished(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        dispatch(tasks.record, task_group=group)
        (first,) = run_all(locks, 1)

        with transaction.atomic():
            second = dispatch(tasks.record, task_group=group)
            if connection.vendor == "postgresql":  # on SQLite the other one waits for the commit
                elsewhere(lambda: finish(first))
        if connection.vendor != "postgresql":
            finish(first)

        assert signals == []
        cancel_task(second)
        assert signals == [group]

    def test_one_that_was_not_added_after_all_leaves_it_to_clean_up(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("here the other one waits for the end of the transaction")
        dispatch(tasks.record, task_group=group)
        (first,) = run_all(locks, 1)
        with rolled_back():
            dispatch(tasks.record, task_group=group)
            elsewhere(lambda: finish(first))

        assert signals == []
        recovery.clean_up()
        assert signals == [group]

    def test_additions_that_race_the_end_are_members_or_refused(
        self, locks: LockManager, signals: list[TaskGroup]
    ) -> None:
        def add(group: TaskGroup) -> Task | None:
            try:
                return dispatch(tasks.record, task_group=group)
            except InvalidTask:
                return None

        for _ in range(15):
            group = TaskGroup.objects.create()
            dispatch(tasks.record, task_group=group)
            (running,) = run_all(locks, 1)

            _, added = at_once(lambda: finish(running), lambda: add(group))  # noqa: B023

            grouping.finish_if_done(group.pk)  # where both have met, nobody has decided it
            assert signals == ([] if added else [group])
            if added:
                cancel_task(added)
            assert signals == [group]
            signals.clear()


class TestCancel:
    def test_waiting_and_running_members_are_canceled(
        self, locks: LockManager, group: TaskGroup, signals: list[TaskGroup]
    ) -> None:
        for _ in range(3):
            dispatch(tasks.record, task_group=group)
        other = dispatch(tasks.record)
        worker = HandWorker(locks)
        running = worker.run()
        worker.next_slot()
        finish(worker.run())

        assert group.cancel() == 2

        assert group.summary().counts[State.CANCELED] == 1
        assert refreshed(running).state == State.CANCELING
        assert worker.messages() == [f"cancel {running.pk}"]
        assert refreshed(other).state == State.WAITING
        assert signals == []
        assert settle_task(refreshed(running), "stopped")
        assert signals == [group]

    def test_async(self, group: TaskGroup) -> None:
        dispatch(tasks.record, task_group=group)

        assert async_to_sync(group.acancel)() == 1
        assert group.summary().counts[State.CANCELED] == 1

    def test_a_finished_one_has_nothing_to_cancel(self, group: TaskGroup) -> None:
        dispatch(tasks.record, task_group=group, immediate=True)

        assert group.cancel() == 0


class TestWait:
    @pytest.fixture(params=["wait", "await_finished"])
    def wait(self, request: pytest.FixtureRequest) -> Callable[..., Any]:
        async def await_finished(group: TaskGroup, seconds: float | None = None) -> Any:
            return await group.await_finished(seconds)

        return TaskGroup.wait if request.param == "wait" else async_to_sync(await_finished)

    def test_it_returns_when_all_have_ended(
        self, locks: LockManager, group: TaskGroup, wait: Callable[..., Any]
    ) -> None:
        for _ in range(4):
            dispatch(tasks.record, task_group=group)
        running = run_all(locks, 4)

        def end_all() -> None:
            try:
                wait_until(lambda: locks.client.info("clients")["blocked_clients"])
                for task in (running[2], running[0], running[3]):
                    finish(task)
                time.sleep(0.05)
                finish(running[1], State.FAILED)
            finally:
                connections.close_all()

        thread = threading.Thread(target=end_all)
        thread.start()
        found = wait(group, 20)
        thread.join()

        assert (found.done, found.total) == (4, 4)
        assert found.counts[State.FAILED] == 1

    def test_time_that_is_over_tells_how_far_it_is(
        self, group: TaskGroup, wait: Callable[..., Any]
    ) -> None:
        dispatch(tasks.record, task_group=group)
        cancel_task(dispatch(tasks.record, task_group=group))

        with pytest.raises(TaskTimeout, match=r"nightly.* within 0\.1 s: 1 of 2 tasks have"):
            wait(group, 0.1)

    def test_an_empty_or_finished_one_is_not_waited_for(
        self, group: TaskGroup, wait: Callable[..., Any]
    ) -> None:
        assert wait(group).total == 0
        dispatch(tasks.record, task_group=group, immediate=True)
        assert wait(group).done == 1

    def test_a_member_cannot_wait_for_its_group(self, group: TaskGroup) -> None:
        def body() -> None:
            its = current_task()
            assert its is not None
            assert its.task_group is not None
            with pytest.raises(WouldDeadlock, match="is a member of group nightly"):
                its.task_group.wait(5)

        with doing(body):
            assert dispatch(bodies.run, task_group=group, immediate=True).state == State.COMPLETED
