"""A server that is away or cannot serve: LockServiceUnavailable, and nothing half done."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Ended, Grant
from tests.locks.conftest import PREFIX
from tests.locks.scene import OPERATIONS, is_intact, prepare
from tests.locks.snapshot import remove_all, snapshot
from tests.locks.support import WORKER, hold, task
from tests.support.redis_refusals import (
    Busy,
    CannotSave,
    NoReplicas,
    OutOfMemory,
    ReadOnly,
    Refusal,
)
from tests.support.servers import ValkeyServer

NEVER = Retry(NoBackoff(), 0)


@contextmanager
def unavailable(operation: str) -> Iterator[None]:
    """The error names the operation and the server."""
    with pytest.raises(LockServiceUnavailable) as raised:
        yield
    assert str(raised.value).startswith(f"{operation}: ")
    assert "the-endpoint" in str(raised.value)


class TestUnreachable:
    def test_a_server_that_is_not_there(self, tmp_path: Path) -> None:
        with Redis(unix_socket_path=str(tmp_path / "none"), retry=NEVER) as client:
            manager = LockManager(client, PREFIX, "the-endpoint")
            with unavailable("request"):
                manager.request(task("a", "r"))
            with unavailable("advance"):
                manager.advance(WORKER, "", [], id="a", token=1)
            with unavailable("wait_for_ready"):
                manager.wait_for_ready([], 1)
            with unavailable("known"):
                manager.known(["a", "b"])
            with unavailable("send"):
                manager.send(WORKER.owner, "cancel a")
            with unavailable("owners"):
                manager.owners()

    def test_a_server_that_does_not_answer(self) -> None:
        with ValkeyServer() as server, server.client(socket_timeout=0.05, retry=NEVER) as client:
            manager = LockManager(client, PREFIX, "the-endpoint")
            manager.request(task("a", "r"))
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with unavailable("request"):
                    manager.request(task("b", "r"))
            finally:
                os.kill(server.pid, signal.SIGCONT)

    def test_a_server_that_dies_and_comes_back(self) -> None:
        with ValkeyServer() as server, server.client(retry=NEVER) as client:
            manager = LockManager(client, PREFIX, "the-endpoint")
            manager.request(task("a", "r"))
            server.kill()
            with unavailable("request"):
                manager.request(task("b", "r"))
            server.start()
            assert manager.request(task("b", "r")) == Grant("b", None)

    def test_a_wrong_password_is_not_repeated_in_the_message(self) -> None:
        with ValkeyServer(requirepass="right") as server:
            client = server.client(password="secret-and-wrong", retry=NEVER)
            with client, pytest.raises(LockServiceUnavailable) as raised:
                LockManager(client, PREFIX).request(task("a", "r"))
        assert "secret" not in str(raised.value)

    def test_a_permission_that_is_missing_is_no_outage(
        self, valkey: ValkeyServer, redis_client: Redis
    ) -> None:
        """Nothing to be tried again: somebody must do something about it."""
        redis_client.acl_setuser("reader", enabled=True, nopass=True, categories=["+@read"])
        client = valkey.client(username="reader", password="any", retry=NEVER)
        try:
            with client, pytest.raises(NoPermissionError):
                LockManager(client, PREFIX).request(task("a", "r"))
        finally:
            redis_client.acl_deluser("reader")


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """One that may be spoilt for a while."""
    with ValkeyServer(enable_debug_command="yes", save="3600 1", busy_reply_threshold=10) as server:
        yield server


@pytest.fixture
def control(server: ValkeyServer) -> Iterator[Redis]:
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def spoilt(server: ValkeyServer, control: Redis) -> Iterator[LockManager]:
    with server.client(retry=NEVER) as client:
        yield LockManager(client, PREFIX, "the-endpoint")


@pytest.mark.parametrize("kind", [ReadOnly, OutOfMemory, NoReplicas, CannotSave])
class TestServerThatRefusesWrites:
    @pytest.fixture
    def refusal(self, server: ValkeyServer, control: Redis, kind: type[Refusal]) -> Refusal:
        return kind(server, control)

    def test_an_operation_does_all_or_nothing(
        self, spoilt: LockManager, control: Redis, refusal: Refusal
    ) -> None:
        refused = []
        for name, operation in OPERATIONS.items():
            remove_all(control, PREFIX)
            prepare(spoilt)
            before = snapshot(control, PREFIX)
            refusal.begin()
            try:
                operation(spoilt)
            except LockServiceUnavailable:
                refused.append(name)
                assert snapshot(control, PREFIX) == before, name
            else:
                assert is_intact(snapshot(control, PREFIX)), name
            finally:
                refusal.end()
            operation(spoilt)
        assert {"request of something free", "hold of something free", "claim"} <= set(refused)
        # What frees needs no memory: it is how a full server comes to have some again.
        assert ("release of a task" in refused) is not refusal.is_for_lack_of_memory

    def test_looking_goes_on(self, spoilt: LockManager, refusal: Refusal) -> None:
        spoilt.request(task("a", "r"))
        refusal.begin()
        try:
            assert spoilt.inspect_request("a") is not None
            assert spoilt.inspect_resource("r").holder_count == 1
            assert spoilt.known(["a"]) == {"a"}
        finally:
            refusal.end()

    def test_afterwards_what_was_refused_can_be_done(
        self, spoilt: LockManager, refusal: Refusal
    ) -> None:
        spoilt.request(task("a", "r"))
        refusal.begin()
        try:
            if not refusal.is_for_lack_of_memory:
                with unavailable("release"):
                    spoilt.release("a")
            with unavailable("request"):
                spoilt.request(task("b", "s"))
        finally:
            refusal.end()
        assert spoilt.release("a") == Ended("done")
        assert spoilt.request(task("b", "s")) == Grant("b", None)
        spoilt.release("b")

    @pytest.mark.parametrize(
        ("first", "second", "state"),
        [
            (task("a", "r", shared=["s"]), task("b", "r"), "granted"),
            (hold("a", "r"), hold("b", "r"), "held"),
        ],
    )
    def test_what_was_held_is_handed_over_or_kept(
        self,
        spoilt: LockManager,
        refusal: Refusal,
        first: LockRequest,
        second: LockRequest,
        state: str,
    ) -> None:
        spoilt.request(first)
        spoilt.request(second)
        refusal.begin()
        try:
            if refusal.is_for_lack_of_memory:
                assert spoilt.release("a") == Ended("done", ("b",))
            else:
                with unavailable("release"):
                    spoilt.release("a")
        finally:
            refusal.end()
        spoilt.release("a")
        found = spoilt.inspect_request("b")
        assert found is not None
        assert found.state == state
        spoilt.release("b")


class TestServerThatIsBusy:
    def test_a_script_that_runs_for_long(
        self, server: ValkeyServer, control: Redis, spoilt: LockManager
    ) -> None:
        spoilt.request(task("warm"))
        busy = Busy(server, control)
        busy.begin()
        try:
            with unavailable("request"):
                spoilt.request(task("a", "r"))
            with unavailable("known"):
                spoilt.known(["a"])
        finally:
            busy.end()
        assert spoilt.request(task("a", "r")) == Grant("a", None)

    def test_a_server_that_loads_its_data(
        self, server: ValkeyServer, control: Redis, spoilt: LockManager
    ) -> None:
        for number in range(20):
            control.set(f"filler{number}", os.urandom(4096))
        spoilt.request(task("warm"))
        control.config_set("loading-process-events-interval-bytes", 1024)
        control.config_set("key-load-delay", 50_000)

        def reload() -> None:
            with server.client() as client:
                client.execute_command("DEBUG", "RELOAD")

        thread = Thread(target=reload)
        thread.start()
        try:
            while not control.info("persistence")["loading"]:
                pass
            with unavailable("request"):
                spoilt.request(task("a", "r"))
        finally:
            control.config_set("key-load-delay", 0)
            thread.join()
        assert spoilt.request(task("a", "r")) == Grant("a", None)

    def test_a_replica_that_has_lost_its_primary(self, control: Redis, spoilt: LockManager) -> None:
        control.config_set("replica-serve-stale-data", "no")
        control.replicaof("127.0.0.1", 1)
        try:
            with unavailable("inspect"):
                spoilt.inspect_request("a")
        finally:
            control.replicaof("NO", "ONE")
            control.config_set("replica-serve-stale-data", "yes")
