"""hold and ahold: locks around ordinary code."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from django_task_locks import ahold, dispatch, hold
from django_task_locks.exceptions import (
    InvalidResource,
    InvalidTask,
    LockServiceUnavailable,
    LockTimeout,
    WouldDeadlock,
)
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.support.processes import wait_until
from tests.support.redis_state import assert_nothing_is_left, leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Book


class Other:
    """Other code of this process, in a thread of its own, that holds until it is told to end."""

    def __init__(self, *exclusive: str, shared: Any = (), timeout: float | None = None) -> None:
        self.got = threading.Event()
        self.let_go = threading.Event()
        self.error: BaseException | None = None
        self.times: list[float] = []
        self._arguments = (exclusive, shared, timeout)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with hold(*self._arguments):
                self.times.append(time.monotonic())
                self.got.set()
                self.let_go.wait(20)
                self.times.append(time.monotonic())
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.let_go.set()
        self.thread.join(20)


def is_waiting(locks: LockManager, resource: str) -> bool:
    info = locks.inspect_resource(resource)
    return info.exclusive_waiter_count + info.shared_waiter_count > 0


def test_it_holds_all_resources_and_leaves_nothing(locks: LockManager) -> None:
    book = Book.objects.create(title="one")
    with hold([book, "b"], ["a", "b"]) as held:
        assert held.exclusive == ("b", f"testapp.book:{book.pk}")
        assert held.shared == ("a",)
        assert held.resources == ("b", f"testapp.book:{book.pk}", "a")
        assert held.token > 0
        assert held.is_held()
        assert locks.inspect_resource("b").mode == "exclusive"
    assert not held.is_held()
    assert leftovers(locks) == set()


def test_tokens_grow_with_every_grant(locks: LockManager) -> None:
    tokens = []
    for _ in range(3):
        with hold("r") as held:
            tokens.append(held.token)
    assert tokens == sorted(set(tokens))


def test_it_is_released_when_the_code_raises(locks: LockManager) -> None:
    with pytest.raises(ZeroDivisionError), hold("r"):
        1 / 0  # noqa: B018
    assert leftovers(locks) == set()


def test_shared_holders_share_and_an_exclusive_one_waits_for_the_last(locks: LockManager) -> None:
    first, second = Other(shared=["r"]), Other(shared=["r"])
    assert first.got.wait(5)
    assert second.got.wait(5)
    writer = Other("r")
    wait_until(lambda: is_waiting(locks, "r"))
    first.end()
    assert not writer.got.wait(0.1)
    second.end()
    assert writer.got.wait(5)
    writer.end()
    assert leftovers(locks) == set()


def test_no_timeout_waits_and_is_woken_by_the_release(locks: LockManager) -> None:
    first = Other("r")
    assert first.got.wait(5)
    second = Other("r")
    wait_until(lambda: is_waiting(locks, "r"))
    first.end()
    assert second.got.wait(5)
    second.end()
    assert second.times[0] - first.times[1] < 0.3, "far below the interval of the bounded wait"


def test_a_lost_sign_is_made_up_for_by_asking_again(locks: LockManager) -> None:
    first = Other("r")
    assert first.got.wait(5)
    second = Other("r")
    wait_until(lambda: is_waiting(locks, "r"))
    waiter = locks.inspect_resource("r").waiters[0].id
    # Somebody else takes the sign: as if it had been lost with a connection.
    taker = threading.Thread(target=lambda: locks.client.blpop([locks.keys.grant(waiter)], 3))
    locks.client.client_kill_filter(_type="normal", skipme=True)
    taker.start()
    first.end()
    assert second.got.wait(5)
    second.end()
    taker.join()
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_timeout_names_the_blockers_and_leaves_nothing(
    timeout: float, locks: LockManager
) -> None:
    task = dispatch(tasks.add, [1], exclusive=["r"])
    before = leftovers(locks)
    asked_at = time.monotonic()
    with pytest.raises(LockTimeout) as caught, hold("r", timeout=timeout):
        pass
    assert timeout <= time.monotonic() - asked_at < timeout + 1
    blocker = caught.value.blockers[0]
    assert (blocker.id, blocker.mode, blocker.resource) == (str(task.pk), "exclusive", "r")
    assert blocker.owner == "queue/default"
    assert abs(blocker.since - time.time()) < 60
    for part in ("'r'", str(task.pk), "exclusive", "since", "tests.testapp.tasks.add"):
        assert part in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert leftovers(locks) == before


def test_a_hold_does_not_overtake_a_task_that_came_first(locks: LockManager) -> None:
    first = Other(shared=["r"])
    assert first.got.wait(5)
    dispatch(tasks.add, [1], exclusive=["r"])
    with pytest.raises(LockTimeout), hold(shared="r", timeout=0):
        pass
    first.end()


def test_what_would_wait_for_itself_is_refused(locks: LockManager) -> None:
    with hold("outer", "read"):
        for exclusive, shared in (("outer", ()), ("read", ()), ((), "outer")):
            with (
                pytest.raises(WouldDeadlock, match="would wait for itself"),
                hold(exclusive, shared, timeout=5),
            ):
                pass
        with hold(shared="read"), hold("inner", timeout=5):
            pass
    assert leftovers(locks) == set()


def test_a_nested_hold_that_would_have_to_wait_needs_a_timeout(locks: LockManager) -> None:
    other = Other("taken")
    assert other.got.wait(5)
    with hold("outer"):
        with pytest.raises(WouldDeadlock, match="give a timeout"), hold("taken"):
            pass
        with pytest.raises(LockTimeout), hold("taken", timeout=0.05):
            pass
    other.end()
    assert leftovers(locks) == set()


def test_two_nested_holders_that_wait_for_each_other_both_end(locks: LockManager) -> None:
    barrier = threading.Barrier(2)
    errors: list[BaseException] = []

    def run(outer: str, inner: str) -> None:
        with hold(outer):
            barrier.wait(5)
            try:
                with hold(inner, timeout=0.3):
                    pass
            except LockTimeout as error:
                errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert errors
    assert leftovers(locks) == set()


def test_a_task_may_not_wait_for_its_own_resources(locks: LockManager) -> None:
    task = dispatch(tasks.hold_inside, ["r"], exclusive=["r"], immediate=True)
    assert task.state == State.FAILED
    assert task.error is not None
    assert task.error["type"] == "django_task_locks.exceptions.WouldDeadlock"
    assert str(task.pk) in task.error["message"]
    assert leftovers(locks) == set()


def test_a_hold_that_would_wait_for_an_outer_task_is_refused(locks: LockManager) -> None:
    def outer() -> str:
        inner = dispatch(tasks.hold_inside, ["r"], exclusive=["other"], immediate=True)
        return str((inner.error or {})["type"])

    with doing(outer):
        task = dispatch(bodies.run, exclusive=["r"], immediate=True)
    assert task.result == "django_task_locks.exceptions.WouldDeadlock"
    assert leftovers(locks) == set()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"exclusive": 7}, InvalidResource),
        ({"exclusive": [""]}, InvalidResource),
        ({"exclusive": "r", "timeout": -1}, ValueError),
        ({"exclusive": "r", "timeout": "1"}, ValueError),
        ({"exclusive": "r", "timeout": True}, ValueError),
        ({"exclusive": "r", "priority": 101}, InvalidTask),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], locks: LockManager
) -> None:
    with pytest.raises(error, match=r"7|''|-1|'1'|True|101"), hold(**arguments):
        pass
    assert leftovers(locks) == set()


def test_an_interrupt_while_waiting_leaves_nothing(
    locks: LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other("r")
    assert other.got.wait(5)
    before = leftovers(locks)

    def interrupted(self: LockManager, id: str, timeout: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LockManager, "wait_for_grant", interrupted)
    with pytest.raises(KeyboardInterrupt), hold("r"):
        pass
    assert leftovers(locks) == before
    other.end()


def test_inside_a_transaction_it_is_released_at_the_end(locks: LockManager) -> None:
    with transaction.atomic():
        with hold("r") as held:
            pass
        assert held.is_held(), "not committed yet"
    assert not held.is_held()


@pytest.mark.parametrize("savepoint", [False, True])
def test_L25_inside_a_transaction_that_rolls_back_it_is_released_too(
    savepoint: bool, locks: LockManager
) -> None:
    class Undo(Exception):
        pass

    def inside() -> None:
        with transaction.atomic():
            with hold("r") as held:
                seen.append(held)
            assert held.is_held()
            raise Undo

    seen: list[Any] = []
    if savepoint:
        with transaction.atomic():
            with pytest.raises(Undo):
                inside()
            assert not seen[0].is_held(), "the savepoint is gone"
    else:
        with pytest.raises(Undo):
            inside()
    assert not seen[0].is_held()
    assert leftovers(locks) == set()


def test_a_service_that_is_away_is_told(locks: LockManager, settings: Any) -> None:
    with ValkeyServer() as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        with hold("r") as held:
            server.kill()
            with pytest.raises(LockServiceUnavailable, match=r"valkey\.sock"):
                held.is_held()
        with pytest.raises(LockServiceUnavailable), hold("r"):
            pass
        server.start()


def test_a_process_that_was_declared_missing_holds_as_who_it_is_from_now_on(
    locks: LockManager,
) -> None:
    with hold("r") as first:
        pass
    locks.close_owner(first.owner)
    with hold("r") as second:
        assert second.is_held()
    assert second.owner != first.owner

    async def body() -> str:
        async with ahold("r") as held:
            return held.owner

    locks.close_owner(second.owner)
    assert run(body) not in (first.owner, second.owner)
    assert leftovers(locks) == set()


# -- asynchronous ----------------------------------------------------------------------------------


def run(function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
    return async_to_sync(function)(*arguments)


def test_ahold_holds_and_releases(locks: LockManager) -> None:
    async def body() -> None:
        async with ahold("r", "s") as held:
            assert await held.ais_held()
        assert not await held.ais_held()

    run(body)
    assert leftovers(locks) == set()


def test_ahold_waits_without_blocking_the_loop(locks: LockManager) -> None:
    other = Other("r")
    assert other.got.wait(5)

    async def body() -> int:
        ticks = 0

        async def hold_it() -> None:
            async with ahold("r"):
                pass

        holding = asyncio.create_task(hold_it())
        while not holding.done():
            await asyncio.sleep(0.005)
            ticks += 1
            if ticks == 20:
                other.let_go.set()
        await holding
        return ticks

    assert run(body) >= 20
    other.end()
    assert leftovers(locks) == set()


def test_ahold_names_the_blockers(locks: LockManager) -> None:
    other = Other("r")
    assert other.got.wait(5)

    async def body() -> None:
        async with ahold("r", timeout=0.05):
            pass

    with pytest.raises(LockTimeout, match="'r' is held"):
        run(body)
    other.end()


def test_L24_a_canceled_ahold_leaves_nothing(locks: LockManager) -> None:
    other = Other("r")
    assert other.got.wait(5)
    before = leftovers(locks)

    async def body(delay: float) -> None:
        async def hold_it() -> None:
            async with ahold("r"):
                pass

        holding = asyncio.create_task(hold_it())
        await asyncio.sleep(delay)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding

    for delay in (0.0, 0.001, 0.002, 0.005, 0.01, 0.05):
        run(body, delay)
        assert leftovers(locks) == before
    other.end()


def test_L24_canceled_between_grant_and_return_it_leaves_nothing(locks: LockManager) -> None:
    async def body() -> None:
        async def hold_it() -> None:
            async with ahold("r"):
                await asyncio.sleep(10)

        for step in range(60):
            holding = asyncio.create_task(hold_it())
            for _ in range(step):
                await asyncio.sleep(0)
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding

    run(body)
    assert_nothing_is_left(locks)


def test_each_loop_has_its_connections_and_closes_them(locks: LockManager) -> None:
    async def body() -> None:
        async with ahold("r"):
            pass

    run(body)
    before = len(locks.client.client_list())
    for _ in range(10):
        run(body)
    assert len(locks.client.client_list()) <= before + 1


def test_a_database_whose_driver_is_not_there_keeps_nobody_from_releasing(
    locks: LockManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy = {**connections.settings["default"], "ENGINE": "no_such_backend"}
    monkeypatch.setitem(connections.settings, "legacy", legacy)
    with hold("r"):
        pass
    assert locks.inspect_resource("r").holders == ()
