"""claim, advance and wait_for_ready: what an executor does all day."""

from collections.abc import Callable
from threading import Thread
from time import monotonic

import pytest
from redis import Redis

from django_task_locks.exceptions import OwnerClosed, StaleSlot
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimant, Claimed, Ended, Grant, Idle, Lane, Lanes
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task
from tests.support.servers import ValkeyServer

Picture = Callable[[], dict[str, Value]]
Remaining = Callable[[], set[str]]

SECOND_SLOT = Claimant(owner=WORKER.owner, slot="1.1", ttl=30)
NEXT_GENERATION = Claimant(owner=WORKER.owner, slot="0.2", ttl=30)


def executor_that_knows_the_lanes(
    manager: LockManager, claimant: Claimant = WORKER, *queues: str
) -> Executor:
    """It is idle, and nothing is lit for it."""
    executor = Executor(manager, claimant, queues or ["default"])
    assert executor.claim() == Idle()
    while executor.is_woken():
        assert executor.claim() == Idle()
    return executor


def idle_executors_of_a_known_lane(manager: LockManager, count: int) -> list[Executor]:
    manager.request(task("the first in its lane"))
    manager.release("the first in its lane")
    claimants = [Claimant(owner=f"worker@{number}", slot="0.1", ttl=30) for number in range(count)]
    return [executor_that_knows_the_lanes(manager, claimant) for claimant in claimants]


