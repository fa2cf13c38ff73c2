"""Handing over in bounded batches: no call blocks the server for long, and nobody is forgotten."""

from collections.abc import Callable

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, protocol
from django_task_locks.locks.requests import Claimed, Ended, Grant, Lane
from tests.locks.conftest import PREFIX
from tests.locks.scene import KEYS
from tests.locks.support import OTHER_WORKER, WORKER, Executor, hold, task

Remaining = Callable[[], set[str]]


@pytest.fixture(params=[1, 2, 3, 1000])
def small(redis_client: Redis, request: pytest.FixtureRequest) -> LockManager:
    """One call looks at very few waiters."""
    return LockManager(redis_client, PREFIX, batch=request.param)


def granted(manager: LockManager, ids: list[str]) -> list[str]:
    found = [manager.inspect_request(id) for id in ids]
    return [info.id for info in found if info and info.state == "granted"]


def test_a_release_goes_on_until_all_are_granted(
    small: LockManager, redis_client: Redis, remaining: Remaining
) -> None:
    ids = [f"reader{number}" for number in range(7)]
    small.request(hold("a", "r"))
    for id in ids:
        small.request(task(id, shared=["r"]))
    small.request(task("writer", "r"))
    assert small.release("a") == Ended("done", tuple(ids))
    assert not redis_client.exists(KEYS.unsettled)
    for id in ids[:-1]:
        assert small.release(id) == Ended("done")
    assert small.release(ids[-1]) == Ended("done", ("writer",))
    small.release("writer")
    assert not remaining()


def test_so_it_does_for_many_resources(small: LockManager, redis_client: Redis) -> None:
    names = [f"r{number}" for number in range(7)]
    small.request(hold("a", *names))
    for name in names:
        small.request(task(f"writer of {name}", name))
    assert set(small.release("a").granted) == {f"writer of {name}" for name in names}
    assert not redis_client.exists(KEYS.unsettled)


def test_a_requeue_and_the_end_of_an_owner_do_so_too(
    small: LockManager, redis_client: Redis
) -> None:
    small.request(task("a", "r"))
    claimed = Executor(small).take()
    ids = [f"reader{number}" for number in range(5)]
    for id in ids:
        small.request(task(id, shared=["r"], priority=1))
    assert small.requeue("a", owner=WORKER.owner, token=claimed.token).granted == tuple(ids)
    for id in ids:
        small.release(id)
    Executor(small).take()
    for id in ids:
        small.request(task(id, shared=["r"]))
    assert small.release_owner(WORKER.owner) == 1
    assert granted(small, ids) == ids
    assert not redis_client.exists(KEYS.unsettled)


def test_an_advance_leaves_the_rest_to_whoever_claims_next(
    small: LockManager, redis_client: Redis
) -> None:
    """The worker's own next task does not wait for it, and who dies here leaves nobody waiting."""
    lane = Lane(queue="other")
    small.request(task("a", "r"))
    ids = [f"reader{number}" for number in range(9)]
    for id in ids:
        small.request(task(id, shared=["r"], lane=lane))
    executor = Executor(small)
    executor.advance(executor.take())
    other = Executor(small, OTHER_WORKER)
    for _ in range(10):
        other.claim()
    assert granted(small, ids) == ids
    assert not redis_client.exists(KEYS.unsettled)


def test_settle_does_what_is_left(small: LockManager, redis_client: Redis) -> None:
    small.request(task("a", "r"))
    ids = [f"reader{number}" for number in range(9)]
    for id in ids:
        small.request(task(id, shared=["r"]))
    executor = Executor(small)
    first = executor.advance(executor.take())
    assert isinstance(first, Claimed)
    assert first.id == "reader0"
    small.settle()
    assert granted(small, ids) == ids[1:]
    assert small.settle() == Ended("done")
    assert not redis_client.exists(KEYS.unsettled)


def test_meanwhile_the_order_holds(redis_client: Redis) -> None:
    """What is not settled yet still waits, and nobody conflicting gets past it."""
    manager = LockManager(redis_client, PREFIX, batch=1)
    manager.request(hold("a", "r"))
    for id in ("reader0", "reader1", "reader2"):
        manager.request(task(id, shared=["r"], lane=Lane(queue="other")))
    manager._run(protocol.release("a", "", None))  # as if its process had died before it settled
    assert redis_client.exists(KEYS.unsettled)
    manager.request(task("writer", "r"))
    assert manager.request(task("higher", "r", priority=1)) == Grant("higher", None)
    assert granted(manager, ["reader0", "reader1", "reader2", "writer"]) == []
    assert manager.release("higher").granted == ("reader0", "reader1", "reader2")


def test_a_release_by_owner_alone_does_not_end_a_task_that_its_executor_has_claimed(
    manager: LockManager,
) -> None:
    manager.request(task("t", "r"))
    claimed = Executor(manager).take()
    assert manager.release("t", owner=WORKER.owner).status == "refused"
    assert manager.inspect_resource("r").holder_count == 1
    assert manager.release("t", owner=WORKER.owner, token=claimed.token).is_done
