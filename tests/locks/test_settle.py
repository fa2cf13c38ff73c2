"""Releases that have more to hand over than one call may."""

import pytest
from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Claimed, Ended
from tests.locks.conftest import PREFIX
from tests.locks.support import Executor, hold, task


@pytest.fixture
def small(redis_client: Redis) -> LockManager:
    """Examines no more than three waiters in one call."""
    return LockManager(redis_client, PREFIX, batch=3)


def states(manager: LockManager, count: int) -> list[str]:
    infos = [manager.inspect_request(f"s{number}") for number in range(count)]
    return [info.state if info else "gone" for info in infos]


def test_a_release_grants_all_shared_waiters_in_batches_and_in_order(small: LockManager) -> None:
    small.request(hold("x", "r"))
    for number in range(10):
        small.request(task(f"s{number}", shared=["r"]))
    small.request(task("last", "r"))
    ended = small.release("x")
    assert ended.granted == tuple(f"s{number}" for number in range(10))
    assert not small.client.exists(small.keys.unsettled)
    last = small.inspect_request("last")
    assert last is not None
    assert last.state == "waiting"


def test_waiters_that_are_blocked_elsewhere_do_not_hold_up_the_batches(small: LockManager) -> None:
    small.request(hold("x", "r"))
    small.request(hold("other", "busy"))
    for number in range(8):
        small.request(task(f"s{number}", shared=["r", "busy"] if number < 6 else ["r"]))
    small.release("x")
    assert states(small, 8) == ["waiting"] * 6 + ["granted"] * 2


def test_what_a_client_left_unsettled_is_done_by_the_next_claim(
    small: LockManager, redis_client: Redis
) -> None:
    class Dying(LockManager):
        """Ends after the first call of a release."""

        def _settled(self, ended: Ended) -> Ended:
            return ended

    dying = Dying(redis_client, PREFIX, batch=3)
    small.request(hold("x", "r"))
    for number in range(10):
        small.request(task(f"s{number}", shared=["r"]))
    assert len(dying.release("x").granted) == 3
    executor = Executor(small)
    taken: list[str] = []
    claimed = executor.claim()
    while isinstance(claimed, Claimed):
        taken.append(claimed.id)
        claimed = executor.advance(claimed)
    assert taken == [f"s{number}" for number in range(10)]


def test_many_resources_with_waiters_on_each_are_settled_too(small: LockManager) -> None:
    names = [f"r{number}" for number in range(10)]
    small.request(hold("x", *names))
    for number, name in enumerate(names):
        small.request(task(f"s{number}", shared=[name]))
    assert sorted(small.release("x").granted) == [f"s{number}" for number in range(10)]


def test_thousands_of_shared_waiters_are_granted_a_thousand_a_call(
    manager: LockManager, redis_client: Redis
) -> None:
    manager.request(hold("x", "r"))
    for number in range(3500):
        manager.request(task(f"s{number}", shared=["r"]))
    manager.settle()  # loads the scripts
    manager.release("nothing")
    redis_client.config_resetstat()
    ended = manager.release("x")
    assert len(ended.granted) == 3500
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == 4
