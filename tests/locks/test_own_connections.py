"""Connections of the manager's own: one call at a time each, and never the answer to another."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import sleep

import pytest
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from django_task_locks.exceptions import ForeignValue, LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Ended, Grant, Waiting
from django_task_locks.locks.transport import OwnConnections
from tests.locks.conftest import PREFIX
from tests.locks.relay import Relay
from tests.locks.support import WEB, hold, task
from tests.support.servers import ValkeyServer

NAME = "own-connections"


def own(url: str, retries: int = 0, **options: object) -> LockManager:
    pool = ConnectionPool.from_url(
        url, client_name=NAME, retry=Retry(NoBackoff(), retries), **options
    )
    return LockManager(OwnConnections(pool), PREFIX, "the-endpoint")


@pytest.fixture
def owning(valkey: ValkeyServer, redis_client: Redis) -> Iterator[LockManager]:
    manager = own(valkey.url)
    yield manager
    manager.transport.drop_connections()


def connections(client: Redis) -> list[str]:
    return [found["id"] for found in client.client_list() if found["name"] == NAME]


def test_one_after_the_other_share_one(owning: LockManager, redis_client: Redis) -> None:
    for number in range(10):
        owning.request(task(f"t{number}", "r"))
    owning.known(["t1", "t2"])
    owning.inspect_resource("r")
    assert len(connections(redis_client)) == 1


def test_an_error_is_an_answer_after_which_it_goes_on(
    owning: LockManager, redis_client: Redis, keys: Keys
) -> None:
    owning.request(task("a", "r"))
    (before,) = connections(redis_client)
    redis_client.set(keys.owners, "not ours")
    with pytest.raises(ForeignValue):
        owning.owners()
    with pytest.raises(ForeignValue):
        owning.request(hold("b", "s"))
    assert owning.known(["a"]) == {"a"}
    assert connections(redis_client) == [before]


def test_after_an_error_in_a_pipeline_the_answers_are_those_of_the_questions(
    owning: LockManager, redis_client: Redis, keys: Keys
) -> None:
    redis_client.set(keys.control(WEB.owner), "not ours")
    with pytest.raises(ForeignValue):
        owning.send(WEB.owner, "cancel a")
    assert owning.request(task("a", "r")) == Grant("a", None)
    assert owning.request(task("b", "r")) == Waiting("b")


def test_an_interrupted_call_takes_its_connection_with_it(
    owning: LockManager, redis_client: Redis
) -> None:
    """Or the next call would read the answer to this one."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    owning.request(task("a", "r"))
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            owning.wait_for_grant("nothing", 3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert owning.release("a") == Ended("done")
    assert len(connections(redis_client)) == 1


class _Interrupted:
    """A socket, and a connection, on which every step is interrupted."""

    def sendall(self, data: bytes) -> None:
        raise KeyboardInterrupt

    def disconnect(self) -> None:
        raise KeyboardInterrupt


def test_a_second_interrupt_does_not_leave_the_answer_to_another(
    owning: LockManager, redis_client: Redis
) -> None:
    """One that comes while the connection of the first is closed."""
    hiredis = pytest.importorskip("hiredis", reason="a socket is used with hiredis alone")
    owning.request(task("a", "r"))
    (channel,) = owning.transport._idle  # type: ignore[attr-defined]
    connection = channel.connection
    channel._socket.sendall(hiredis.pack_command(("PING",)))  # an answer that nobody has read
    channel.connection = channel._socket = _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        owning.known(["a"])
    assert owning.release("a") == Ended("done")
    assert owning.known(["a"]) == set()
    channel.connection = connection
    channel.close()


def test_a_burst_leaves_few_open(owning: LockManager, redis_client: Redis) -> None:
    barrier = Barrier(60)

    def wait(number: int) -> None:
        barrier.wait(30)
        owning.wait_for_grant(f"nothing{number}", 0.2)

    with ThreadPoolExecutor(60) as threads:
        list(threads.map(wait, range(60)))
    assert len(connections(redis_client)) <= 32


def test_an_encoding_that_would_garble_names_is_refused(valkey: ValkeyServer) -> None:
    with pytest.raises(ValueError, match="latin-1"):
        own(valkey.url, encoding="latin-1")
    with pytest.raises(ValueError, match="latin-1"):
        LockManager(valkey.client(encoding="latin-1"), PREFIX)


def test_a_client_that_drops_its_connections_leaves_those_in_use(valkey: ValkeyServer) -> None:
    with valkey.client() as client, ThreadPoolExecutor(1) as threads:
        manager = LockManager(client, PREFIX)
        waiting = threads.submit(manager.wait_for_grant, "nothing", 0.5)
        sleep(0.1)
        manager.transport.drop_connections()
        assert waiting.result(5) is None


def test_threads_have_one_each_and_leave_them_to_others(
    owning: LockManager, redis_client: Redis
) -> None:
    def pair(number: int) -> bool:
        granted = owning.request(hold(f"h{number}", f"r{number % 50}"))
        sleep(0.001)
        if isinstance(granted, Waiting):
            owning.wait_for_grant(f"h{number}", 3)
            granted = owning.request(hold(f"h{number}", f"r{number % 50}"))
        assert isinstance(granted, Grant)
        return owning.release(f"h{number}", owner=WEB.owner, token=granted.token).is_done

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(pair, range(400)))
    assert 1 <= len(connections(redis_client)) <= 8


