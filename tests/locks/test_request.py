"""request and try_request: all or nothing, in order, and safe to repeat."""

import json
from collections.abc import Callable, Iterable

import pytest
from redis import Redis

from django_task_locks.exceptions import OwnerClosed, StaleSlot
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import (
    Blocked,
    Blocker,
    Claimant,
    Claimed,
    Ended,
    Grant,
    Idle,
    Lane,
    Waiting,
)
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]
Remaining = Callable[[], set[str]]


def state(manager: LockManager, id: str) -> str:
    found = manager.inspect_request(id)
    return found.state if found else "unknown"


def states(manager: LockManager, ids: Iterable[str]) -> dict[str, str]:
    return {id: state(manager, id) for id in ids}


def blockers(reply: object) -> list[tuple[str, str, str]]:
    assert isinstance(reply, Blocked)
    return [(blocker.resource, blocker.mode, blocker.id) for blocker in reply.blockers]


def test_the_quick_way_writes_the_record_that_the_other_one_writes(
    manager: LockManager, redis_client: Redis, keys: Keys
) -> None:
    # an owner that is not known yet is nobody for the quick way
    for id, resource in (("a", "r"), ("b", "s")):
        manager.request(hold(id, resource, shared=[f"{resource}2"], priority=7))
    slow, quick = (json.loads(redis_client.get(keys.request(id)) or "") for id in "ab")
    assert int(quick.pop("score")) - int(slow.pop("score")) in (1, 2)  # one takes a token besides
    assert int(quick.pop("token")) > int(slow.pop("token"))
    assert 0 <= quick.pop("since") - slow.pop("since") < 60_000
    assert slow.pop("exclusive") == ["r"]
    assert quick.pop("exclusive") == ["s"]
    assert slow.pop("shared") == ["r2"]
    assert quick.pop("shared") == ["s2"]
    assert quick == slow


