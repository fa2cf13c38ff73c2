"""A server that answers, but cannot serve: nothing is half done, and all goes on afterwards."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Grant
from tests.locks.conftest import PREFIX
from tests.locks.snapshot import snapshot
from tests.locks.support import WORKER, Executor, hold, task
from tests.support.servers import ValkeyServer


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def own(server: ValkeyServer) -> Iterator[LockManager]:
    """A manager on a server that the test may spoil."""
    with server.client() as client:
        client.flushall()
        yield LockManager(client, PREFIX, "the test's server")


@contextmanager
def read_only(client: Redis) -> Iterator[None]:
    client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        client.replicaof("NO", "ONE")


@contextmanager
def out_of_memory(client: Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


@contextmanager
def cannot_save(client: Redis) -> Iterator[None]:
    # A directory stands where the file should go.
    settings = client.config_get("dir") | client.config_get("dbfilename")
    obstacle = Path(str(settings["dir"])) / str(settings["dbfilename"])
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    (obstacle / "full").touch()
    client.config_set("save", "3600 1")
    client.bgsave()
    deadline = time.monotonic() + 10
    while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < deadline
    try:
        yield
    finally:
        (obstacle / "full").unlink()
        obstacle.rmdir()
        client.config_set("save", "")
        client.save()


@contextmanager
def busy(client: Redis) -> Iterator[None]:
    client.config_set("busy-reply-threshold", 10)

    def loop() -> None:
        # On a connection of its own: the pool gives none that is in use.
        with suppress(RedisError):
            client.eval("while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except RedisError:
            break
        assert time.monotonic() < deadline
    try:
        yield
    finally:
        client.script_kill()
        thread.join()


STATES = [read_only, out_of_memory, cannot_save, busy]


@pytest.mark.parametrize("state", STATES)
def test_a_server_that_cannot_serve_counts_as_unavailable_and_nothing_is_half_done(
    state: Callable[[Redis], AbstractContextManager[None]], own: LockManager
) -> None:
    own.request(hold("held", "a", shared=["s"]))
    own.request(task("waiting", "a"))
    own.request(task("ready", "b"))
    executor = Executor(own)
    claimed = executor.take()
    assert claimed.id == "ready"
    own.request(task("behind", "b"))
    before = snapshot(own.client, PREFIX)
    attempts: dict[str, Callable[[], object]] = {
        "request": lambda: own.request(task("new", "c")),
        "release": lambda: own.release("held"),
        "advance": lambda: executor.advance(claimed),
        "requeue": lambda: own.requeue("ready", owner=WORKER.owner, token=claimed.token),
        "release_owner": lambda: own.release_owner("web@3"),
    }
    for operation in attempts:
        with state(own.client):
            with pytest.raises(LockServiceUnavailable) as caught:
                attempts[operation]()
            assert f"{operation}: lock service at the test's server" in str(caught.value)
        assert snapshot(own.client, PREFIX) == before
    assert isinstance(own.request(task("new", "c")), Grant)
    assert own.release("held").granted == ("waiting",)
    assert executor.advance(claimed) is not None
