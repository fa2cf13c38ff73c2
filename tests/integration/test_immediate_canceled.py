"""L24: an `adispatch` that asyncio cancels, at any point and however often, leaves nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db.models.signals import post_save, pre_save

from django_task_locks import adispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.support.processes import message, wait_until
from tests.support.redis_state import leftovers
from tests.testapp import tasks


class Gate:
    """A receiver that stops the thread which writes a task, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = Event(), Event()

    def __call__(self, **kwargs: Any) -> None:
        self.reached.set()
        assert self.opened.wait(10)

    @asynccontextmanager
    async def on(self, signal: Any) -> AsyncIterator[None]:
        signal.connect(self, sender=Task)
        try:
            yield
        finally:
            self.opened.set()
            signal.disconnect(self, sender=Task)


async def canceled(task: asyncio.Task[Any], times: int, then: Callable[[], None]) -> None:
    """Cancels it so often, each time after the last has been delivered; `then` lets it go on."""
    for _ in range(times):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
    then()
    with pytest.raises(asyncio.CancelledError):
        await task


def assert_was_canceled(locks: LockManager) -> None:
    task = Task.objects.get()
    assert (task.state, message(task)) == (State.CANCELED, "Canceled by its caller.")
    assert task.app_lock is None
    assert task.finished_at is not None
    assert leftovers(locks) == set()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async_to_sync(main)()


@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("signal", [pre_save, post_save], ids=["before the row", "after the row"])
def test_L24_canceled_between_grant_and_return(locks: LockManager, signal: Any, times: int) -> None:
    """L24: `adispatch` is canceled by asyncio between grant and return."""

    async def main() -> None:
        gate = Gate()
        async with gate.on(signal):
            task = asyncio.create_task(adispatch(tasks.arecord, exclusive="a", immediate=True))
            await asyncio.to_thread(gate.reached.wait, 10)
            await canceled(task, times, gate.opened.set)

    run(main)

    assert_was_canceled(locks)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_L24_canceled_during_the_body(locks: LockManager, times: int) -> None:
    begun = asyncio.Event()

    async def body() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        with doing(body):
            task = asyncio.create_task(adispatch(bodies.arun, exclusive="a", immediate=True))
            await begun.wait()
            await canceled(task, times, lambda: None)

    run(main)

    assert_was_canceled(locks)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_L24_canceled_before_anything_was_asked_for(locks: LockManager, times: int) -> None:
    async def main() -> None:
        task = asyncio.create_task(adispatch(tasks.arecord, exclusive="a", immediate=True))
        await canceled(task, times, lambda: None)

    run(main)

    assert leftovers(locks) == set()
    assert not Task.objects.incomplete().exists()


@pytest.mark.parametrize("steps", range(12))
def test_L24_canceled_at_any_step(locks: LockManager, steps: int) -> None:
    async def main() -> None:
        task = asyncio.create_task(adispatch(tasks.arecord, exclusive="a", immediate=True))
        for _ in range(steps):
            await asyncio.sleep(0.001 if steps % 2 else 0)
        task.cancel()
        await asyncio.wait([task])

    run(main)

    wait_until(lambda: not leftovers(locks), 5, "the release")
    assert not Task.objects.incomplete().exists()


def test_L24_body_that_catches_its_cancellation_still_ends_its_task(locks: LockManager) -> None:
    begun = asyncio.Event()

    async def body() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "caught"
        return "never"

    async def main() -> None:
        with doing(body):
            task = asyncio.create_task(adispatch(bodies.arun, exclusive="a", immediate=True))
            await begun.wait()
            task.cancel()
            assert (await task).result == "caught"

    run(main)

    assert Task.objects.get().state == State.COMPLETED
    assert leftovers(locks) == set()


@pytest.mark.parametrize("times", [1, 3])
def test_L24_function_in_a_thread_runs_to_its_end(locks: LockManager, times: int) -> None:
    """A thread cannot be stopped: its task holds its locks until it has ended."""
    begun, go_on = Event(), Event()

    def body() -> str:
        begun.set()
        assert go_on.wait(10)
        return "ended"

    async def main() -> None:
        with doing(body):
            task = asyncio.create_task(adispatch(bodies.run, exclusive="a", immediate=True))
            await asyncio.to_thread(begun.wait, 10)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            assert (await asyncio.to_thread(locks.inspect_resource, "a")).holder_count == 1
            go_on.set()
            await asyncio.wait([task])

    run(main)

    wait_until(lambda: not leftovers(locks), 5, "the release")
    assert Task.objects.get().state in (State.COMPLETED, State.CANCELED)
