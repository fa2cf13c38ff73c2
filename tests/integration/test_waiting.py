"""Task.wait and Task.await_result: the result as soon as it is there, without polling."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_task_locks import adispatch, cancel_task, current_task, dispatch, hold
from django_task_locks.exceptions import (
    TaskCanceled,
    TaskFailed,
    TaskLocksError,
    TaskTimeout,
    WouldDeadlock,
)
from django_task_locks.locks import LockManager
from django_task_locks.locks.protocol import text
from django_task_locks.models import Task
from django_task_locks.sending import send_request
from django_task_locks.states import State
from tests.factories import AppStatusFactory
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import HandWorker
from tests.integration.transactions import elsewhere
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer
from tests.testapp import tasks

Wait = Callable[..., Any]


async def await_result(task: Task, timeout: float | None = None) -> Any:
    return await task.await_result(timeout)


@pytest.fixture(params=["wait", "await_result"])
def wait(request: pytest.FixtureRequest) -> Wait:
    """Both of them, called in the same way."""
    return Task.wait if request.param == "wait" else async_to_sync(await_result)


def blocked_clients(locks: LockManager) -> int:
    return int(locks.client.info("clients")["blocked_clients"])


@contextmanager
def in_threads(*calls: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Each call in a thread with a database connection of its own."""

    def run(call: Callable[[], Any]) -> Any:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        yield [threads.submit(run, call) for call in calls]


def finish(locks: LockManager, result: Any = None, state: State = State.COMPLETED) -> Task:
    """The next one that is ready, claimed and ended."""
    task = HandWorker(locks).run()
    error = {"type": "ValueError", "message": "went wrong", "traceback": "Traceback ..."}
    error_of = error if state == State.FAILED else None
    task.finish(state, token=task.lock_token, result=result, error=error_of)
    return task


class TestEnded:
    def test_the_result_is_returned(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record)
        finish(locks, {"a": [1]})

        assert wait(task) == {"a": [1]}
        assert task.state == State.COMPLETED
        assert wait(task, 0) == {"a": [1]}

    def test_a_failure_is_raised_with_the_stored_error(
        self, locks: LockManager, wait: Wait
    ) -> None:
        task = dispatch(tasks.record)
        finish(locks, state=State.FAILED)

        with pytest.raises(
            TaskFailed, match=f"task {task.pk}.* failed: ValueError: went wrong"
        ) as (raised):
            wait(task)
        assert raised.value.task == task
        assert raised.value.error["traceback"] == "Traceback ..."
        assert not isinstance(raised.value, TaskCanceled)
        assert isinstance(raised.value, TaskLocksError)

    def test_a_cancel_is_raised_with_its_reason(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record)
        cancel_task(task)

        with pytest.raises(TaskCanceled, match="was canceled: Canceled before it started"):
            wait(task)

    def test_a_row_that_is_gone_does_not_exist(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record)
        Task.objects.filter(pk=task.pk).delete()

        with pytest.raises(Task.DoesNotExist):
            wait(task)

    def test_M3_it_leaves_no_key_for_one_that_has_ended(
        self, locks: LockManager, wait: Wait
    ) -> None:
        task = dispatch(tasks.record)
        finish(locks)
        wait(task)

        assert not [key for key in locks.client.keys("*") if b"ended:" in key]


