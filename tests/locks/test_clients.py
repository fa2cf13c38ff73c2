"""Ways to connect, managers side by side, and replies that get lost."""

import re
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Blocked, Claimed, Ended, Grant, Waiting
from django_task_locks.locks.transport import OwnConnections
from tests.locks.conftest import PREFIX
from tests.locks.relay import Relay
from tests.locks.scene import KEYS, OPERATIONS, is_intact, prepare
from tests.locks.snapshot import Value, remove_all, snapshot
from tests.locks.support import WEB, WORKER, Executor, hold, task
from tests.support.servers import ValkeyServer

ONCE = Retry(NoBackoff(), 1)


def without_times(found: dict[str, Value]) -> dict[str, object]:
    """And without the counters, which each attempt may raise."""
    kept: dict[str, object] = {}
    for key, value in found.items():
        if key in (KEYS.closed, KEYS.suspects):
            kept[key] = set(value)
        elif key.startswith(KEYS.request("")):
            kept[key] = re.sub(r'"since":\d+', "", str(value))
        elif key != KEYS.seq:
            kept[key] = value
    return kept


class TestConnections:
    @pytest.mark.parametrize("protocol", [2, 3])
    @pytest.mark.parametrize("decode_responses", [False, True])
    def test_every_operation_works_with_either_form_of_replies(
        self, valkey: ValkeyServer, redis_client: Redis, decode_responses: bool, protocol: int
    ) -> None:
        with valkey.client(decode_responses=decode_responses, protocol=protocol) as client:
            manager = LockManager(client, PREFIX)
            assert manager.request(task("a", "r", shared=["s"])) == Grant("a", None)
            assert manager.request(task("b", "r")) == Waiting("b")
            assert isinstance(manager.try_request(hold("c", "r")), Blocked)
            assert isinstance(manager.try_request(hold("d", "t")), Grant)
            assert manager.wait_for_ready(["default"], 60)
            executor = Executor(manager)
            first = executor.take()
            assert first.id == "a"
            assert manager.requeue("a", owner=WORKER.owner, token=first.token).granted == ("a",)
            first = executor.take()
            assert executor.advance(first) == (second := Claimed("b", first.token + 1))
            found = manager.inspect_request("b")
            assert found is not None
            assert (found.exclusive, found.owner) == (("r",), WORKER.owner)
            assert manager.inspect_resource("r").holders[0].id == "b"
            manager.beat(WEB.owner, 12.5)
            assert manager.owners() == {WEB.owner: 12.5, WORKER.owner: 30}
            assert manager.registry(WORKER.owner) == {"b"}
            assert manager.known(["a", "b", "d"]) == {"b", "d"}
            assert manager.suspect(WORKER.owner)[1] == 30
            assert manager.retire(WORKER) == ("b",)
            assert manager.lead("job", WEB.owner, 60)
            assert not manager.lead("job", WEB.owner, 60)
            manager.send(WEB.owner, "cancel d")
            assert manager.close_owner(WEB.owner) == ("d",)
            assert not manager.forget_entry("d", WEB.owner)
            assert manager.forget_owner(WEB.owner) == 1
            assert manager.release_owner(WEB.owner) == 1
            assert manager.forget_owner(WEB.owner) == 0
            assert manager.release("b", owner=WORKER.owner, token=second.token) == Ended("done")

    def test_two_prefixes_on_one_server_never_meet(self, redis_client: Redis) -> None:
        """Same ids, resources, owners and slots: as in two copies of one installation."""
        one, two = LockManager(redis_client, "one"), LockManager(redis_client, "two")
        for manager in (one, two):
            assert manager.request(task("a", "r")) == Grant("a", None)
            assert Executor(manager).take().id == "a"
            assert isinstance(manager.request(hold("h", "s")), Grant)
        before = snapshot(redis_client, "two")
        one.close_owner(WORKER.owner)
        one.release_owner(WORKER.owner)
        one.release_owner(WEB.owner)
        one.forget_owner(WORKER.owner)
        assert snapshot(redis_client, "two") == before
        assert Executor(two).take().id == "a"

    @pytest.mark.parametrize("other", ["test2", "tes", "test:lock", "TEST"])
    def test_prefixes_that_look_alike_never_meet(
        self, manager: LockManager, redis_client: Redis, other: str
    ) -> None:
        manager.request(task("a", "r"))
        assert LockManager(redis_client, other).request(task("a", "r")) == Grant("a", None)
        assert LockManager(redis_client, other).release("a") == Ended("done")
        assert manager.inspect_resource("r").mode == "exclusive"

    @pytest.mark.parametrize("prefix", ["", "a b", "a{b}", "a*", "a'b", "a\nb", "a" * 65, "ä"])
    def test_a_prefix_that_could_break_out_is_refused(
        self, redis_client: Redis, prefix: str
    ) -> None:
        with pytest.raises(ValueError, match="prefix"):
            LockManager(redis_client, prefix)

    def test_script_flush_heals(self, manager: LockManager, redis_client: Redis) -> None:
        for operation in OPERATIONS.values():
            remove_all(redis_client, PREFIX)
            prepare(manager)
            redis_client.script_flush()
            operation(manager)
            assert is_intact(snapshot(redis_client, PREFIX))

    def test_script_flush_heals_when_many_are_requested(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        redis_client.script_flush()
        found = manager.request_many([task("a", "r"), task("b", "r"), task("c", "s")])
        assert found == [Grant("a", None), Waiting("b"), Grant("c", None)]


class TestLostReply:
    """L20: the server has done it, the connection breaks, and the client sends it once more."""

    @pytest.fixture
    def relay(self, valkey: ValkeyServer, redis_client: Redis) -> Iterator[Relay]:
        with Relay(valkey.socket_path, valkey.directory) as relay:
            yield relay
        relay.path.unlink()

    @pytest.fixture(params=["a client's connections", "own connections"])
    def losing(self, relay: Relay, request: pytest.FixtureRequest) -> Iterator[LockManager]:
        with Redis(unix_socket_path=str(relay.path), retry=ONCE) as client:
            pool = client.connection_pool
            own = OwnConnections(pool) if request.param == "own connections" else client
            yield LockManager(own, PREFIX)

    def test_L20_a_grant_is_not_reported_as_blocked_by_itself(
        self, relay: Relay, losing: LockManager
    ) -> None:
        losing.request(task("warm"))
        relay.lose_reply()
        assert losing.request(task("a", "r")) == Grant("a", None)
        relay.lose_reply()
        reply = losing.try_request(hold("b", "s"))
        assert isinstance(reply, Grant)
        assert reply.token
        assert relay.lost == 2

    def test_L20_a_claim_takes_one_request(
        self, relay: Relay, losing: LockManager, redis_client: Redis
    ) -> None:
        losing.request(task("a"))
        losing.request(task("b"))
        executor = Executor(losing)
        executor.claim()
        losing.release("a")
        relay.lose_reply()
        assert executor.take().id == "b"
        assert losing.registry(WORKER.owner) == {"b"}
        assert relay.lost == 1

    def test_L20_an_advance_releases_and_claims_once(
        self, relay: Relay, losing: LockManager
    ) -> None:
        for id in "abc":
            losing.request(task(id, "r"))
        executor = Executor(losing)
        first = executor.take()
        relay.lose_reply()
        assert executor.advance(first) == Claimed("b", first.token + 1)
        assert losing.known("abc") == {"b", "c"}
        assert relay.lost == 1

    def test_L20_many_that_are_sent_twice_are_requested_once(
        self, relay: Relay, losing: LockManager
    ) -> None:
        losing.request(task("warm"))
        relay.lose_reply()
        found = losing.request_many([task("a", "r"), task("b", "r"), task("c", "s")])
        assert found == [Grant("a", None), Waiting("b"), Grant("c", None)]
        assert losing.inspect_resource("r").exclusive_waiter_count == 1
        assert relay.lost == 1

    def test_a_release_hands_over_once(self, relay: Relay, losing: LockManager) -> None:
        losing.request(hold("a", "r"))
        losing.request(task("b", "r"))
        losing.request(task("c", "r"))
        relay.lose_reply()
        assert losing.release("a") == Ended("unknown")
        assert losing.inspect_resource("r").holders[0].id == "b"
        assert relay.lost == 1

    def test_every_operation_leaves_the_same_behind_as_with_one_reply(
        self, relay: Relay, losing: LockManager, manager: LockManager, redis_client: Redis
    ) -> None:
        for name, operation in OPERATIONS.items():
            states = []
            for is_losing in (False, True):
                remove_all(redis_client, PREFIX)
                prepare(manager)
                losing.known(["warm"])
                if is_losing:
                    relay.lose_reply()
                operation(losing)
                found = snapshot(redis_client, PREFIX)
                assert is_intact(found), name
                states.append(without_times(found))
            assert states[0] == states[1], name
        assert relay.lost == len(OPERATIONS)