class TestClaim:
    def test_the_claimant_holds_it_with_a_new_token(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        found = manager.inspect_request(claimed.id)
        assert found is not None
        assert (found.id, found.state, found.owner, found.slot, found.token) == (
            "a",
            "held",
            WORKER.owner,
            WORKER.slot,
            claimed.token,
        )

    def test_it_moves_from_the_queue_to_the_registry_of_the_claimant(
        self, manager: LockManager
    ) -> None:
        manager.request(task("a", "r"))
        assert manager.registry("queue/default") == {"a"}
        Executor(manager).take()
        assert manager.registry("queue/default") == set()
        assert manager.registry(WORKER.owner) == {"a"}

    def test_tokens_grow_from_claim_to_claim(self, manager: LockManager) -> None:
        for id in "abc":
            manager.request(task(id, id))
        executor = Executor(manager)
        first = executor.take()
        second = executor.advance(first)
        held = manager.request(hold("d", "d"))
        assert isinstance(second, Claimed)
        third = executor.advance(second)
        assert isinstance(third, Claimed)
        assert isinstance(held, Grant)
        assert first.token < second.token < (held.token or 0) < third.token

    def test_nothing_ready_is_idle(self, manager: LockManager) -> None:
        assert Executor(manager).claim() == Idle()

    def test_the_best_score_over_the_lanes_is_first(self, manager: LockManager) -> None:
        manager.request(task("a", lane=Lane(queue="one")))
        manager.request(task("b", lane=Lane(queue="two")))
        manager.request(task("c", lane=Lane(queue="one"), priority=1))
        executor = Executor(manager, queues=["one", "two"])
        order = []
        reply = executor.claim()
        while isinstance(reply, Claimed):
            order.append(reply.id)
            reply = executor.advance(reply)
        assert order == ["c", "a", "b"]

    def test_a_worker_takes_from_its_own_queues_only(self, manager: LockManager) -> None:
        manager.request(task("a", lane=Lane(queue="one")))
        assert Executor(manager, queues=["two"]).claim() == Idle()
        assert Executor(manager, queues=["one"]).take().id == "a"

    def test_a_task_that_needs_versions_has_a_lane_of_its_own(self, manager: LockManager) -> None:
        old, new = Lane(), Lane(versions={"app": "2"})
        manager.request(task("a", lane=new))
        reply = manager.claim(WORKER, "", [])
        assert isinstance(reply, Lanes)
        assert reply.lanes == {new.name: new}
        assert manager.claim(WORKER, reply.version, [old.name]) == Idle()
        claimed = manager.claim(WORKER, reply.version, [new.name])
        assert isinstance(claimed, Claimed)
        assert claimed.id == "a"

    def test_two_slots_hold_two_requests(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.request(task("b"))
        assert Executor(manager, WORKER).take().id == "a"
        assert Executor(manager, SECOND_SLOT).take().id == "b"

    def test_each_request_is_claimed_once(self, manager: LockManager) -> None:
        for number in range(100):
            manager.request(task(f"a{number}"))
        executors = [
            Executor(manager, Claimant(owner=f"worker@{number}", slot="0.1", ttl=30))
            for number in range(10)
        ]
        claimed: list[str] = []
        done: dict[int, Claimed] = {}
        for turn in range(110):
            executor = executors[turn % 10]
            reply = executor.advance(done[turn % 10]) if turn % 10 in done else executor.claim()
            if isinstance(reply, Claimed):
                done[turn % 10] = reply
                claimed.append(reply.id)
        assert claimed == [f"a{number}" for number in range(100)]


class TestRepeatedClaim:
    def test_L20_a_slot_that_holds_a_request_is_answered_with_that_one(
        self, manager: LockManager, stored: Picture
    ) -> None:
        manager.request(task("a"))
        manager.request(task("b"))
        executor = Executor(manager)
        claimed = executor.take()
        before = stored()
        assert executor.claim() == claimed
        assert stored() == before

    def test_even_if_the_lanes_have_changed_meanwhile(self, manager: LockManager) -> None:
        manager.request(task("a"))
        executor = Executor(manager)
        claimed = executor.take()
        manager.request(task("b", lane=Lane(queue="new")))
        assert manager.claim(WORKER, executor.version, executor.lanes) == claimed

    def test_a_slot_whose_request_was_ended_is_free(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.request(task("b"))
        executor = Executor(manager)
        executor.take()
        manager.release("a")
        assert executor.take().id == "b"

    def test_a_hold_of_the_executor_does_not_fill_its_slot(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.request(hold("b", "r", by=WORKER))
        assert Executor(manager, WORKER).take().id == "a"


class TestAdvance:
    def test_it_releases_and_claims_the_next(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        executor = Executor(manager)
        first = executor.take()
        assert executor.advance(first) == Claimed("b", first.token + 1)
        assert manager.inspect_request("a") is None

    def test_with_nothing_more_to_do_it_still_releases(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        assert executor.advance(executor.take()) == Idle()
        assert not remaining()

    def test_it_hands_over_to_other_queues_too(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r", lane=Lane(queue="other")))
        executor = Executor(manager)
        assert executor.advance(executor.take()) == Idle()
        assert Executor(manager, OTHER_WORKER, ["other"]).take().id == "b"

    def test_L20_repeated_it_is_answered_with_what_the_slot_holds(
        self, manager: LockManager, stored: Picture
    ) -> None:
        for id in "abc":
            manager.request(task(id, "r"))
        executor = Executor(manager)
        first = executor.take()
        second = executor.advance(first)
        before = stored()
        assert executor.advance(first) == second
        assert stored() == before

    def test_repeated_when_idle_it_is_idle(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        first = executor.take()
        assert executor.advance(first) == Idle()
        assert executor.advance(first) == Idle()

    def test_the_answer_that_the_lanes_have_changed_comes_after_the_release(
        self, manager: LockManager
    ) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        first = executor.take()
        manager.request(task("b", "r", lane=Lane(queue="new")))
        reply = manager.advance(
            WORKER, executor.version, executor.lanes, id=first.id, token=first.token
        )
        assert isinstance(reply, Lanes)
        assert set(reply.lanes) == {"default", "new"}
        second = manager.claim(WORKER, reply.version, ["new"])
        assert isinstance(second, Claimed)
        assert second.id == "b"
        assert second.token > first.token

    def test_L27_another_owner_or_token_releases_nothing(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        first = Executor(manager, WORKER).take()
        executor = Executor(manager, OTHER_WORKER)
        executor.claim()
        assert executor.advance(first) == Idle()
        assert Executor(manager, WORKER).advance(Claimed("a", first.token + 1)) == first
        assert manager.inspect_resource("r").holders[0].owner == WORKER.owner


class TestRefused:
    def test_a_closed_owner_claims_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        claimed = executor.take()
        manager.request(task("b", "r"))
        manager.close_owner(WORKER.owner)
        before = stored()
        with pytest.raises(OwnerClosed, match=WORKER.owner):
            executor.claim()
        with pytest.raises(OwnerClosed):
            executor.advance(claimed)
        assert stored() == before

    def test_a_stale_slot_claims_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        claimed = executor.take()
        manager.retire(WORKER)
        before = stored()
        with pytest.raises(StaleSlot, match=r"0\.1"):
            executor.claim()
        with pytest.raises(StaleSlot):
            executor.advance(claimed)
        assert stored() == before

    def test_other_slots_of_the_same_owner_go_on(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.retire(WORKER)
        assert Executor(manager, SECOND_SLOT).take().id == "a"

    def test_the_next_generation_is_not_given_what_the_dead_one_held(
        self, manager: LockManager
    ) -> None:
        """The supervisor could not end it yet, and nobody may run it a second time."""
        manager.request(task("a", "r"))
        left = Executor(manager, WORKER).take()
        assert manager.retire(WORKER) == ("a",)
        executor = Executor(manager, NEXT_GENERATION)
        assert executor.claim() == Idle()
        manager.request(task("b", "s"))
        mine = executor.take()
        assert mine.id == "b"
        assert manager.release("a", owner=WORKER.owner, token=left.token) == Ended("done")
        assert executor.claim() == mine


class TestLanes:
    def test_an_executor_is_told_the_lanes_before_it_claims(self, manager: LockManager) -> None:
        manager.request(task("a"))
        reply = manager.claim(WORKER, "", [])
        assert reply == Lanes("1", {"default": Lane()})

    def test_a_new_lane_is_told_to_each_executor_once(self, manager: LockManager) -> None:
        manager.request(task("a"))
        first, second = Executor(manager, WORKER), Executor(manager, OTHER_WORKER)
        first.take()
        second.claim()
        manager.request(task("b", lane=Lane(queue="new")))
        for executor in (first, second):
            manager.release("a")
            reply = manager.claim(executor.claimant, executor.version, executor.lanes)
            assert isinstance(reply, Lanes)
            assert set(reply.lanes) == {"default", "new"}
            again = manager.claim(executor.claimant, reply.version, ["default"])
            assert again == Idle()

    def test_a_known_lane_changes_nothing(self, manager: LockManager) -> None:
        manager.request(task("a"))
        executor = Executor(manager)
        executor.take()
        version = executor.version
        manager.request(task("b"))
        executor.claim()
        assert executor.version == version

    def test_anybody_may_look_at_them(self, manager: LockManager) -> None:
        lane = Lane(queue="bulk", versions={"app": "2"})
        assert manager.lanes() == {}
        manager.request(task("a"))
        manager.request(task("b", lane=lane))
        assert manager.lanes() == {"default": Lane(), lane.name: lane}

    def test_a_blocked_try_makes_no_lane(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.try_request(task("b", "r", lane=Lane(queue="new")))
        reply = manager.claim(WORKER, "", [])
        assert isinstance(reply, Lanes)
        assert not reply.lanes


class TestWaitForReady:
    def test_it_returns_at_once_where_something_is_ready(self, manager: LockManager) -> None:
        manager.request(task("a"))
        assert manager.wait_for_ready(["default"], 60)

    def test_it_returns_after_the_timeout_where_nothing_is(self, manager: LockManager) -> None:
        started = monotonic()
        assert not manager.wait_for_ready(["default"], 0.05)
        assert monotonic() - started >= 0.05

    def test_it_returns_when_something_becomes_ready(
        self, manager: LockManager, valkey: ValkeyServer, redis_client: Redis
    ) -> None:
        idle_executors_of_a_known_lane(manager, 1)
        found: list[bool] = []
        with valkey.client() as client:
            waiting = LockManager(client, manager.keys.prefix)
            thread = Thread(target=lambda: found.append(waiting.wait_for_ready(["default"], 60)))
            thread.start()
            while not redis_client.info("clients")["blocked_clients"]:
                pass
            manager.request(task("a"))
            thread.join(60)
        assert found == [True]

    def test_one_grant_wakes_one_idle_executor(self, manager: LockManager) -> None:
        executors = idle_executors_of_a_known_lane(manager, 2)
        manager.request(task("a"))
        assert [executor.is_woken() for executor in executors] == [True, False]

    def test_who_was_woken_wakes_the_next_while_more_is_ready(self, manager: LockManager) -> None:
        executors = idle_executors_of_a_known_lane(manager, 3)
        manager.request(task("a"))
        manager.request(task("b"))
        claimed = [executor.claim() for executor in executors if executor.is_woken()]
        assert [reply.id for reply in claimed if isinstance(reply, Claimed)] == ["a", "b"]

    def test_what_is_granted_and_claimed_in_one_step_wakes_nobody(
        self, manager: LockManager
    ) -> None:
        """Tasks that exclude each other, and an executor that goes from one to the next."""
        busy, *idle = idle_executors_of_a_known_lane(manager, 3)
        manager.request(task("a", "r"))
        first = busy.take()
        manager.request(task("b", "r"))
        assert isinstance(busy.advance(first), Claimed)
        assert not any(executor.is_woken() for executor in idle)

    def test_a_claim_that_leaves_something_lights_its_lane(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(task("a"))
        manager.request(task("b"))
        executor = Executor(manager)
        executor.lanes = ["default"]
        while executor.is_woken():
            pass
        first = executor.take()
        assert redis_client.exists(keys.wake("default"))
        redis_client.delete(keys.wake("default"))
        executor.advance(first)
        assert not redis_client.exists(keys.wake("default"))

    def test_who_came_for_one_lane_and_got_a_task_of_another_leaves_the_first_lit(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        """An executor that reads only the first one would sleep on beside a task that is ready."""
        manager.request(task("a", lane=Lane(queue="one")))
        manager.request(task("b", lane=Lane(queue="two"), priority=1))
        executor = Executor(manager, queues=["one", "two"])
        executor.lanes = ["one", "two"]
        reply = manager.claim(WORKER, "", [])
        assert isinstance(reply, Lanes)
        redis_client.delete(keys.wake("one"))  # the executor has taken the marker
        claimed = manager.claim(WORKER, reply.version, ["one", "two"])
        assert isinstance(claimed, Claimed)
        assert claimed.id == "b"
        assert redis_client.exists(keys.wake("one"))

    def test_a_new_lane_wakes_executors_that_do_not_know_it(self, manager: LockManager) -> None:
        executors = [
            executor_that_knows_the_lanes(manager, claimant, "default", "new")
            for claimant in (WORKER, SECOND_SLOT, OTHER_WORKER)
        ]
        manager.request(task("a", lane=Lane(queue="new")))
        claimed = []
        for executor in executors:
            assert executor.is_woken(), "each hears of it from the one before"
            claimed.append(executor.claim())
        assert isinstance(claimed[0], Claimed)
        assert claimed[1:] == [Idle(), Idle()]

    def test_and_the_chain_ends_when_all_know_it(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        executors = [
            executor_that_knows_the_lanes(manager, claimant)
            for claimant in (WORKER, SECOND_SLOT, OTHER_WORKER)
        ]
        manager.request(task("a", lane=Lane(queue="nobody")))
        woken = []
        for executor in executors * 3:
            if executor.is_woken():
                woken.append(executor)
                assert executor.claim() == Idle()
        assert woken == [*executors, executors[0]]
        assert not redis_client.exists(keys.wake(""))

    def test_a_beat_lights_what_is_ready_again(self, manager: LockManager) -> None:
        """The marker was lost with the process that took it."""
        manager.request(task("a"))
        executor = Executor(manager)
        executor.lanes = ["default"]
        while executor.is_woken():
            pass
        manager.beat(WEB.owner, 30)
        assert executor.is_woken()

    def test_a_marker_without_anything_ready_does_no_harm(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.release("a")
        executor = Executor(manager)
        assert executor.claim() == Idle()
        while executor.is_woken():
            assert executor.claim() == Idle()