class TestWakeUp:
    def test_any_number_of_waiters_gets_the_result_at_once(self, locks: LockManager) -> None:
        task = dispatch(tasks.record)
        with in_threads(*[lambda: Task.objects.get(pk=task.pk).wait(30)] * 10) as waits:
            wait_until(lambda: blocked_clients(locks) == 10)
            began = time.monotonic()
            finish(locks, "x")
            assert [found.result() for found in waits] == ["x"] * 10
        assert time.monotonic() - began < 1.5

    def test_coroutines_wait_beside_each_other(self, locks: LockManager) -> None:
        task = dispatch(tasks.record)

        async def main() -> list[Any]:
            waits = [asyncio.ensure_future(task.await_result(30)) for _ in range(5)]
            while await asyncio.to_thread(blocked_clients, locks) < 5:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(elsewhere, lambda: finish(locks, "x"))
            return await asyncio.wait_for(asyncio.gather(*waits), 2)

        assert async_to_sync(main)() == ["x"] * 5

    def test_nobody_polls(self, locks: LockManager, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "ttl": 30, "heartbeat_interval": 10}
        task = dispatch(tasks.record)
        queries: list[int] = []

        def count() -> None:
            with CaptureQueriesContext(connection) as captured:
                task.wait(30)
            queries.append(len(captured))

        with in_threads(count):
            wait_until(lambda: blocked_clients(locks) == 1)
            before = locks.client.info("stats")["total_commands_processed"]
            time.sleep(1)
            assert locks.client.info("stats")["total_commands_processed"] - before <= 3
            finish(locks)
        assert queries == [3]  # before the mark, after it, and when the sign has come

    def test_a_task_that_waits_for_its_turn_first(self, locks: LockManager, wait: Wait) -> None:
        dispatch(tasks.record, exclusive="r")
        second = dispatch(tasks.record, exclusive="r")
        worker = HandWorker(locks)
        first = worker.run()

        def end_both() -> None:
            wait_until(lambda: blocked_clients(locks) == 1)
            first.finish(State.COMPLETED, token=first.lock_token)
            finish(locks, "second")

        with in_threads(end_both) as ended:
            assert wait(second, 20) == "second"
            ended[0].result()

    def test_another_attempt_is_waited_for(self, locks: LockManager) -> None:
        task = dispatch(tasks.record)
        worker = HandWorker(locks)
        running = worker.run()
        with in_threads(lambda: Task.objects.get(pk=task.pk).wait(30)) as (waiting,):
            wait_until(lambda: blocked_clients(locks) == 1)
            running.put_back(token=running.lock_token)
            locks.release(str(task.pk), token=running.lock_token)  # a sign, and it is not the end
            elsewhere(lambda: locks.watch(str(task.pk)))
            send_request(task)
            wait_until(lambda: locks.known([str(task.pk)]))
            assert not waiting.done()
            finish(locks, "second attempt")
            assert waiting.result() == "second attempt"

    def test_an_immediate_task_of_another_thread(self, locks: LockManager, wait: Wait) -> None:
        started, go_on = threading.Event(), threading.Event()

        def body() -> str:
            started.set()
            go_on.wait(20)
            return "done"

        with doing(body), in_threads(lambda: dispatch(bodies.run, immediate=True)):
            started.wait(20)
            task = Task.objects.get()
            threading.Timer(0.2, go_on.set).start()
            assert wait(task, 20) == "done"


class TestTimeout:
    def test_state_and_blockers_are_named(self, locks: LockManager, wait: Wait) -> None:
        first, second = (dispatch(tasks.record, exclusive="r") for _ in range(2))

        began = time.monotonic()
        with pytest.raises(
            TaskTimeout, match=r"has not ended within 0\.2 s: it is waiting"
        ) as raised:
            wait(second, 0.2)

        assert 0.2 <= time.monotonic() - began < 2
        assert isinstance(raised.value, TimeoutError)
        assert raised.value.task.state == State.WAITING
        assert [blocker.id for blocker in raised.value.blockers] == [str(first.pk)]
        assert str(first.pk) in str(raised.value)

    def test_who_runs_it_is_named(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record)
        HandWorker(locks, AppStatusFactory.create(name="w1")).run()

        with pytest.raises(TaskTimeout, match="it is running in w1"):
            wait(task, 0)

    def test_zero_only_looks(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record)

        with pytest.raises(TaskTimeout, match="waiting for a worker"):
            wait(task, 0)
        with transaction.atomic(), pytest.raises(TaskTimeout):
            task.wait(0)

    def test_versions_that_no_worker_has_are_named(self, locks: LockManager, wait: Wait) -> None:
        AppStatusFactory.create(versions={"app": ["1"]})
        task = dispatch(tasks.record, versions={"app": "2"})

        with pytest.raises(TaskTimeout, match="no worker is online that has the versions"):
            wait(task, 0)
        AppStatusFactory.create(versions={"app": ["1", "2"]})
        with pytest.raises(TaskTimeout, match="it is waiting for a worker"):
            wait(task, 0)

    @pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
    def test_what_is_no_time_is_refused(self, locks: LockManager, wait: Wait, timeout: Any) -> None:
        task = dispatch(tasks.record)

        with pytest.raises(ValueError, match="seconds from 0, or None"):
            wait(task, timeout)