def test_a_child_opens_its_own(owning: LockManager, redis_client: Redis) -> None:
    owning.request(task("a", "r"))
    before = connections(redis_client)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = owning.inspect_request("a")
            os.write(writer, b"1" if found and len(connections(redis_client)) == 2 else b"0")
            owning.transport.drop_connections()
        finally:
            os._exit(0)
    assert os.read(reader, 1) == b"1"
    os.waitpid(child, 0)
    assert connections(redis_client) == before
    assert owning.release("a") == Ended("done")


def test_dropped_ones_are_closed(owning: LockManager, redis_client: Redis) -> None:
    owning.request(task("a", "r"))
    owning.transport.drop_connections()
    while connections(redis_client):
        sleep(0.001)
    assert owning.release("a") == Ended("done")


class TestRetries:
    @pytest.fixture
    def relay(self, valkey: ValkeyServer, redis_client: Redis) -> Iterator[Relay]:
        with Relay(valkey.socket_path, valkey.directory) as relay:
            yield relay
        relay.path.unlink()

    def test_so_many_broken_connections_heal_unnoticed(self, relay: Relay) -> None:
        manager = own(f"unix://{relay.path}", retries=2)
        manager.request(task("warm"))
        relay.lose_reply(2)
        assert manager.request(task("a", "r")) == Grant("a", None)
        assert relay.lost == 2

    def test_one_more_is_told(self, relay: Relay) -> None:
        manager = own(f"unix://{relay.path}", retries=2)
        relay.lose_reply(3)
        with pytest.raises(LockServiceUnavailable, match=r"request: .*the-endpoint"):
            manager.request(task("a", "r"))
        assert relay.lost == 3
        assert manager.request(task("a", "r")) == Grant("a", None)

    @pytest.mark.parametrize("retries", [0, 1])
    def test_a_server_that_was_restarted_is_found_again(self, retries: int) -> None:
        """That it has closed a connection in the meantime counts as no failure."""
        with ValkeyServer() as server:
            manager = own(server.url, retries=retries)
            manager.request(task("a", "r"))
            server.kill()
            server.start()
            assert manager.request(task("a", "r")) == Grant("a", None)

    def test_a_right_that_is_missing_is_not_asked_for_again(
        self, valkey: ValkeyServer, redis_client: Redis
    ) -> None:
        redis_client.acl_setuser("reader", enabled=True, nopass=True, categories=["+@read"])
        try:
            manager = own(valkey.url, retries=5, username="reader", password="any")
            with pytest.raises(NoPermissionError):
                manager.request(task("a", "r"))
        finally:
            redis_client.acl_deluser("reader")
