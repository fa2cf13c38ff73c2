"""A server whose memory is full may drop keys: whether locks are among them."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from redis.retry import Retry

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.eviction import harmful_policy
from django_task_locks.locks.keys import Keys
from tests.locks.conftest import PREFIX
from tests.locks.scenario import make_manager
from tests.locks.support import hold, task
from tests.support.servers import ValkeyServer
from tests.support.services import Services

HARMLESS = ["noeviction", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"]
HARMFUL = ["allkeys-lru", "allkeys-lfu", "allkeys-random"]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer(maxmemory_samples=10) as server:
        yield server


@pytest.fixture
def control(server: ValkeyServer) -> Iterator[Redis]:
    with server.client() as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", 0)


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def manager(server: ValkeyServer, request: pytest.FixtureRequest) -> Iterator[LockManager]:
    with server.client(protocol=request.param) as client:
        yield LockManager(client, PREFIX)


@pytest.mark.parametrize("policy", HARMFUL)
def test_one_that_drops_any_key_is_named(policy: str, manager: LockManager, control: Redis) -> None:
    control.config_set("maxmemory-policy", policy)
    assert harmful_policy(manager) == policy


@pytest.mark.parametrize("policy", HARMLESS)
def test_one_that_drops_no_lock_is_not(policy: str, manager: LockManager, control: Redis) -> None:
    control.config_set("maxmemory-policy", policy)
    assert harmful_policy(manager) == ""


@pytest.mark.parametrize("policy", HARMLESS)
def test_no_lock_is_dropped_though_the_memory_is_full(
    policy: str, manager: LockManager, control: Redis
) -> None:
    control.config_set("maxmemory-policy", policy)
    for number in range(50):
        manager.request(hold(f"h{number}", f"r{number}", shared=["s"]))
        manager.request(task(f"t{number}", f"r{number}"))
    control.config_set("maxmemory", int(control.info("memory")["used_memory"]) + 200_000)
    with suppress(OutOfMemoryError):
        for number in range(10_000):
            control.set(f"filler-{number}", "x" * 1_000)
        pytest.fail("the memory is not full")
    assert [manager.inspect_resource(f"r{n}").holders[0].id for n in range(50)] == [
        f"h{number}" for number in range(50)
    ]
    assert manager.inspect_resource("s").holder_count == 50


def test_of_a_cluster_that_of_the_node_with_the_locks_counts(services: Services) -> None:
    cluster = services.cluster
    with_locks = cluster.master_of(Keys(PREFIX).anchor)
    with cluster.client() as client:
        manager = make_manager(client, PREFIX)
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "maxmemory-policy", HARMFUL[0])
            expected = HARMFUL[0] if node is with_locks else ""
            assert harmful_policy(manager) == expected
            node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_user_who_may_not_ask_is_told_nothing(server: ValkeyServer, control: Redis) -> None:
    control.config_set("maxmemory-policy", HARMFUL[0])
    control.acl_setuser("poor", enabled=True, nopass=True, categories=["+@read"])
    try:
        with server.client(username="poor", password="any") as client:
            assert harmful_policy(LockManager(client, PREFIX)) == ""
    finally:
        control.acl_deluser("poor")


def test_a_server_that_is_away_is_told() -> None:
    client = Redis(port=1, retry=Retry(NoBackoff(), 0))
    with client, pytest.raises(LockServiceUnavailable):
        harmful_policy(LockManager(client, PREFIX))
