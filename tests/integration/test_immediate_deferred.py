"""on_timeout="defer": an immediate coroutine that takes too long here is left to a worker."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, transaction
from pytest_django import Settings

from django_task_locks import (
    adispatch,
    current_task,
    dispatch,
    own_requests,
    presence,
    recovery,
    releasing,
    retrying,
)
from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import elsewhere, rolled_back
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import assert_nothing_is_left, leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Book

Immediate = Callable[..., Task]
LIMIT = 0.05


@pytest.fixture(autouse=True)
def _limit(locks: LockManager, settings: Settings) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "immediate_time_limit": LIMIT}


@pytest.fixture(params=["dispatch", "adispatch"])
def immediate(request: pytest.FixtureRequest) -> Immediate:
    """Both of them, called in the same way; a coroutine that may be left to a worker."""
    function: Immediate = dispatch if request.param == "dispatch" else async_to_sync(adispatch)

    def run(*args: Any, **kwargs: Any) -> Task:
        return function(bodies.arun, args, **{"immediate": True, "on_timeout": "defer", **kwargs})

    return run


async def never_ends() -> None:
    await asyncio.Event().wait()


def finish(locks: LockManager) -> Task:
    """As a worker does: claimed, run, released."""
    worker = HandWorker(locks)
    claimed = worker.claim()
    task = worker.start(claimed)
    assert task is not None
    task.finish(State.COMPLETED, token=task.lock_token)
    return task


def test_it_waits_for_a_worker_which_runs_it_again(
    locks: LockManager, immediate: Immediate
) -> None:
    with doing(never_ends):
        task = immediate(exclusive="a", queue="bulk")

    for found in (task, refreshed(task)):
        assert (found.state, found.error, found.app_lock_id) == (State.WAITING, None, None)
        assert found.started_at is None
        assert found.attempt == 1
    its = info(locks, task)
    assert (its.state, its.owner, its.token) == ("granted", "queue/bulk", None)
    assert finish(locks) == task
    assert_nothing_is_left(locks)


def test_one_that_is_quick_enough_ends_here(locks: LockManager, immediate: Immediate) -> None:
    async def body() -> str:
        return "x"

    with doing(body):
        assert immediate().result == "x"


def test_one_that_fails_by_itself_fails(locks: LockManager, immediate: Immediate) -> None:
    async def body() -> None:
        raise TimeoutError("its own")

    with doing(body):
        task = immediate()

    assert (task.state, message(task)) == (State.FAILED, "its own")


def test_without_it_the_task_fails(locks: LockManager, immediate: Immediate) -> None:
    with doing(never_ends):
        task = immediate(on_timeout="fail")

    assert (task.state, message(task)) == (State.FAILED, "Time limit of 0.05 s exceeded.")


def test_it_goes_behind_those_that_have_waited_for_it(
    locks: LockManager, immediate: Immediate
) -> None:
    others: list[Task] = []

    async def body() -> None:
        others.append(await adispatch(tasks.record, exclusive="a"))
        await never_ends()

    with doing(body):
        task = immediate(exclusive="a")

    assert info(locks, others[0]).state == "granted"
    assert [blocker.id for blocker in info(locks, task).blockers] == [str(others[0].pk)]


def test_L26_one_that_was_canceled_meanwhile_is_canceled(
    locks: LockManager, immediate: Immediate
) -> None:
    async def body() -> None:
        await asyncio.to_thread(elsewhere, lambda: Task.objects.get().request_cancel())
        await never_ends()

    with doing(body):
        task = immediate(exclusive="a")

    assert refreshed(task).state == State.CANCELED
    assert_nothing_is_left(locks)


def test_L27_one_that_was_taken_from_this_process_is_left_alone(
    locks: LockManager, immediate: Immediate
) -> None:
    async def body() -> None:
        await asyncio.to_thread(
            elsewhere, lambda: Task.objects.update(lock_token=10**6, worker_name="another")
        )
        await never_ends()

    with doing(body):
        task = immediate(exclusive="a")

    found = refreshed(task)
    assert (found.state, found.lock_token, found.worker_name) == (State.RUNNING, 10**6, "another")
    assert leftovers(locks) == set()


def test_L19_the_share_of_its_parent_stays(locks: LockManager) -> None:
    def outer() -> str:
        with doing(never_ends):
            inner = dispatch(bodies.arun, shared="a", immediate=True, on_timeout="defer")
        held = [holder.id for holder in locks.inspect_resource("a").holders]
        task = current_task()
        assert task is not None
        assert sorted(held) == sorted([str(task.pk), str(inner.pk)])
        assert inner.parent_task == task
        return inner.state

    with doing(outer):
        task = dispatch(bodies.run, shared="a", immediate=True)

    assert task.result == State.WAITING, task.error


def test_L24_canceled_during_the_body_it_is_canceled_and_not_left_to_a_worker(
    locks: LockManager,
) -> None:
    begun = asyncio.Event()

    async def body() -> None:
        begun.set()
        await never_ends()

    async def main() -> None:
        running = asyncio.ensure_future(
            adispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")
        )
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with doing(body):
        async_to_sync(main)()

    assert Task.objects.get().state == State.CANCELED
    assert leftovers(locks) == set()


class TestTransaction:
    def test_L25_it_is_handed_over_at_the_commit(self, locks: LockManager) -> None:
        async def body() -> None:
            await Book.objects.acreate(title="half done")
            await never_ends()

        with transaction.atomic(), doing(body):
            task = dispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")
            assert task.state == State.WAITING
            assert info(locks, task).state == "held"

        assert not Book.objects.exists()
        assert info(locks, task).owner == "queue/default"
        assert finish(locks) == task
        assert_nothing_is_left(locks)

    def test_L25_rollback_leaves_nothing(self, locks: LockManager) -> None:
        with rolled_back(), doing(never_ends):
            dispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")

        assert not Task.objects.exists()
        assert leftovers(locks) == set()


class TestOutage:
    @pytest.fixture
    def server(self) -> Iterator[ValkeyServer]:
        with ValkeyServer(appendonly="yes", appendfsync="always") as server:
            yield server

    def test_L8_redis_that_is_away_gets_it_when_it_is_back(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        async def body() -> None:
            await asyncio.to_thread(server.stop)
            await never_ends()

        with doing(body):
            task = dispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")
        assert refreshed(task).state == State.WAITING
        server.start()

        def is_queued() -> bool:
            recovery.clean_up()
            found = own_locks.inspect_request(str(task.pk))
            return found is not None and found.owner == "queue/default"

        wait_until(is_queued)
        assert finish(own_locks) == task

    def test_F5_a_database_that_is_away_gets_it_when_it_is_back(
        self, locks: LockManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = iter([True] * 4)
        hand_back = Task.hand_back

        def failing(task: Task, *, token: int) -> None:
            if next(failures, False):
                raise OperationalError("the connection is lost")
            hand_back(task, token=token)

        monkeypatch.setattr(Task, "hand_back", failing)
        with doing(never_ends), pytest.raises(OperationalError):
            dispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")

        task = Task.objects.get()

        def is_queued() -> bool:
            found = locks.inspect_request(str(task.pk))
            return found is not None and found.owner == "queue/default"

        wait_until(is_queued)
        assert refreshed(task).state == State.WAITING
        connection.close()

    def test_G5_a_process_that_dies_between_row_and_request_is_made_up_for(
        self, locks: LockManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(releasing, "release", lambda *args, **kwargs: None)
        monkeypatch.setattr(retrying, "send_or_warn", lambda task: None)
        with doing(never_ends):
            task = dispatch(bodies.arun, exclusive="a", immediate=True, on_timeout="defer")
        monkeypatch.undo()
        own_requests.forget(str(task.pk))
        assert info(locks, task).state == "held"

        recovery.clean_incarnation(presence.present().status, "it has died")

        assert info(locks, task).owner == "queue/default"
        assert refreshed(task).state == State.WAITING


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_timeout": "defer"},
        {"on_timeout": "defer", "immediate": True, "deferred": False},
        {"on_timeout": "retry", "immediate": True},
    ],
)
def test_what_makes_no_sense_is_refused(locks: LockManager, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match="on_timeout"):
        dispatch(tasks.arecord, **arguments)

    assert not Task.objects.exists()
