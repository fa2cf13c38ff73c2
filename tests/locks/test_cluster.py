"""A cluster of three masters: one prefix is on one of them, wherever its slot goes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from redis.cluster import RedisCluster

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimed, Ended, Grant, Waiting
from tests.locks.conftest import PREFIX
from tests.locks.scenario import asynchronous, make_manager, play
from tests.locks.scene import OPERATIONS, is_intact, prepare
from tests.locks.snapshot import Value, snapshot
from tests.locks.support import Executor, hold, task
from tests.support.cluster import ClusterServer, ValkeyCluster
from tests.support.processes import wait_until
from tests.support.services import InCluster, Services

ANCHOR = Keys(PREFIX).anchor


@pytest.fixture
def cluster(services: Services) -> ValkeyCluster:
    services.cluster.flushall()
    return services.cluster


@pytest.fixture
def client(cluster: ValkeyCluster) -> Iterator[RedisCluster]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def locks(client: RedisCluster) -> LockManager:
    return make_manager(client, PREFIX)


@pytest.fixture(params=["sync", "async"])
def either(
    request: pytest.FixtureRequest, cluster: ValkeyCluster, locks: LockManager
) -> Iterator[LockManager]:
    """A manager of each kind, to be used as if it were synchronous."""
    if request.param == "sync":
        yield locks
        return
    with asynchronous(InCluster(cluster), PREFIX) as locks:
        yield locks


@pytest.fixture
def source(cluster: ValkeyCluster) -> ClusterServer:
    """The node that has the prefix."""
    return cluster.master_of(ANCHOR)


@pytest.fixture
def target(cluster: ValkeyCluster, source: ClusterServer) -> ClusterServer:
    """Another one."""
    return next(node for node in cluster.nodes if node is not source)


def held_by(node: ClusterServer, prefix: str = PREFIX) -> dict[str, Value]:
    with node.client() as client:
        return snapshot(client, prefix)


def test_all_keys_of_a_prefix_are_on_one_node(
    cluster: ValkeyCluster, locks: LockManager, source: ClusterServer
) -> None:
    prepare(locks)

    assert is_intact(held_by(source))
    assert [node for node in cluster.nodes if node.ask("DBSIZE")] == [source]


def test_prefixes_on_different_nodes_work_side_by_side(
    cluster: ValkeyCluster, client: RedisCluster
) -> None:
    by_node = {cluster.master_of(Keys(prefix).anchor): prefix for prefix in map(str, range(50))}
    assert set(by_node) == set(cluster.nodes)
    for prefix in by_node.values():
        assert make_manager(client, prefix).request(task("a", "r")) == Grant("a", None)

    for node, prefix in by_node.items():
        assert Keys(prefix).request("a") in held_by(node, prefix)
        assert make_manager(client, prefix).release("a") == Ended("done")
        play(make_manager(client, prefix), client)


class TestSlotThatHasMoved:
    def test_whoever_used_the_old_node_finds_the_new_one(
        self,
        cluster: ValkeyCluster,
        client: RedisCluster,
        either: LockManager,
        source: ClusterServer,
        target: ClusterServer,
    ) -> None:
        either.request(task("a", "r"))
        either.request(task("b", "r"))
        executor = Executor(either)
        first = executor.take()
        before = held_by(source)

        cluster.move(ANCHOR, target)

        assert held_by(source) == {}
        assert held_by(target) == before
        assert either.known(["a", "b", "c"]) == {"a", "b"}
        assert isinstance(second := executor.advance(first), Claimed)
        assert second.id == "b"
        assert either.release("b") == Ended("done")
        play(either, client)
        assert held_by(source) == {}

    def test_scripts_are_loaded_into_the_new_node(
        self, cluster: ValkeyCluster, either: LockManager, target: ClusterServer
    ) -> None:
        either.request(task("a", "r"))
        target.ask("SCRIPT", "FLUSH")

        cluster.move(ANCHOR, target)

        assert either.request(task("b", "r")) == Waiting("b")

    @pytest.mark.parametrize(
        "wait",
        [
            lambda locks: locks.wait_for_grant("b", 4),
            lambda locks: locks.wait_for_ready(["default"], 4),
        ],
        ids=["for a grant", "for something ready"],
    )
    def test_whoever_waits_goes_on_waiting_there(
        self,
        cluster: ValkeyCluster,
        either: LockManager,
        source: ClusterServer,
        target: ClusterServer,
        wait: Callable[[LockManager], bool],
    ) -> None:
        either.request(hold("a", "r"))
        either.request(hold("b", "r"))
        with (
            ThreadPoolExecutor(1) as thread,
            cluster.client() as other_client,
        ):
            other = make_manager(other_client, PREFIX)
            waiting = thread.submit(wait, either)
            wait_until(lambda: is_somebody_blocked(source), what="the wait")

            cluster.move(ANCHOR, target)
            wait_until(lambda: is_somebody_blocked(target), what="the wait on the other node")
            other.release("a")
            other.request(task("c"))

            assert waiting.result(10)


def is_somebody_blocked(node: ClusterServer) -> bool:
    with node.client() as client:
        return bool(client.info("clients")["blocked_clients"])


def nothing(keys: list[str]) -> list[str]:
    return []


def the_anchor(keys: list[str]) -> list[str]:
    return [ANCHOR]


def all_but_the_anchor(keys: list[str]) -> list[str]:
    return [key for key in keys if key != ANCHOR]


def everything(keys: list[str]) -> list[str]:
    return keys


@contextmanager
def moving(
    cluster: ValkeyCluster, target: ClusterServer, moved: Callable[[list[str]], list[str]]
) -> Iterator[None]:
    """The slot of the prefix is on its way, with some of its keys; inside."""
    source = cluster.master_of(ANCHOR)
    keys = cluster.keys_of_slot(source, cluster.slot_of(ANCHOR))
    cluster.begin_to_move(ANCHOR, target)
    try:
        cluster.move_keys(source, target, *moved(keys))
        yield
    finally:
        rest = cluster.keys_of_slot(source, cluster.slot_of(ANCHOR))
        cluster.move_keys(source, target, *rest)
        cluster.end_move(ANCHOR, target)


class TestSlotThatIsMoving:
    """Key by key, as `valkey-cli --cluster reshard` does it: one node no longer has all keys, the
    other not yet, and each of them would take what is elsewhere for free. So both refuse."""

    @pytest.mark.parametrize("moved", [nothing, the_anchor, all_but_the_anchor, everything])
    def test_every_operation_is_refused_as_a_whole(
        self,
        cluster: ValkeyCluster,
        client: RedisCluster,
        locks: LockManager,
        source: ClusterServer,
        target: ClusterServer,
        moved: Callable[[list[str]], list[str]],
    ) -> None:
        prepare(locks)
        before = held_by(source)

        with moving(cluster, target, moved):
            client.RedisClusterRequestTTL = 1  # it would ask 16 times
            answers = {name: answer(locks, operation) for name, operation in OPERATIONS.items()}
            del client.RedisClusterRequestTTL

        assert set(answers.values()) == {"refused"}, answers
        assert held_by(target) == before
        assert locks.release("held").granted == ("queued",)

    def test_an_asynchronous_one_too(self, cluster: ValkeyCluster, target: ClusterServer) -> None:
        with asynchronous(InCluster(cluster), PREFIX) as locks:
            locks.request(hold("a", "r"))

            with moving(cluster, target, the_anchor):
                assert answer(locks, lambda locks: locks.request(hold("b", "r"))) == "refused"
                assert answer(locks, lambda locks: locks.release("a")) == "refused"

            assert locks.request(hold("b", "r")) == Waiting("b")


def answer(locks: LockManager, operation: Callable[[LockManager], object]) -> str:
    try:
        return f"answered: {operation(locks)}"
    except LockServiceUnavailable:
        return "refused"
    except Exception as error:
        return repr(error)


class TestNodeThatIsAway:
    @pytest.fixture
    def cluster(self) -> Iterator[ValkeyCluster]:
        with ValkeyCluster(appendonly="yes", appendfsync="always") as cluster:
            yield cluster

    def test_it_is_told_and_heals(
        self, cluster: ValkeyCluster, either: LockManager, source: ClusterServer
    ) -> None:
        either.request(task("a", "r"))
        source.kill()

        with pytest.raises(LockServiceUnavailable, match=r"request: .*the-endpoint"):
            either.request(task("b", "r"))
        with pytest.raises(LockServiceUnavailable, match=r"known: .*the-endpoint"):
            either.known(["a", "b"])

        source.start()
        wait_until(lambda: is_answered(either), what="an answer")
        assert either.request(task("b", "r")) == Waiting("b")


def is_answered(locks: LockManager) -> bool:
    try:
        return locks.known(["a"]) == {"a"}
    except LockServiceUnavailable:
        return False
