"""A sentinel makes the replica the primary: clients follow, and what was granted is still so."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Ended, Waiting
from tests.locks.conftest import PREFIX
from tests.locks.scenario import asynchronous, make_manager, play
from tests.locks.scene import is_intact, prepare
from tests.locks.snapshot import snapshot
from tests.locks.support import hold, task
from tests.support.processes import wait_until
from tests.support.sentinel import SentinelGroup
from tests.support.services import BySentinel


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    """One of the test's own, whose primary it may kill."""
    with SentinelGroup(hz=100) as group:
        yield group


@pytest.fixture
def way(group: SentinelGroup) -> BySentinel:
    return BySentinel(group)


@pytest.fixture
def other(way: BySentinel) -> Iterator[LockManager]:
    """A manager of another process, so to say."""
    with way.client() as client:
        yield make_manager(client, PREFIX)


@pytest.fixture(params=["sync", "async"])
def locks(request: pytest.FixtureRequest, way: BySentinel) -> Iterator[LockManager]:
    options: dict[str, Any] = {"socket_timeout": 15}
    if request.param == "sync":
        with way.client(retry=Retry(NoBackoff(), 0), **options) as client:
            yield make_manager(client, PREFIX)
    else:
        with asynchronous(way, PREFIX, **options) as locks:
            yield locks


def test_a_dead_primary_is_told_and_the_new_one_is_found(
    group: SentinelGroup, way: BySentinel, locks: LockManager
) -> None:
    prepare(locks)
    locks.request(hold("a", "r"))
    dead = group.kill_primary()

    with pytest.raises(LockServiceUnavailable, match=r"known: .*the-endpoint"):
        locks.known(["a"])
    group.wait_for_failover(dead)

    wait_until(lambda: is_answered(locks), what="an answer of the new primary")
    with group.primary.client() as client:
        assert is_intact(snapshot(client, PREFIX))
        client.flushall()
        play(locks, client)


@pytest.mark.parametrize("change", [SentinelGroup.fail_over, SentinelGroup.replace_primary])
def test_whoever_waits_meanwhile_asks_again(
    group: SentinelGroup,
    locks: LockManager,
    other: LockManager,
    change: Callable[[SentinelGroup], None],
) -> None:
    other.request(hold("a", "r"))
    locks.request(hold("b", "r"))
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait_for, locks, "b")
        wait_until(lambda: is_somebody_blocked(group), what="the wait")

        change(group)
        wait_until(lambda: is_written(other), what="a write to the new primary")
        assert other.release("a") == Ended("done", ("b",))

        assert waiting.result()
    assert locks.release("b") == Ended("done")


def wait_for(locks: LockManager, id: str) -> bool:
    """As somebody does who is told of an outage and does not give up."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if not isinstance(locks.request(hold(id, "r")), Waiting):
                return True
            locks.wait_for_grant(id, 5)
        except LockServiceUnavailable:
            pass
    return False


def test_a_primary_that_has_become_a_replica_is_left(
    group: SentinelGroup, locks: LockManager
) -> None:
    """The connections to it are open still."""
    locks.request(task("a", "r"))
    group.fail_over()

    wait_until(lambda: is_written(locks), what="a write to the new primary", timeout=5)
    assert locks.request(task("b", "r")) == Waiting("b")


def is_written(locks: LockManager) -> bool:
    try:
        locks.beat("process@1", 30)
    except LockServiceUnavailable:
        return False
    return True


def is_answered(locks: LockManager) -> bool:
    try:
        return locks.known(["a"]) == {"a"}
    except LockServiceUnavailable:
        return False


def is_somebody_blocked(group: SentinelGroup) -> bool:
    with group.primary.client() as client:
        return bool(client.info("clients")["blocked_clients"])
