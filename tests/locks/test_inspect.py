"""inspect_request and inspect_resource: who holds what, who waits for whom, and why."""

import json
from collections.abc import Callable
from time import time

from redis import Redis

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Blocker, Lane, RequestInfo, ResourceInfo
from tests.locks.conftest import PREFIX
from tests.locks.snapshot import Value, snapshot
from tests.locks.support import WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]


def inspected(manager: LockManager, id: str) -> RequestInfo:
    found = manager.inspect_request(id)
    assert found is not None
    return found


class TestRequest:
    def test_an_unknown_one_is_none(self, manager: LockManager) -> None:
        assert manager.inspect_request("a") is None

    def test_everything_that_was_asked_for_is_told(self, manager: LockManager) -> None:
        lane = Lane(queue="bulk", versions={"app": "2"})
        manager.request(
            LockRequest(
                id="a",
                exclusive=("r2", "r1"),
                shared=("s",),
                priority=-3,
                lane=lane,
                label="sync of 7",
            )
        )
        found = inspected(manager, "a")
        assert (found.id, found.state, found.owner) == ("a", "granted", "queue/bulk")
        assert (found.queue, found.lane, found.slot) == ("bulk", lane.name, "")
        assert (found.exclusive, found.shared) == (("r1", "r2"), ("s",))
        assert (found.token, found.label) == (None, "sync of 7")
        assert found.score >> 43 == 103

    def test_of_a_claimed_one_its_holder_is_told(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        found = inspected(manager, "a")
        assert (found.state, found.owner, found.slot, found.token) == (
            "held",
            WORKER.owner,
            WORKER.slot,
            claimed.token,
        )

    def test_since_is_the_time_of_its_last_change(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(task("a", "r"))
        assert abs(inspected(manager, "a").since - time()) < 60
        record = json.loads(str(snapshot(redis_client, PREFIX)[keys.request("a")]))
        redis_client.set(keys.request("a"), json.dumps(record | {"since": 1000}))
        assert inspected(manager, "a").since == 1
        Executor(manager).take()
        assert inspected(manager, "a").since > 1000

    def test_who_waits_has_blockers_with_all_that_is_known_of_them(
        self, manager: LockManager
    ) -> None:
        manager.request(LockRequest(id="holder", exclusive=("r1",), claimant=WEB, label="nightly"))
        manager.request(task("waiter", "r1", "r2"))
        manager.request(task("late", shared=["r2"]))
        holder, waiter = inspected(manager, "holder"), inspected(manager, "waiter")
        assert waiter.blockers == (
            Blocker("r1", "exclusive", "holder", "held", WEB.owner, holder.since, "nightly"),
        )
        assert inspected(manager, "late").blockers == (
            Blocker("r2", "exclusive", "waiter", "waiting", "queue/default", waiter.since, ""),
        )

    def test_who_does_not_wait_has_none(self, manager: LockManager) -> None:
        manager.request(hold("held", "r1"))
        manager.request(task("granted", "r2"))
        manager.request(task("waiting", "r1", "r2"))
        assert inspected(manager, "held").blockers == ()
        assert inspected(manager, "granted").blockers == ()

    def test_a_grant_that_no_worker_claims_is_named(self, manager: LockManager) -> None:
        manager.request(task("unserved", "r", lane=Lane(queue="nobody")))
        manager.request(task("b", "r"))
        (blocker,) = inspected(manager, "b").blockers
        assert (blocker.id, blocker.state, blocker.owner) == ("unserved", "granted", "queue/nobody")

    def test_of_many_blockers_ten_are_named(self, manager: LockManager) -> None:
        for number in range(50):
            manager.request(task(f"a{number}", shared=["r"]))
        manager.request(task("b", "r"))
        assert len(inspected(manager, "b").blockers) == 10

    def test_a_foreign_value_in_the_way_is_named_as_such(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("a", "r1"))
        manager.request(task("b", "r1", "r2"))
        redis_client.delete(keys.lock("r2"))
        redis_client.rpush(keys.lock("r2"), "not ours")
        assert ("r2", "foreign", "") in [
            (blocker.resource, blocker.mode, blocker.id)
            for blocker in inspected(manager, "b").blockers
        ]


class TestResource:
    def test_a_free_one_has_nobody(self, manager: LockManager) -> None:
        assert manager.inspect_resource("r") == ResourceInfo("r", "", 0, 0, 0, (), ())

    def test_the_exclusive_holder(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        found = manager.inspect_resource("r")
        assert (found.mode, found.holder_count) == ("exclusive", 1)
        (holder,) = found.holders
        assert (holder.id, holder.mode, holder.state, holder.owner) == (
            "a",
            "exclusive",
            "held",
            WEB.owner,
        )

    def test_the_shared_holders(self, manager: LockManager) -> None:
        for id in "abc":
            manager.request(task(id, shared=["r"]))
        found = manager.inspect_resource("r")
        assert (found.mode, found.holder_count) == ("shared", 3)
        assert {holder.id for holder in found.holders} == set("abc")

    def test_the_waiters_of_both_modes_in_one_order(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(task("x1", "r"))
        manager.request(task("s1", shared=["r"]))
        manager.request(task("x2", "r"))
        manager.request(task("s2", shared=["r"], priority=1))
        found = manager.inspect_resource("r")
        assert [waiter.id for waiter in found.waiters] == ["s2", "x1", "s1", "x2"]
        assert (found.exclusive_waiter_count, found.shared_waiter_count) == (2, 2)

    def test_lists_are_cut_and_counts_are_not(self, manager: LockManager) -> None:
        for number in range(25):
            manager.request(task(f"holder{number}", shared=["r"]))
        for number in range(25):
            manager.request(task(f"waiter{number}", "r"))
        found = manager.inspect_resource("r")
        assert (found.holder_count, found.exclusive_waiter_count) == (25, 25)
        assert (len(found.holders), len(found.waiters)) == (10, 10)
        assert [waiter.id for waiter in found.waiters] == [f"waiter{n}" for n in range(10)]

    def test_a_lock_that_is_not_ours_is_held_by_somebody_unknown(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.set(keys.lock("r"), "somebody")
        found = manager.inspect_resource("r")
        assert (found.mode, found.holders[0].id, found.holders[0].state) == (
            "exclusive",
            "somebody",
            "",
        )

    def test_even_if_its_value_is_no_text(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.set(keys.lock("r"), b"\xff\xfe")
        assert manager.inspect_resource("r").mode == "exclusive"


class TestReadOnly:
    def test_looking_changes_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r", shared=["s"]))
        manager.request(task("b", "r", "s"))
        before = stored()
        for id in ("a", "b", "c"):
            manager.inspect_request(id)
        for name in ("r", "s", "t"):
            manager.inspect_resource(name)
        manager.owners()
        manager.registry(WEB.owner)
        manager.known(["a", "c"])
        assert stored() == before

    def test_looking_at_an_empty_server_leaves_it_empty(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.inspect_request("a")
        manager.inspect_resource("r")
        assert redis_client.dbsize() == 0