class TestOwnEnd:
    """What could never come is refused at once, with or without a timeout."""

    @pytest.mark.parametrize("timeout", [None, 5])
    def test_inside_its_own_body(self, locks: LockManager, timeout: float | None) -> None:
        def body() -> None:
            task = current_task()
            assert task is not None
            task.wait(timeout)

        with doing(body):
            task = dispatch(bodies.run, immediate=True)

        with pytest.raises(TaskFailed, match=r"WouldDeadlock: task .* would wait for its own end"):
            task.wait()

    def test_inside_its_own_coroutine(self, locks: LockManager) -> None:
        async def body() -> None:
            task = current_task()
            assert task is not None
            await task.await_result()

        with doing(body):
            task = dispatch(bodies.arun, immediate=True)

        assert "would wait for its own end" in (task.error or {})["message"]

    def test_inside_a_task_that_it_is_around(self, locks: LockManager) -> None:
        def outer() -> str:
            parent = current_task()
            assert parent is not None
            with doing(parent.wait):
                inner = dispatch(bodies.run, immediate=True)
            return str((inner.error or {})["message"])

        with doing(outer):
            task = dispatch(bodies.run, immediate=True)

        assert f"task {task.pk}" in str(task.result)
        assert "would wait for its own end" in str(task.result)

    def test_while_holding_what_it_waits_for(self, locks: LockManager, wait: Wait) -> None:
        task = dispatch(tasks.record, exclusive="r")
        cancel_task(task)
        with hold("r", timeout=1):
            blocked = dispatch(tasks.record, shared="r")
            with pytest.raises(WouldDeadlock, match=r"'r'.* is held by hold"):
                wait(blocked, 5)

    def test_in_the_body_of_a_task_that_holds_it(self, locks: LockManager) -> None:
        def body() -> None:
            dispatch(tasks.record, exclusive="r").wait()

        with doing(body):
            task = dispatch(bodies.run, shared="r", immediate=True)

        assert "cannot start before that is free" in (task.error or {})["message"]

    def test_what_both_share_is_no_reason(self, locks: LockManager) -> None:
        with hold(shared="r"):
            task = dispatch(tasks.record, shared="r")
            with in_threads(lambda: finish(locks, "x")):
                assert task.wait(10) == "x"

    def test_inside_a_transaction(self, locks: LockManager) -> None:
        with (
            transaction.atomic(),
            pytest.raises(WouldDeadlock, match=r"inside a transaction.*after the commit"),
        ):
            dispatch(tasks.record).wait(5)

    def test_one_that_has_ended_may_be_asked_everywhere(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive="r")
        finish(locks, "x")
        with hold("r"), transaction.atomic():
            assert task.wait() == "x"


class TestCanceled:
    def test_a_canceled_waiter_leaves_nothing(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive="r")

        async def main() -> None:
            waiting = asyncio.ensure_future(task.await_result())
            while not await asyncio.to_thread(blocked_clients, locks):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        async_to_sync(main)()
        wait_until(lambda: blocked_clients(locks) == 0)
        cancel_task(task)
        (sign,) = [key for key in locks.client.keys("*") if b"ended:" in key]
        assert text(sign).endswith(str(task.pk))
        assert 0 < locks.client.ttl(sign) <= 10


class TestRedisAway:
    def test_the_row_is_looked_at(self, locks: LockManager, no_redis: str, wait: Wait) -> None:
        task = dispatch(tasks.record)

        def end() -> None:
            time.sleep(0.3)
            Task.objects.filter(pk=task.pk).update(state=State.COMPLETED, result="x")

        with in_threads(end):
            assert wait(task, 20) == "x"

    def test_the_time_is_kept(self, locks: LockManager, no_redis: str, wait: Wait) -> None:
        task = dispatch(tasks.record)

        with pytest.raises(TaskTimeout, match="it is waiting"):
            wait(task, 0.5)

    def test_a_wait_that_has_begun_goes_on(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        task = dispatch(tasks.record)
        with in_threads(lambda: Task.objects.get(pk=task.pk).wait(30)) as (waiting,):
            wait_until(lambda: blocked_clients(own_locks) == 1)
            server.kill()
            Task.objects.filter(pk=task.pk).update(state=State.COMPLETED, result="x")
            assert waiting.result(10) == "x"


def test_dispatched_and_awaited_in_one_coroutine(locks: LockManager) -> None:
    async def main() -> Any:
        task = await adispatch(tasks.record, ["x"], exclusive="r")
        ending = asyncio.to_thread(elsewhere, lambda: finish(locks, "x"))
        return (await asyncio.gather(task.await_result(20), ending))[0]

    assert async_to_sync(main)() == "x"
