"""A manager on an empty server, and a look at all that it left there."""

from collections.abc import Callable

import pytest
from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from tests.locks.snapshot import Value, snapshot

pytest.register_assert_rewrite("tests.locks.scenario")

PREFIX = "test"


@pytest.fixture
def keys() -> Keys:
    return Keys(PREFIX)


@pytest.fixture
def manager(redis_client: Redis) -> LockManager:
    return LockManager(redis_client, PREFIX)


@pytest.fixture
def stored(redis_client: Redis) -> Callable[[], dict[str, Value]]:
    """Takes a picture of every key, with its value."""
    return lambda: snapshot(redis_client, PREFIX)


@pytest.fixture
def remaining(redis_client: Redis, keys: Keys) -> Callable[[], set[str]]:
    """The keys that are more than the counters and the bookkeeping which outlive all requests."""

    def remaining() -> set[str]:
        kept = {keys.seq, keys.owners, keys.lanes, keys.closed}
        return {
            key
            for key in snapshot(redis_client, PREFIX)
            if key not in kept and not key.startswith(keys.wake(""))
        }

    return remaining
