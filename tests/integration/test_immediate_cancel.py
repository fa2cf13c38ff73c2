"""cancel_task of an immediate task that runs in this process: coroutines are stopped, synchronous
code is told.
"""

import asyncio
import time
from threading import Event, Thread

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections
from pytest_django import Settings

from django_task_locks import acancel_task, cancel_task, current_task, dispatch
from django_task_locks.dispatching import adispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.support.processes import message
from tests.support.redis_state import leftovers


async def never_ends() -> None:
    await asyncio.Event().wait()


async def present_task() -> Task:
    """As soon as it runs."""
    while (task := await Task.objects.filter(state=State.RUNNING).afirst()) is None:
        await asyncio.sleep(0.01)
    return task


def assert_was_canceled(locks: LockManager, task: Task) -> None:
    task.refresh_from_db()
    assert (task.state, message(task)) == (State.CANCELED, "Canceled while it ran.")
    assert leftovers(locks) == set()


def test_a_coroutine_is_stopped_at_once_by_a_cancel_in_its_process(
    locks: LockManager, settings: Settings
) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "immediate_time_limit": None}

    async def main() -> None:
        with doing(never_ends):
            running = asyncio.create_task(adispatch(bodies.arun, exclusive="a", immediate=True))
            task = await present_task()
            await acancel_task(task)
            ended = await asyncio.wait_for(running, 2)
        assert ended.pk == task.pk
        await sync_to_async(assert_was_canceled)(locks, ended)

    async_to_sync(main)()


def test_one_that_is_canceled_elsewhere_is_stopped_with_the_next_heartbeat(
    locks: LockManager, settings: Settings
) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "heartbeat_interval": 0.05}

    async def main() -> None:
        with doing(never_ends):
            running = asyncio.create_task(adispatch(bodies.arun, exclusive="a", immediate=True))
            task = await present_task()
            await Task.objects.filter(pk=task.pk).aupdate(state=State.CANCELING)
            ended = await asyncio.wait_for(running, 4)
        await sync_to_async(assert_was_canceled)(locks, ended)

    async_to_sync(main)()


def test_its_caller_goes_on(locks: LockManager) -> None:
    """Only the body was canceled, and not the coroutine that dispatched it."""

    async def main() -> None:
        with doing(never_ends):
            running = asyncio.create_task(adispatch(bodies.arun, exclusive="a", immediate=True))
            await acancel_task(await present_task())
            await running
        assert not running.cancelled()
        with doing(asyncio.sleep):
            task = await adispatch(bodies.arun, [0], exclusive="a", immediate=True)
        assert task.state == State.COMPLETED

    async_to_sync(main)()


class TestSynchronousCode:
    @pytest.fixture
    def begun(self) -> Event:
        return Event()

    def cancel(self, begun: Event) -> None:
        begun.wait(5)
        try:
            cancel_task(Task.objects.get())
        finally:
            connections.close_all()

    def test_it_is_told_when_it_asks_and_recorded_as_canceled(
        self, locks: LockManager, begun: Event
    ) -> None:
        def body() -> str:
            task = current_task()
            assert task is not None
            assert not task.is_canceling()
            begun.set()
            deadline = time.monotonic() + 5
            while not task.is_canceling():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return "what it returns does not count"

        canceler = Thread(target=self.cancel, args=[begun])
        canceler.start()
        with doing(body):
            task = dispatch(bodies.run, exclusive="a", immediate=True)
        canceler.join()
        assert_was_canceled(locks, task)

    def test_a_coroutine_that_synchronous_code_waits_for_is_stopped(
        self, locks: LockManager, begun: Event
    ) -> None:
        async def body() -> None:
            begun.set()
            await never_ends()

        canceler = Thread(target=self.cancel, args=[begun])
        canceler.start()
        with doing(body):
            task = dispatch(bodies.arun, exclusive="a", immediate=True)
        canceler.join()
        assert_was_canceled(locks, task)
