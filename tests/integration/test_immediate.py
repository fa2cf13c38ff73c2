"""Immediate tasks: run here if the locks are free, and never keep them longer than needed."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError
from django.db.models.signals import pre_save
from django.utils import timezone
from pytest_django import Settings

from django_task_locks import adispatch, current_task, dispatch, presence, recovery
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.factories import TaskFactory
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import info
from tests.integration.conftest import PASSWORD, point_at
from tests.integration.transactions import elsewhere
from tests.support.processes import message, refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks

Immediate = Callable[..., Task]


@pytest.fixture(params=["dispatch", "adispatch"])
def immediate(request: pytest.FixtureRequest) -> Immediate:
    """Both of them, called in the same way; an immediate task, not to be deferred."""
    function: Immediate = dispatch if request.param == "dispatch" else async_to_sync(adispatch)

    def run(*args: Any, **kwargs: Any) -> Task:
        return function(*args, **{"immediate": True, "deferred": False, **kwargs})

    return run


def other_process(locks: LockManager, name: str = "other", **resources: Any) -> LockRequest:
    """What somebody else holds from now on."""
    claimant = Claimant(owner=f"{name}@1", ttl=60)
    request = LockRequest(id=f"hold-{name}", claimant=claimant, **resources)
    locks.try_request(request)
    return request


@contextmanager
def refusing() -> Iterator[None]:
    """No row of a task can be written."""

    def refuse(**kwargs: Any) -> None:
        raise ValueError("refused by a receiver")

    pre_save.connect(refuse, sender=Task)
    try:
        yield
    finally:
        pre_save.disconnect(refuse, sender=Task)


class TestRun:
    @pytest.mark.parametrize("function", [tasks.record, tasks.arecord])
    def test_returns_the_finished_task(
        self, locks: LockManager, immediate: Immediate, function: Any
    ) -> None:
        task = immediate(function, ["x"], exclusive="a")

        for found in (task, refreshed(task)):
            assert (found.state, found.result, found.error) == (State.COMPLETED, "x", None)
            assert found.app_lock is None
            assert found.created_at <= found.started_at <= found.finished_at  # type: ignore[operator]
            assert found.immediate
        assert leftovers(locks) == set()

    @pytest.mark.parametrize("is_async", [False, True])
    def test_body_runs_as_a_running_task_that_holds_its_locks(
        self, locks: LockManager, immediate: Immediate, is_async: bool
    ) -> None:
        seen: list[Any] = []

        def look() -> None:
            (holder,) = locks.inspect_resource("a").holders
            seen.extend([current_task(), holder])

        async def alook() -> None:
            look()

        with doing(alook if is_async else look):
            task = immediate(bodies.arun if is_async else bodies.run, exclusive="a")

        assert task.state == State.COMPLETED, task.error
        current, holder = seen
        assert current == task
        assert (holder.id, holder.state) == (str(task.pk), "held")
        assert holder.owner == presence.present().owner
        assert task.worker_name == presence.present().status.name

    def test_others_see_the_row_running_in_this_process(self, locks: LockManager) -> None:
        rows: list[Task] = []

        def body() -> None:
            rows.append(elsewhere(Task.objects.select_related("app_lock").get))

        with doing(body):
            dispatch(bodies.run, immediate=True, exclusive="a")

        (row,) = rows
        assert (row.state, row.app_lock) == (State.RUNNING, AppStatus.objects.current())
        assert row.lock_token > 0

    def test_no_task_is_current_outside_of_a_body(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        immediate(tasks.fail, ["went wrong"])

        assert current_task() is None

    def test_error_is_the_outcome_and_not_raised(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        task = immediate(tasks.fail, ["went wrong"], exclusive="a")

        error = refreshed(task).error or {}
        assert (task.state, task.result) == (State.FAILED, None)
        assert (error["type"], error["message"]) == ("builtins.ValueError", "went wrong")
        assert "raise ValueError(message)" in error["traceback"]
        assert leftovers(locks) == set()

    def test_error_text_that_a_database_refuses_is_stored_readably(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        def body() -> None:
            raise ValueError("nul \0, surrogate \ud800, \U0001f600")

        with doing(body):
            task = immediate(bodies.run)

        assert message(task) == "nul \\x00, surrogate \\ud800, \U0001f600"

    def test_body_that_exits_ends_its_task_and_not_this_process(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        task = immediate(tasks.leave, [3], exclusive="a")

        assert task.state == State.FAILED
        assert (refreshed(task).error or {})["type"] == "builtins.SystemExit"
        assert leftovers(locks) == set()

    def test_interrupt_of_the_caller_goes_on_and_the_task_is_canceled(
        self, locks: LockManager
    ) -> None:
        def body() -> None:
            raise KeyboardInterrupt

        with doing(body), pytest.raises(KeyboardInterrupt):
            dispatch(bodies.run, immediate=True, exclusive="a")

        task = Task.objects.get()
        assert (task.state, message(task)) == (State.CANCELED, "Canceled by its caller.")
        assert leftovers(locks) == set()

    def test_result_that_json_cannot_hold_fails_the_task(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        task = immediate(tasks.return_object, exclusive="a")

        assert task.state == State.FAILED
        assert message(task).startswith("The function returned <object object at ")
        assert "cannot be stored as JSON" in message(task)
        assert leftovers(locks) == set()

    def test_locks_of_any_number_are_taken_and_released(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        exclusive = [f"x{number}" for number in range(4_000)]
        shared = [f"s{number}" for number in range(4_000)]

        assert immediate(tasks.add, [1], exclusive=exclusive, shared=shared).result == 1
        assert leftovers(locks) == set()


class TestTimeLimit:
    @pytest.fixture(autouse=True)
    def _limit(self, locks: LockManager, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "immediate_time_limit": 0.05}

    def test_coroutine_is_stopped_when_its_time_is_over(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        ended = []

        async def body() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with doing(body):
            task = immediate(bodies.arun, exclusive="a")

        assert (task.state, message(task)) == (State.FAILED, "Time limit of 0.05 s exceeded.")
        assert ended == [True]
        assert leftovers(locks) == set()

    def test_time_out_of_the_body_s_own_is_its_error(self, immediate: Immediate) -> None:
        async def body() -> None:
            raise TimeoutError("its own")

        with doing(body):
            task = immediate(bodies.arun)

        assert (refreshed(task).error or {})["type"] == "builtins.TimeoutError"
        assert message(task) == "its own"

    def test_function_has_no_limit(self, immediate: Immediate) -> None:
        assert immediate(tasks.record, ["x", 0.1]).state == State.COMPLETED

    def test_none_is_no_limit(self, settings: Settings, immediate: Immediate) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "immediate_time_limit": None}

        assert immediate(tasks.arecord, ["x", 0.1]).state == State.COMPLETED


class TestBlocked:
    def test_it_is_canceled_where_it_may_not_wait(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        other = other_process(locks, exclusive=("a",))

        task = immediate(tasks.record, exclusive=["a", "b"])

        found = refreshed(task)
        assert (task.state, found.state) == (State.CANCELED, State.CANCELED)
        assert message(task) == "Resources temporarily unavailable."
        assert found.started_at is None
        assert found.finished_at is not None
        locks.release(other.id)
        assert leftovers(locks) == set()

    def test_it_waits_for_a_worker_where_it_may(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        other = other_process(locks, exclusive=("a",))

        task = immediate(tasks.record, exclusive="a", queue="bulk", deferred=True)

        assert refreshed(task).state == State.WAITING
        found = info(locks, task)
        assert (found.state, found.owner) == ("waiting", "queue/bulk")
        assert locks.release(other.id).granted == (str(task.pk),)

    def test_it_does_not_block_itself_on_what_others_share(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        other_process(locks, shared=("a",))

        assert immediate(tasks.record, shared="a").state == State.COMPLETED
        assert immediate(tasks.record, exclusive="a").state == State.CANCELED

    def test_it_does_not_overtake_an_older_exclusive_that_waits(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        other = other_process(locks, shared=("a",))
        older = dispatch(tasks.record, exclusive="a")

        assert immediate(tasks.record, shared="a").state == State.CANCELED
        locks.release(other.id)
        assert immediate(tasks.record, shared="a").state == State.CANCELED
        assert locks.release(str(older.pk)).is_done
        assert immediate(tasks.record, shared="a").state == State.COMPLETED

    @pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=str)
    def test_the_clock_of_its_host_has_no_say(
        self,
        locks: LockManager,
        immediate: Immediate,
        monkeypatch: pytest.MonkeyPatch,
        ahead: timedelta,
    ) -> None:
        wrong = timezone.now() + ahead
        monkeypatch.setattr(timezone, "now", lambda: wrong)

        assert immediate(tasks.record, exclusive="a").state == State.COMPLETED
        first = dispatch(tasks.record, exclusive="a")
        monkeypatch.undo()
        second = dispatch(tasks.record, exclusive="a")

        assert immediate(tasks.record, exclusive="a").state == State.CANCELED
        assert (info(locks, first).state, info(locks, second).state) == ("granted", "waiting")

    def test_it_passes_what_shares_no_resource_with_it(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        other_process(locks, exclusive=("a",))
        dispatch(tasks.record, exclusive=["a", "b"])

        assert immediate(tasks.record, exclusive="c").state == State.COMPLETED

    def test_higher_priority_passes_a_grant_that_nobody_has_claimed(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        granted = dispatch(tasks.record, exclusive="a")

        assert immediate(tasks.record, exclusive="a").state == State.CANCELED
        assert immediate(tasks.record, exclusive="a", priority=1).state == State.COMPLETED
        found = info(locks, granted)
        assert found.state == "granted"


class TestNested:
    def test_L16_L19_end_of_the_inner_one_leaves_the_outer_one_its_share(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        counts = []

        def count() -> None:
            counts.append(locks.inspect_resource("a").holder_count)

        def outer() -> str:
            count()
            with doing(count):
                inner = dispatch(bodies.run, shared="a", immediate=True, deferred=False)
            count()
            (holder,) = locks.inspect_resource("a").holders
            return f"{inner.state} {holder.id == str(current_task().pk)}"  # type: ignore[union-attr]

        with doing(outer):
            task = immediate(bodies.run, shared="a")

        assert counts == [1, 2, 1]
        assert task.result == "completed True"
        assert leftovers(locks) == set()

    def test_inner_one_that_conflicts_with_its_parent_never_waits_here(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        task = immediate(tasks.nested, ["x", ["a"]], exclusive="a")

        assert (task.result or {})["state"] == State.CANCELED
        assert leftovers(locks) == set()


class TestSetUp:
    """L9: what raises between the grant and the start."""

    @pytest.mark.parametrize("function", [tasks.record, tasks.arecord])
    def test_L9_receiver_that_raises_leaves_nothing(
        self, locks: LockManager, immediate: Immediate, function: Any
    ) -> None:
        """L9: setting up an immediate run raises."""
        with refusing(), pytest.raises(ValueError, match="refused by a receiver"):
            immediate(function, exclusive="a")

        assert not Task.objects.exists()
        assert leftovers(locks) == set()

    def test_L9_row_that_the_database_refuses_leaves_nothing(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        present = TaskFactory.create()

        def collide(sender: Any, instance: Task, **kwargs: Any) -> None:
            instance.pk = present.pk

        pre_save.connect(collide, sender=Task)
        try:
            with pytest.raises(IntegrityError):
                immediate(tasks.record, exclusive="a")
        finally:
            pre_save.disconnect(collide, sender=Task)

        assert Task.objects.get() == present
        assert leftovers(locks) == set()

    def test_L9_next_one_runs_after_one_that_could_not_be_set_up(
        self, locks: LockManager, immediate: Immediate
    ) -> None:
        with refusing(), pytest.raises(ValueError, match="refused"):
            immediate(tasks.record, exclusive="a")

        assert immediate(tasks.record, exclusive="a").state == State.COMPLETED


class TestRedisAway:
    def test_it_is_canceled_where_it_may_not_wait(
        self, no_redis: str, immediate: Immediate, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = immediate(tasks.record, exclusive="a")

        assert refreshed(task).state == State.CANCELED
        assert message(task) == "Lock service unavailable."
        assert PASSWORD not in caplog.text

    def test_it_waits_as_any_dispatch_where_it_may(
        self,
        no_redis: str,
        immediate: Immediate,
        locks: LockManager,
        redis_url: str,
        settings: Settings,
    ) -> None:
        task = immediate(tasks.record, exclusive="a", deferred=True)

        assert refreshed(task).state == State.WAITING
        point_at(settings, redis_url)
        recovery.clean_up()
        found = info(locks, task)
        assert found.state == "granted"
