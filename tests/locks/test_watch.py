"""watch and wait_for_end: the end of a request wakes all who wait for it, and leaves nothing."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimed
from tests.locks.snapshot import Value
from tests.locks.support import WEB, WORKER, Executor, hold, task
from tests.support.processes import wait_until

Picture = Callable[[], dict[str, Value]]


def blocked_clients(client: Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def release(manager: LockManager) -> None:
    manager.release("a")


def advance(manager: LockManager) -> None:
    executor = Executor(manager)
    executor.advance(executor.take())


def release_after_a_claim(manager: LockManager) -> None:
    Executor(manager).take()
    manager.release("a")


def release_after_a_requeue(manager: LockManager) -> None:
    claimed = Executor(manager).take()
    manager.requeue("a", owner=WORKER.owner, token=claimed.token)
    manager.release("a")


def release_all_of_the_owner(manager: LockManager) -> None:
    Executor(manager).take()
    manager.release_owner(WORKER.owner)


ENDS = [
    release,
    advance,
    release_after_a_claim,
    release_after_a_requeue,
    release_all_of_the_owner,
]


@pytest.mark.parametrize("end", ENDS)
def test_whichever_way_it_ends_there_is_a_sign(
    manager: LockManager, end: Callable[[LockManager], None]
) -> None:
    manager.request(task("a", "r", shared=["s"]))
    assert manager.watch("a")
    end(manager)
    assert manager.wait_for_end("a", 0.001)


def test_the_end_of_a_hold_and_of_one_that_waits_leaves_a_sign_too(manager: LockManager) -> None:
    for id in ("held", "waiting"):
        manager.request(hold(id, "r"))
        assert manager.watch(id)
    manager.release("waiting")
    manager.release("held", owner=WEB.owner)
    assert manager.wait_for_end("held", 0.001)
    assert manager.wait_for_end("waiting", 0.001)


def test_any_number_of_waiters_is_woken(manager: LockManager, redis_client: Redis) -> None:
    manager.request(task("a", "r"))
    manager.watch("a")
    with ThreadPoolExecutor(20) as threads:
        waits = [threads.submit(manager.wait_for_end, "a", 4) for _ in range(20)]
        wait_until(lambda: blocked_clients(redis_client) == 20)
        began = time.monotonic()
        manager.release("a")
        assert all(wait.result() for wait in waits)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("end", ENDS)
def test_M3_a_request_that_nobody_watches_leaves_nothing(
    manager: LockManager, keys: Keys, stored: Picture, end: Callable[[LockManager], None]
) -> None:
    manager.request(task("a", "r"))
    end(manager)
    assert keys.ended("a") not in stored()
    assert not manager.wait_for_end("a", 0.001)


@pytest.mark.parametrize("end", ENDS)
def test_M3_the_sign_goes_by_itself_and_nothing_else_stays(
    manager: LockManager,
    redis_client: Redis,
    keys: Keys,
    remaining: Callable[[], set[str]],
    end: Callable[[LockManager], None],
) -> None:
    manager.request(task("a", "r"))
    manager.watch("a")
    end(manager)
    assert 0 < redis_client.ttl(keys.ended("a")) <= 10
    redis_client.delete(keys.ended("a"))
    assert not {key for key in remaining() if not key.startswith(keys.slot(""))}


def test_what_is_unknown_cannot_be_watched(manager: LockManager, stored: Picture) -> None:
    before = stored()
    assert not manager.watch("a")
    assert stored() == before


def test_the_same_id_sent_anew_does_not_bring_the_old_sign(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    manager.watch("a")
    manager.release("a")
    manager.request(task("a", "r"))
    assert manager.watch("a")
    assert manager.watch("a")
    assert not manager.wait_for_end("a", 0.001)
    manager.release("a")
    assert manager.wait_for_end("a", 0.001)


def test_a_watched_request_is_claimed_and_inspected_as_any_other(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    before = manager.inspect_request("a")
    manager.watch("a")
    assert manager.inspect_request("a") == before
    assert isinstance(Executor(manager).take(), Claimed)


def test_an_end_that_nobody_watches_costs_no_command_more(
    manager: LockManager, redis_client: Redis
) -> None:
    def commands() -> int:
        manager.request(task("a", "r"))
        redis_client.config_resetstat()
        manager.release("a")
        found = redis_client.info("commandstats")
        return sum(number["calls"] for name, number in found.items() if "config" not in name)

    commands()
    without = commands()
    manager.request(task("a", "r"))
    manager.watch("a")
    redis_client.config_resetstat()
    manager.release("a")
    found = redis_client.info("commandstats")
    assert "cmdstat_rpush" in found
    total = sum(number["calls"] for name, number in found.items() if "config" not in name)
    assert total == without + 2
