"""The primary of a Sentinel is replaced while code holds locks, or waits for them."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync
from pytest_django import Settings

from django_task_locks import ahold, dispatch, epochs, hold, presence, rebuilding
from django_task_locks.connections import get_async_lock_manager, get_lock_manager
from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.support.locations import BY_SENTINEL, by_sentinel
from tests.support.processes import wait_until
from tests.support.redis_state import answered, assert_nothing_is_left
from tests.support.sentinel import SentinelGroup
from tests.testapp import tasks


@pytest.fixture
def group(locks: LockManager, settings: Settings) -> Iterator[SentinelGroup]:
    """One of the test's own, which the settings name."""
    with SentinelGroup(hz=100) as group:
        by_sentinel(group, factory=BY_SENTINEL).put_into(settings)
        epochs.forget()
        assert rebuilding.rebuild()
        yield group
        presence.leave()


@pytest.fixture(params=[SentinelGroup.fail_over, SentinelGroup.replace_primary])
def change(request: pytest.FixtureRequest) -> Callable[[SentinelGroup], None]:
    """Two ways to get another primary: in good order, and by the death of the old one."""
    found: Callable[[SentinelGroup], None] = request.param
    return found


def waiters() -> int:
    return get_lock_manager().inspect_resource("r").exclusive_waiter_count


def is_free() -> bool:
    try:
        with hold("r", timeout=0):
            return True
    except (LockServiceUnavailable, TimeoutError):
        return False


def test_what_is_held_is_held_afterwards_and_released(
    group: SentinelGroup, change: Callable[[SentinelGroup], None]
) -> None:
    with hold("r", shared="s") as held:
        change(group)
        wait_until(lambda: answered(held.is_held), what="that it is held")
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(is_free).result()

    wait_until(is_free, what="the release")
    assert_nothing_is_left(get_lock_manager())


def test_who_waits_meanwhile_gets_the_lock_or_is_told_and_leaves_nothing(
    group: SentinelGroup, change: Callable[[SentinelGroup], None]
) -> None:
    entered = threading.Event()

    def enter() -> str:
        try:
            with hold("r", timeout=30):
                entered.set()
                return "entered"
        except LockServiceUnavailable:
            return "told"

    with ThreadPoolExecutor(1) as other:
        with hold("r"):
            waiting = other.submit(enter)
            wait_until(waiters, what="the wait")
            change(group)
            assert not entered.wait(0.5)
        assert waiting.result(20) in ("entered", "told")

    wait_until(is_free, what="the release")
    assert_nothing_is_left(get_lock_manager())


def test_a_coroutine_that_waits_meanwhile_does_so_too(
    group: SentinelGroup, change: Callable[[SentinelGroup], None]
) -> None:
    async def enter() -> str:
        try:
            async with ahold("r", timeout=30):
                return "entered"
        except LockServiceUnavailable:
            return "told"

    async def body() -> str:
        async with asyncio.timeout(30), ahold("r"):
            waiting = asyncio.create_task(enter(), context=contextvars.Context())
            mine = await get_async_lock_manager()
            while not (await mine.inspect_resource("r")).exclusive_waiter_count:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(change, group)
        return await waiting

    assert async_to_sync(body)() in ("entered", "told")
    wait_until(is_free, what="the release")
    assert_nothing_is_left(get_lock_manager())


def test_an_immediate_task_runs_on_the_new_primary(
    group: SentinelGroup, change: Callable[[SentinelGroup], None]
) -> None:
    assert dispatch(tasks.add, [1], exclusive="r", immediate=True).state == State.COMPLETED
    change(group)

    def is_completed() -> bool:
        task = dispatch(tasks.add, [1], exclusive="r", immediate=True, deferred=False)
        return task.state == State.COMPLETED

    wait_until(is_completed, what="a task")
    assert_nothing_is_left(get_lock_manager())