class TestModes:
    def test_exclusive_excludes_exclusive(self, manager: LockManager) -> None:
        assert manager.request(task("a", "r")) == Grant("a", None)
        assert manager.request(task("b", "r")) == Waiting("b")

    def test_exclusive_excludes_shared(self, manager: LockManager) -> None:
        assert manager.request(task("a", "r")) == Grant("a", None)
        assert manager.request(task("b", shared=["r"])) == Waiting("b")

    def test_shared_excludes_exclusive(self, manager: LockManager) -> None:
        assert manager.request(task("a", shared=["r"])) == Grant("a", None)
        assert manager.request(task("b", "r")) == Waiting("b")

    def test_shared_welcomes_shared(self, manager: LockManager) -> None:
        assert manager.request(task("a", shared=["r"])) == Grant("a", None)
        assert manager.request(task("b", shared=["r"])) == Grant("b", None)

    def test_without_resources_everything_is_granted(self, manager: LockManager) -> None:
        assert manager.request(task("a")) == Grant("a", None)
        assert manager.request(task("b")) == Grant("b", None)

    def test_a_name_in_both_modes_is_exclusive(self, manager: LockManager) -> None:
        assert manager.request(task("a", "r", shared=["r"])) == Grant("a", None)
        assert manager.inspect_resource("r").mode == "exclusive"
        assert manager.request(task("b", shared=["r"])) == Waiting("b")

    def test_a_name_in_both_modes_does_not_wait_for_itself(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        assert manager.request(task("b", "r", shared=["r"])) == Waiting("b")
        assert manager.release("a") == Ended("done", ("b",))

    def test_duplicates_collapse(self, manager: LockManager, remaining: Remaining) -> None:
        assert manager.request(task("a", "r", "r", shared=["s", "s"])) == Grant("a", None)
        info = manager.inspect_request("a")
        assert info is not None
        assert (info.exclusive, info.shared) == (("r",), ("s",))
        manager.release("a")
        assert not remaining()


class TestAllOrNothing:
    def test_one_busy_resource_leaves_the_others_free(self, manager: LockManager) -> None:
        manager.request(task("a", "r2"))
        assert manager.request(task("b", "r1", "r2", shared=["r3"])) == Waiting("b")
        assert manager.inspect_resource("r1").mode == ""
        assert manager.inspect_resource("r3").mode == ""

    def test_the_last_release_gives_them_all_together(self, manager: LockManager) -> None:
        manager.request(task("a1", "r1"))
        manager.request(task("a2", "r2"))
        manager.request(task("b", "r1", "r2"))
        assert manager.release("a1") == Ended("done")
        assert manager.inspect_resource("r1").mode == ""
        assert manager.release("a2") == Ended("done", ("b",))
        assert manager.inspect_resource("r1").holders[0].id == "b"
        assert manager.inspect_resource("r2").holders[0].id == "b"

    def test_opposite_orders_never_deadlock(self, manager: LockManager) -> None:
        for number in range(50):
            manager.request(task(f"ab{number}", "a", "b"))
            manager.request(task(f"ba{number}", "b", "a"))
        executor = Executor(manager)
        done = 0
        reply = executor.claim()
        while isinstance(reply, Claimed):
            done += 1
            reply = executor.advance(reply)
        assert done == 100


class TestTry:
    def test_a_free_resource_is_granted(self, manager: LockManager) -> None:
        assert manager.try_request(task("a", "r")) == Grant("a", None)

    def test_blocked_it_names_who_is_in_the_way_and_leaves_nothing(
        self, manager: LockManager, keys: Keys, stored: Picture
    ) -> None:
        manager.request(task("a", "r1"))
        manager.request(task("b", shared=["r2"]))
        manager.request(task("c", "r2"))
        before = stored()
        reply = manager.try_request(task("d", "r1", "r2", "r3"))
        assert sorted(blockers(reply)) == [
            ("r1", "exclusive", "a"),
            ("r2", "exclusive", "c"),
            ("r2", "shared", "b"),
        ]
        after = stored()
        del before[keys.seq], after[keys.seq]
        assert after == before

    def test_of_many_blockers_ten_are_named(self, manager: LockManager) -> None:
        for number in range(30):
            manager.request(task(f"a{number}", shared=["r"]))
        assert len(blockers(manager.try_request(task("b", "r")))) == 10

    def test_an_earlier_waiter_blocks_it_though_nobody_holds_the_resource(
        self, manager: LockManager
    ) -> None:
        manager.request(task("a", "r1"))
        manager.request(task("b", "r1", "r2"))
        assert blockers(manager.try_request(hold("c", "r2"))) == [("r2", "exclusive", "b")]

    def test_it_tells_what_is_known_of_who_is_in_the_way(self, manager: LockManager) -> None:
        manager.request(LockRequest(id="a", exclusive=("r",), claimant=WEB, label="nightly"))
        found = manager.inspect_request("a")
        reply = manager.try_request(task("b", "r"))
        assert found is not None
        assert reply == Blocked(
            "b", (Blocker("r", "exclusive", "a", "held", WEB.owner, found.since, "nightly"),)
        )

    def test_one_that_is_queued_already_goes_on_waiting(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        assert manager.try_request(task("b", "r")) == Waiting("b")


class TestClaimedAtTheGrant:
    def test_a_process_holds_it_from_the_grant_on(self, manager: LockManager) -> None:
        reply = manager.request(hold("a", "r"))
        assert isinstance(reply, Grant)
        assert reply.token is not None
        assert state(manager, "a") == "held"
        assert manager.registry(WEB.owner) == {"a"}

    def test_no_worker_can_claim_it(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        assert Executor(manager).claim() == Idle()

    def test_tokens_grow_from_grant_to_grant(self, manager: LockManager) -> None:
        tokens = []
        for _ in range(5):
            reply = manager.try_request(hold("a", "r"))
            assert isinstance(reply, Grant)
            tokens.append(reply.token or 0)
            manager.release("a")
        assert tokens == sorted(set(tokens))

    def test_waiting_it_is_held_the_moment_it_is_handed_over(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        first = manager.request(hold("a", "r"))
        assert manager.request(hold("b", "r")) == Waiting("b")
        assert manager.registry(WEB.owner) == {"a", "b"}
        assert manager.release("a") == Ended("done", ("b",))
        second = manager.request(hold("b", "r"))
        assert isinstance(first, Grant)
        assert isinstance(second, Grant)
        assert (second.token or 0) > (first.token or 0)

    def test_the_one_that_waits_is_woken_and_its_wake_up_ends_with_it(
        self, manager: LockManager, redis_client: Redis, keys: Keys, remaining: Remaining
    ) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        manager.release("a")
        found = manager.inspect_request("b")
        assert found is not None
        assert redis_client.lrange(keys.grant("b"), 0, -1) == [str(found.token).encode()]
        manager.release("b")
        assert not remaining()

    def test_waiting_for_the_grant_ends_with_it(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        assert not manager.wait_for_grant("b", 0.001)
        manager.release("a")
        assert manager.wait_for_grant("b", 60)
        assert not manager.wait_for_grant("b", 0.001)
        assert isinstance(manager.request(hold("b", "r")), Grant)

    def test_it_is_never_sent_back(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        assert manager.request(task("b", "r", priority=100)) == Waiting("b")
        assert state(manager, "a") == "held"


class TestRepeated:
    """L20: the reply to a grant is lost and the client sends it again."""

    @pytest.mark.parametrize(
        "request_", [task("a", "r", shared=["s"]), hold("a", "r", shared=["s"])]
    )
    def test_L20_a_grant_is_answered_as_granted_again(
        self, manager: LockManager, stored: Picture, keys: Keys, request_: LockRequest
    ) -> None:
        """L20: the reply to a grant is lost and the client sends it again."""
        reply = manager.request(request_)
        before = stored()
        assert isinstance(reply, Grant)
        assert manager.request(request_) == reply
        assert manager.try_request(request_) == reply
        assert stored() | {keys.seq: ""} == before | {keys.seq: ""}

    def test_L20_a_waiter_keeps_its_place(
        self, manager: LockManager, stored: Picture, keys: Keys
    ) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        manager.request(task("c", "r"))
        before = stored()
        assert manager.request(task("b", "r")) == Waiting("b")
        assert stored() | {keys.seq: ""} == before | {keys.seq: ""}
        assert manager.release("a") == Ended("done", ("b",))

    def test_L20_a_claimed_task_is_answered_with_its_token(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        assert manager.request(task("a", "r")) == Grant("a", claimed.token)

    def test_what_was_asked_first_stands(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        assert manager.request(task("a", "s", priority=5)) == Grant("a", None)
        info = manager.inspect_request("a")
        assert info is not None
        assert info.exclusive == ("r",)
        assert manager.inspect_resource("s").mode == ""

    def test_an_id_that_has_ended_may_come_again(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.release("a")
        assert manager.request(task("a", "s")) == Grant("a", None)


class TestOrder:
    def test_first_come_first_served(self, manager: LockManager) -> None:
        for id in "abcd":
            manager.request(task(id, "r"))
        order = []
        executor = Executor(manager)
        reply = executor.claim()
        while isinstance(reply, Claimed):
            order.append(reply.id)
            reply = executor.advance(reply)
        assert order == list("abcd")

    def test_a_higher_priority_passes_waiters(self, manager: LockManager) -> None:
        manager.request(hold("held", "r"))
        manager.request(task("low", "r", priority=-1))
        manager.request(task("middle", "r"))
        manager.request(task("high", "r", priority=1))
        order = []
        executor = Executor(manager)
        manager.release("held")
        reply = executor.claim()
        while isinstance(reply, Claimed):
            order.append(reply.id)
            reply = executor.advance(reply)
        assert order == ["high", "middle", "low"]

    @pytest.mark.parametrize("priority", [-100, 100])
    def test_the_outermost_priorities_stay_in_order(
        self, manager: LockManager, priority: int
    ) -> None:
        for number in range(5):
            manager.request(task(f"a{number}", priority=priority))
        manager.request(task("b"))
        executor = Executor(manager)
        order = []
        reply = executor.claim()
        while isinstance(reply, Claimed):
            order.append(reply.id)
            reply = executor.advance(reply)
        same = [f"a{number}" for number in range(5)]
        assert order == ([*same, "b"] if priority > 0 else ["b", *same])

    def test_a_higher_priority_sends_back_a_grant_that_nobody_has_claimed(
        self, manager: LockManager
    ) -> None:
        assert manager.request(task("low", "r", "s")) == Grant("low", None)
        assert manager.request(task("high", "r", priority=1)) == Grant("high", None)
        assert states(manager, ["low", "high"]) == {"low": "waiting", "high": "granted"}
        assert manager.inspect_resource("s").mode == ""
        executor = Executor(manager)
        claimed = executor.take()
        assert claimed.id == "high"
        assert executor.advance(claimed) == Claimed("low", claimed.token + 1)

    def test_it_does_so_even_if_it_must_wait_itself(self, manager: LockManager) -> None:
        manager.request(hold("held", "s"))
        manager.request(task("low", "r"))
        assert manager.request(task("high", "r", "s", priority=1)) == Waiting("high")
        assert state(manager, "low") == "waiting"
        assert Executor(manager).claim() == Idle()

    def test_sent_back_it_keeps_its_place_before_later_ones(self, manager: LockManager) -> None:
        manager.request(task("first", "r", "s"))
        manager.request(task("second", "s"))
        manager.request(task("high", "r", priority=1))
        assert state(manager, "second") == "waiting"
        assert manager.release("high") == Ended("done", ("first",))
        assert manager.release("first") == Ended("done", ("second",))

    def test_a_higher_priority_never_passes_what_is_held(self, manager: LockManager) -> None:
        manager.request(task("low", "r"))
        claimed = Executor(manager).take()
        assert manager.request(task("high", "r", priority=100)) == Waiting("high")
        assert manager.inspect_resource("r").holders[0].id == claimed.id

    def test_of_a_shared_run_the_claimed_members_stay(self, manager: LockManager) -> None:
        manager.request(task("claimed", shared=["r"]))
        Executor(manager).take()
        manager.request(task("unclaimed", shared=["r"]))
        assert manager.request(task("high", "r", priority=1)) == Waiting("high")
        assert states(manager, ["claimed", "unclaimed"]) == {
            "claimed": "held",
            "unclaimed": "waiting",
        }
        assert manager.release("claimed") == Ended("done", ("high",))

    def test_of_a_shared_run_all_unclaimed_members_are_sent_back(
        self, manager: LockManager
    ) -> None:
        for id in "abc":
            manager.request(task(id, shared=["r"]))
        assert manager.request(task("high", "r", priority=1)) == Grant("high", None)
        assert states(manager, "abc") == dict.fromkeys("abc", "waiting")
        assert manager.release("high") == Ended("done", ("a", "b", "c"))

    def test_a_try_sends_back_only_if_it_gets_everything(self, manager: LockManager) -> None:
        manager.request(hold("held", "s"))
        manager.request(task("low", "r"))
        reply = manager.try_request(hold("high", "r", "s", priority=1))
        assert blockers(reply) == [("s", "exclusive", "held")]
        assert state(manager, "low") == "granted"
        assert isinstance(manager.try_request(hold("high", "r", priority=1)), Grant)
        assert state(manager, "low") == "waiting"

    def test_grants_of_other_resources_are_not_sent_back(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "s"))
        manager.request(task("high", "r", priority=1))
        assert states(manager, "ab") == {"a": "waiting", "b": "granted"}


class TestFairness:
    def test_a_reader_does_not_overtake_an_earlier_writer(self, manager: LockManager) -> None:
        manager.request(hold("reader", shared=["r"]))
        manager.request(task("writer", "r"))
        assert manager.request(task("late", shared=["r"])) == Waiting("late")
        reply = manager.try_request(hold("immediate", shared=["r"]))
        assert blockers(reply) == [("r", "exclusive", "writer")]
        assert manager.release("reader") == Ended("done", ("writer",))
        assert manager.release("writer") == Ended("done", ("late",))

    def test_steady_readers_do_not_starve_a_writer(self, manager: LockManager) -> None:
        """Each reader comes before the one before it has left."""
        manager.request(hold("reader0", shared=["r"]))
        manager.request(hold("reader1", shared=["r"]))
        manager.request(task("writer", "r"))
        for number in range(2, 20):
            assert manager.request(hold(f"reader{number}", shared=["r"])) == Waiting(
                f"reader{number}"
            )
            manager.release(f"reader{number - 2}")
        assert state(manager, "writer") == "granted"

    def test_steady_writers_do_not_starve_a_reader(self, manager: LockManager) -> None:
        manager.request(hold("w0", "r"))
        manager.request(task("reader", shared=["r"]))
        manager.request(hold("w1", "r"))
        assert manager.release("w0") == Ended("done", ("reader",))

    def test_no_head_of_line_blocking(self, manager: LockManager) -> None:
        manager.request(hold("busy", "r1"))
        for number in range(21):
            assert manager.request(task(f"a{number}", "r1")) == Waiting(f"a{number}")
        assert manager.request(task("free", "r2")) == Grant("free", None)
        assert Executor(manager).take().id == "free"

    def test_a_waiter_for_two_resources_keeps_later_ones_off_both(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("busy", "r1"))
        manager.request(task("both", "r1", "r2"))
        assert manager.request(task("late", "r2")) == Waiting("late")
        assert manager.release("busy") == Ended("done", ("both",))
        assert manager.release("both") == Ended("done", ("late",))

    def test_order_spans_queues(self, manager: LockManager) -> None:
        """A grant whose queue no worker serves keeps its place."""
        manager.request(task("unserved", "r", lane=Lane(queue="nobody")))
        assert manager.request(task("served", "r")) == Waiting("served")
        assert Executor(manager).claim() == Idle()
        assert manager.release("unserved") == Ended("done", ("served",))


class TestOneProcessTwice:
    def test_L16_a_resource_shared_twice_by_one_process_counts_for_each_request(
        self, manager: LockManager
    ) -> None:
        """L16: one process holds the same shared resource twice."""
        manager.request(hold("a", shared=["r"]))
        manager.request(hold("b", shared=["r"]))
        manager.request(task("writer", "r"))
        assert manager.inspect_resource("r").holder_count == 2
        assert manager.release("a") == Ended("done")
        assert manager.release("b") == Ended("done", ("writer",))

    def test_L19_the_end_of_an_immediate_task_leaves_the_hold_of_its_parent(
        self, manager: LockManager
    ) -> None:
        manager.request(task("parent", shared=["r"]))
        parent = Executor(manager).take()
        child = manager.try_request(hold("child", shared=["r"], by=WORKER))
        assert isinstance(child, Grant)
        manager.release("child", owner=WORKER.owner, token=child.token)
        assert manager.request(task("writer", "r")) == Waiting("writer")
        assert manager.release("parent", owner=WORKER.owner, token=parent.token) == Ended(
            "done", ("writer",)
        )

    def test_one_process_does_not_get_an_exclusive_resource_twice(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("a", "r"))
        assert isinstance(manager.try_request(hold("b", "r")), Blocked)
        assert isinstance(manager.try_request(hold("c", shared=["r"])), Blocked)


class TestRefused:
    @pytest.mark.parametrize("by", [WEB, WORKER])
    def test_a_closed_owner_gets_nothing(
        self, manager: LockManager, keys: Keys, stored: Picture, by: Claimant
    ) -> None:
        manager.close_owner(by.owner)
        before = stored()
        with pytest.raises(OwnerClosed, match=by.owner):
            manager.request(hold("a", "r", by=by))
        with pytest.raises(OwnerClosed):
            manager.try_request(hold("a", "r", by=by))
        assert stored() == before

    def test_a_closed_owner_is_not_told_that_it_holds_what_it_held(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("a", "r"))
        manager.close_owner(WEB.owner)
        with pytest.raises(OwnerClosed):
            manager.request(hold("a", "r"))

    def test_a_stale_slot_gets_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r", by=WORKER))
        manager.retire(WORKER)
        before = stored()
        for id in ("a", "b"):
            with pytest.raises(StaleSlot, match=r"0\.1"):
                manager.request(hold(id, "s", by=WORKER))
        assert stored() == before

    def test_others_go_on(self, manager: LockManager) -> None:
        manager.close_owner(WEB.owner)
        manager.retire(WORKER)
        assert isinstance(manager.request(hold("a", "r", by=OTHER_WORKER)), Grant)
        assert manager.request(task("b", "s")) == Grant("b", None)


class TestNothingLeftBehind:
    def test_after_everything_has_ended_only_counters_and_bookkeeping_remain(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        executor = Executor(manager)
        manager.request(task("a", "r1", shared=["s"]))
        manager.request(task("b", "r1", shared=["s"], lane=Lane(versions={"app": "2"})))
        manager.request(hold("c", "r2", shared=["s"]))
        manager.request(hold("d", "r2", "s"))
        manager.request(task("e", shared=["r1", "r2", "s"]))
        manager.try_request(task("f", "s"))
        reply = executor.claim()
        while isinstance(reply, Claimed):
            reply = executor.advance(reply)
        for id in "abcdef":
            manager.release(id)
        assert not remaining()
