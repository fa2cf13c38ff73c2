"""Wherever the settings say that the locks are, and however they say it: everything works there, in
both kinds of code, on connections of our own."""

import asyncio
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from pytest_django import Settings
from redis.cluster import RedisCluster

from django_task_locks import ahold, dispatch, epochs, hold, presence, rebuilding
from django_task_locks.connections import get_async_lock_manager, get_lock_manager
from django_task_locks.exceptions import LockServiceUnavailable, LockTimeout
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.models import State
from django_task_locks.worker.control import ControlChannel
from tests.integration.by_hand import HandWorker
from tests.integration.conftest import point_at
from tests.support.locations import LOCATIONS, Location
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import assert_nothing_is_left
from tests.support.services import AnyClient, Services
from tests.testapp import tasks


@pytest.fixture
def location(
    request: pytest.FixtureRequest, services: Services, settings: Settings, locks: LockManager
) -> Iterator[Location]:
    """The settings name this location from now on."""
    location = LOCATIONS[request.param](services)
    with location.way.control() as control:
        control.flushall()
    location.put_into(settings)
    epochs.forget()
    assert rebuilding.rebuild()
    yield location
    presence.leave()


@pytest.fixture
def control(location: Location) -> Iterator[AnyClient]:
    """A client of the test's own that leads to the same place."""
    with location.way.control() as client:
        yield client


@pytest.mark.parametrize("location", LOCATIONS, indirect=True)
class TestEveryLocation:
    def test_the_checks_find_no_error(self, location: Location) -> None:
        found = checks.run_checks(tags=["django_task_locks"])
        assert [message for message in found if message.level >= checks.ERROR] == []

    def test_hold_waits_and_is_woken(self, location: Location, control: AnyClient) -> None:
        locks = get_lock_manager()
        entered = threading.Event()

        def enter() -> None:
            with hold("r", timeout=10):
                entered.set()

        with ThreadPoolExecutor(1) as other:
            with hold("r"):
                assert control.exists(locks.keys.lock("r"))
                waiting = other.submit(enter)
                wait_until(lambda: locks.inspect_resource("r").exclusive_waiter_count)
                assert not entered.wait(0.3)  # longer than any timeout of a cache
            waiting.result(2)
            with hold("r"), pytest.raises(LockTimeout, match="'r' is held"):
                other.submit(enter_at_once).result(2)
        assert_nothing_is_left(LockManager(control, locks.keys.prefix))

    def test_ahold_waits_and_is_woken(self, location: Location, control: AnyClient) -> None:
        async def enter(entered: asyncio.Event, let_go: asyncio.Event) -> None:
            async with ahold("r", timeout=10) as held:
                assert await held.ais_held()
                entered.set()
                await let_go.wait()

        async def body() -> None:
            entered, let_go = [asyncio.Event(), asyncio.Event()], asyncio.Event()
            first = asyncio.create_task(enter(entered[0], let_go))
            await entered[0].wait()
            assert control.exists(locks.keys.lock("r"))
            second = asyncio.create_task(enter(entered[1], let_go))
            mine = await get_async_lock_manager()
            while not (await mine.inspect_resource("r")).exclusive_waiter_count:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not entered[1].is_set()
            let_go.set()
            await asyncio.gather(first, second)

        async def limited() -> None:
            async with asyncio.timeout(15):
                await body()

        locks = get_lock_manager()
        async_to_sync(limited)()
        assert_nothing_is_left(LockManager(control, locks.keys.prefix))

    def test_a_task_comes_to_a_worker_and_a_message_too(
        self, location: Location, control: AnyClient
    ) -> None:
        locks = get_lock_manager()
        worker = HandWorker(locks)
        task = dispatch(tasks.add, [1, 2], exclusive="r")
        at_once = dispatch(tasks.add, [1, 2], exclusive="s", immediate=True)

        claimed = worker.claim()

        assert (claimed.id, at_once.result) == (str(task.pk), 3)
        channel = ControlChannel(worker.owner, 1)
        try:
            watched = wait_until(channel.descriptor, what="a question that is pending")
            assert select.select([watched], [], [], 0.1)[0] == []
            locks.send(worker.owner, "cancel")
            assert select.select([watched], [], [], 5)[0] == [watched]
            assert channel.read() == "cancel"
        finally:
            channel.close()
        worker.release(claimed)
        locks.forget_owner(worker.owner)
        assert_nothing_is_left(LockManager(control, locks.keys.prefix))

    def test_connections_that_were_cut_heal_unnoticed(
        self, location: Location, control: AnyClient
    ) -> None:
        async def body() -> None:
            mine = await get_async_lock_manager()
            await mine.request(LockRequest(id="a"))
            cut(control)
            assert await mine.known(["a", "b"]) == {"a"}

        locks = get_lock_manager()
        locks.request(LockRequest(id="a"))
        cut(control)
        assert locks.known(["a", "b"]) == {"a"}
        cut(control)
        locks.request(LockRequest(id="a"))
        async_to_sync(body)()


def enter_at_once() -> None:
    with hold("r", timeout=0):
        pass


def cut(control: AnyClient) -> None:
    """All connections of others, on every node of a cluster."""
    is_cluster = isinstance(control, RedisCluster)
    nodes: Any = {"target_nodes": RedisCluster.ALL_NODES} if is_cluster else {}
    control.client_kill_filter(_type="normal", skipme=True, **nodes)


class TestWhatIsRefused:
    def test_a_certificate_of_an_unknown_authority(
        self, services: Services, settings: Settings, locks: LockManager
    ) -> None:
        point_at(settings, services.tls.tcp_url)
        with pytest.raises(LockServiceUnavailable, match="certificate verify failed"):
            get_lock_manager().known(["a"])

    def test_a_wrong_password_is_not_repeated(
        self, services: Services, settings: Settings, locks: LockManager
    ) -> None:
        port = services.guarded.port
        point_at(settings, f"redis://locks:wrong-and-secret@127.0.0.1:{port}")
        with pytest.raises(LockServiceUnavailable, match=f"127.0.0.1:{port}") as raised:
            get_lock_manager().known(["a"])
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
    def test_a_cluster_of_which_no_node_answers(
        self, hosts: str, settings: Settings, locks: LockManager
    ) -> None:
        """Nothing connects before the first operation."""
        point_at(settings, f"redis+cluster://user:secret@{hosts}")
        own = get_lock_manager()
        with pytest.raises(LockServiceUnavailable, match=r"127\.0\.0\.1:1") as raised:
            own.known(["a"])
        assert "secret" not in str(raised.value)

        async def body() -> None:
            mine = await get_async_lock_manager()
            with pytest.raises(LockServiceUnavailable, match=r"127\.0\.0\.1:1"):
                await mine.known(["a"])

        async_to_sync(body)()

    def test_a_dispatch_meanwhile_is_sent_later(
        self, services: Services, settings: Settings, locks: LockManager
    ) -> None:
        point_at(settings, "redis+cluster://127.0.0.1:1")
        task = dispatch(tasks.add, [1], exclusive="r")
        assert refreshed(task).state == State.WAITING
