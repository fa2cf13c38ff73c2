"""Something else writes into our keys: only those who need them notice, and nothing is half done.

Lua does not roll back: a script that fails after its first write leaves locks that nobody owns. So
every operation is run against every kind of value in every kind of key. It does all or nothing, and
the error names the key.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from redis import Redis

from django_task_locks.exceptions import ForeignValue, OwnerClosed
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import SOLE, Keys
from django_task_locks.locks.requests import Blocked, Ended, Grant, Idle, Waiting
from tests.locks.conftest import PREFIX
from tests.locks.scene import KEYS, OPERATIONS, OTHER_LANE, is_intact, let_time_pass, prepare
from tests.locks.snapshot import remove_all, snapshot
from tests.locks.support import WEB, WORKER, Executor, hold, task

WRITERS: dict[str, Callable[[Redis, str], object]] = {
    "text": lambda client, key: client.set(key, "not ours"),
    "list": lambda client, key: client.rpush(key, "not ours"),
    "hash": lambda client, key: client.hset(key, "not", "ours"),
}


@dataclass(frozen=True)
class Place:
    """A key that somebody else wrote to, and the kind of value there that could be ours."""

    family: str
    key: str
    ours: str = ""

    def __str__(self) -> str:
        return self.key.removeprefix(KEYS.base)


PLACES = [
    Place("request", KEYS.request("held")),
    Place("request", KEYS.request("ready")),
    Place("request", KEYS.request("queued")),
    Place("request", KEYS.request("new")),
    Place("lock", KEYS.lock("r1"), "text"),
    Place("lock", KEYS.lock("r2"), "text"),
    Place("lock", KEYS.lock("s1"), "text"),
    Place("lock", KEYS.lock("free"), "text"),
    *(
        Place(family, key)
        for name in ("r1", "r2", "r3", "s1", "free")
        for family, key in (
            ("wait", KEYS.wait(name)),
            ("wait_exclusive", KEYS.wait_exclusive(name)),
        )
    ),
    Place("owner", KEYS.owner(WORKER.owner)),
    Place("owner", KEYS.owner(WEB.owner)),
    Place("owner", KEYS.owner("queue/default")),
    Place("owner", KEYS.owner("queue/other")),
    Place("owners", KEYS.owners, "hash"),
    Place("slot", KEYS.slot(WORKER.owner), "hash"),
    Place("closed", KEYS.closed),
    Place("suspects", KEYS.suspects),
    Place("lanes", KEYS.lanes, "hash"),
    Place("due", KEYS.due),
    Place("request", KEYS.request("overdue")),
    Place("ready", KEYS.ready("default")),
    Place("ready", KEYS.ready("other")),
    Place("wake", KEYS.wake("")),
    Place("wake", KEYS.wake("default")),
    Place("wake", KEYS.wake("other")),
    Place("control", KEYS.control(WORKER.owner), "list"),
    Place("grant", KEYS.grant("waits"), "list"),
    Place("ended", KEYS.ended("held"), "list"),
    Place("ended", KEYS.ended("queued"), "list"),
    Place("leader", KEYS.leader("job"), "text"),
    Place("unsettled", KEYS.unsettled, "hash"),
    Place("seq", KEYS.seq),
]


def test_every_kind_of_key_is_among_the_places() -> None:
    families = {
        name
        for name in dir(Keys)
        if not name.startswith("_")
        and name not in ("prefix", "base", "anchor", "absent", "lua_literals")
        and name not in ("epoch", "confirmed")  # see test_rebuild
    }
    assert {place.family for place in PLACES} == families


def test_the_scene_is_intact_without_anything_foreign(
    manager: LockManager, redis_client: Redis
) -> None:
    for operation in OPERATIONS.values():
        remove_all(redis_client, PREFIX)
        prepare(manager)
        let_time_pass(redis_client)
        assert is_intact(snapshot(redis_client, PREFIX))
        operation(manager)
        assert is_intact(snapshot(redis_client, PREFIX))


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_all_or_nothing(
    manager: LockManager, redis_client: Redis, name: str, place: Place
) -> None:
    for kind, write in WRITERS.items():
        if kind == place.ours:
            continue
        remove_all(redis_client, PREFIX)
        prepare(manager)
        let_time_pass(redis_client)
        redis_client.delete(place.key)
        write(redis_client, place.key)
        before = snapshot(redis_client, PREFIX)
        error = foreign_value_error(OPERATIONS[name], manager)
        after = snapshot(redis_client, PREFIX)
        if error:
            assert repr(place.key) in error, kind
            assert {**after, KEYS.seq: ""} == {**before, KEYS.seq: ""}, kind
        else:
            assert is_intact(after, lost=place.key), kind
            if place.key != KEYS.grant("waits"):  # it ends with its request, whatever is in it
                assert after.get(place.key) == before[place.key], kind


def foreign_value_error(
    operation: Callable[[LockManager], object], manager: LockManager
) -> str | None:
    """Any other error is raised."""
    try:
        operation(manager)
    except ForeignValue as error:
        return str(error)
    return None


class TestOnlyThoseWhoNeedItNotice:
    @pytest.fixture(params=["list", "hash"])
    def foreign_lock(
        self, manager: LockManager, redis_client: Redis, request: pytest.FixtureRequest
    ) -> str:
        WRITERS[request.param](redis_client, KEYS.lock("bad"))
        return KEYS.lock("bad")

    def test_a_request_of_the_resource_is_told_the_key(
        self, manager: LockManager, foreign_lock: str, redis_client: Redis
    ) -> None:
        for asked in (
            task("a", "good", "bad"),
            task("a", "good", shared=["bad"]),
            hold("a", "good", "bad"),
        ):
            with pytest.raises(ForeignValue, match="lock:bad"):
                manager.request(asked)
            with pytest.raises(ForeignValue, match="lock:bad"):
                manager.try_request(asked)
        assert set(snapshot(redis_client, PREFIX)) <= {KEYS.seq, foreign_lock}

    def test_all_others_go_on(self, manager: LockManager, foreign_lock: str) -> None:
        assert manager.request(task("a", "good")) == Grant("a", None)
        assert manager.request(task("b", "good")) == Waiting("b")
        executor = Executor(manager)
        claimed = executor.take()
        assert executor.advance(claimed) != Idle()

    def test_when_it_is_gone_the_resource_is_free(
        self, manager: LockManager, foreign_lock: str, redis_client: Redis
    ) -> None:
        redis_client.delete(foreign_lock)
        assert manager.request(task("a", "good", "bad")) == Grant("a", None)

    @pytest.mark.parametrize(
        ("text", "mode", "holder"),
        [
            ("somebody", "exclusive", "somebody"),
            (SOLE, "exclusive", SOLE),
            (f"{SOLE}somebody", "shared", "somebody"),
        ],
    )
    def test_text_in_a_lock_is_a_holder_that_nobody_knows(
        self, manager: LockManager, redis_client: Redis, text: str, mode: str, holder: str
    ) -> None:
        """Held, not free, and no error: it may be a lock of another version of this package."""
        redis_client.set(KEYS.lock("r"), text)
        reply = manager.try_request(task("b", "r"))
        assert isinstance(reply, Blocked)
        assert [(found.mode, found.id) for found in reply.blockers] == [(mode, holder)]
        reply = manager.try_request(task("c", shared=["r"]))
        assert isinstance(reply, Blocked) == (mode == "exclusive")
        assert manager.request(task("a", "r")) == Waiting("a")


class TestHandOver:
    """What a release hands on belongs to others; their trouble does not stop it."""

    def test_who_cannot_be_told_of_the_grant_waits_and_the_others_are_granted(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(hold("a", "r1", "r2"))
        manager.request(task("first", "r1", lane=OTHER_LANE))
        manager.request(task("second", "r2"))
        redis_client.set(KEYS.ready("other"), "not ours")
        assert manager.release("a") == Ended("done", ("second",))
        found = manager.inspect_request("first")
        assert found is not None
        assert found.state == "waiting"

    def test_without_a_counter_for_tokens_nobody_loses_a_place(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        redis_client.set(KEYS.seq, "not ours")
        with pytest.raises(ForeignValue, match="seq"):
            manager.release("a")
        redis_client.delete(KEYS.seq)
        assert manager.release("a") == Ended("done", ("b",))

    def test_a_hold_that_cannot_be_woken_is_held_all_the_same(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        """It asks again by its id."""
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        redis_client.set(KEYS.grant("b"), "not ours")
        assert manager.release("a") == Ended("done", ("b",))
        assert isinstance(manager.request(hold("b", "r")), Grant)
        assert redis_client.ttl(KEYS.grant("b")) == -1


class TestClaim:
    def test_a_broken_counter_of_tokens_costs_no_task_its_place(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("a", "r"))
        redis_client.set(KEYS.seq, "not ours")
        executor = Executor(manager)
        with pytest.raises(ForeignValue, match="seq"):
            executor.claim()
        redis_client.delete(KEYS.seq)
        assert executor.take().id == "a"

    def test_the_lanes_that_are_not_broken_are_served(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("a", lane=OTHER_LANE))
        manager.request(task("b"))
        redis_client.delete(KEYS.ready("other"))
        redis_client.set(KEYS.ready("other"), "not ours")
        assert Executor(manager, queues=["default", "other"]).take().id == "b"


class TestSentBack:
    def test_a_grant_that_cannot_go_back_to_its_queue_is_in_the_way(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        """It would stand in no queue, and wait for ever."""
        manager.request(task("low", "r1", "r2"))
        redis_client.set(KEYS.wait_exclusive("r2"), "not ours")
        assert manager.request(task("high", "r1", priority=1)) == Waiting("high")
        assert manager.release("low") == Ended("done", ("high",))

    def test_a_requeue_waits_until_the_key_is_free(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        redis_client.set(KEYS.wait_exclusive("r"), "not ours")
        with pytest.raises(ForeignValue, match="wait:x:r"):
            manager.requeue("a", owner=WORKER.owner, token=claimed.token)
        redis_client.delete(KEYS.wait_exclusive("r"))
        assert manager.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended(
            "done", ("a",)
        )


@pytest.mark.parametrize(
    ("key", "ask"),
    [
        (KEYS.wake(""), lambda locks: locks.wait_for_ready(["default"], 0.001)),
        (KEYS.wake("default"), lambda locks: locks.wait_for_ready(["default"], 0.001)),
        (KEYS.grant("a"), lambda locks: locks.wait_for_grant("a", 0.001)),
        (KEYS.owners, lambda locks: locks.owners()),
        (KEYS.lanes, lambda locks: locks.lanes()),
        (KEYS.owner(WEB.owner), lambda locks: locks.registry(WEB.owner)),
        (KEYS.control(WEB.owner), lambda locks: locks.send(WEB.owner, "cancel a")),
    ],
    ids=[
        "wait_for_ready",
        "in a lane",
        "wait_for_grant",
        "owners",
        "lanes",
        "registry",
        "send",
    ],
)
def test_plain_commands_name_the_key_too(
    manager: LockManager, redis_client: Redis, key: str, ask: Callable[[LockManager], object]
) -> None:
    redis_client.set(key, "not ours")
    with pytest.raises(ForeignValue) as raised:
        ask(manager)
    assert key in str(raised.value)


@pytest.mark.parametrize("record", ['{"state": "held"}', '{"state": 1, "owner": "a"}', "[]", "7"])
def test_json_that_is_no_record_is_foreign(
    manager: LockManager, redis_client: Redis, record: str
) -> None:
    redis_client.set(KEYS.request("a"), record)
    for ask in (manager.release, manager.inspect_request, lambda id: manager.request(task(id))):
        with pytest.raises(ForeignValue, match="request:a"):
            ask("a")
    assert redis_client.get(KEYS.request("a")) == record.encode()


def test_a_counter_below_zero_is_foreign(manager: LockManager, redis_client: Redis) -> None:
    manager.request(hold("first", "r"))
    redis_client.set(KEYS.seq, -5)
    with pytest.raises(ForeignValue, match="seq"):
        manager.request(hold("a", "s"))


def test_an_entry_of_owners_that_is_no_ttl_does_not_keep_its_owner_open(
    manager: LockManager, redis_client: Redis
) -> None:
    redis_client.hset(KEYS.owners, WEB.owner, "soon")
    manager.close_owner(WEB.owner)
    with pytest.raises(OwnerClosed):
        manager.request(hold("a", "r"))
