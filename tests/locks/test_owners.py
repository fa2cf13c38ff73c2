"""Processes: their beats, their end, what they leave, and who may still speak for them."""

from collections.abc import Callable

import pytest
from redis import Redis

from django_task_locks.exceptions import OwnerClosed
from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimant, Ended, Grant
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]
Remaining = Callable[[], set[str]]


class TestBeat:
    def test_it_keeps_the_ttl_for_those_who_judge_without_a_row(self, manager: LockManager) -> None:
        manager.beat(WEB.owner, 30)
        assert manager.owners() == {WEB.owner: 30}
        manager.beat(WEB.owner, 12.5)
        assert manager.owners() == {WEB.owner: 12.5}

    def test_claims_and_holds_tell_the_ttl_too(self, manager: LockManager) -> None:
        manager.request(task("a"))
        manager.request(hold("b", "r"))
        Executor(manager).take()
        assert manager.owners() == {WORKER.owner: 30, WEB.owner: 30}

    def test_a_closed_owner_is_told_so(self, manager: LockManager, stored: Picture) -> None:
        manager.close_owner(WEB.owner)
        before = stored()
        with pytest.raises(OwnerClosed, match=WEB.owner):
            manager.beat(WEB.owner, 30)
        assert stored() == before

    def test_who_beats_is_no_suspect(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.suspect(WEB.owner)
        manager.beat(WEB.owner, 30)
        assert not redis_client.exists(keys.suspects)


class TestClose:
    def test_it_names_what_the_owner_holds_and_waits_for(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        Executor(manager).take()
        manager.request(hold("b", "r", by=WORKER))
        manager.request(hold("c", "s", by=OTHER_WORKER))
        assert set(manager.close_owner(WORKER.owner)) == {"a", "b"}

    def test_it_frees_nothing(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.close_owner(WEB.owner)
        assert manager.inspect_resource("r").holders[0].id == "a"

    def test_repeated_it_answers_the_same(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r"))
        first = manager.close_owner(WEB.owner)
        before = stored()
        assert manager.close_owner(WEB.owner) == first
        assert stored() == before

    def test_an_owner_that_was_never_there_is_refused_as_well(self, manager: LockManager) -> None:
        assert manager.close_owner(WEB.owner) == ()
        with pytest.raises(OwnerClosed):
            manager.request(hold("a", "r"))

    def test_it_is_remembered_when_the_owner_is_forgotten(self, manager: LockManager) -> None:
        manager.close_owner(WEB.owner)
        manager.forget_owner(WEB.owner)
        with pytest.raises(OwnerClosed):
            manager.request(hold("a", "r"))

    def test_it_is_forgotten_after_a_month(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.zadd(keys.closed, {"long ago@1": 1_000_000_000_000})
        manager.close_owner(WEB.owner)
        assert redis_client.zrange(keys.closed, 0, -1) == [WEB.owner.encode()]

    def test_clean_up_may_still_end_what_it_left(self, manager: LockManager) -> None:
        grant = manager.request(hold("a", "r"))
        assert isinstance(grant, Grant)
        manager.close_owner(WEB.owner)
        assert manager.release("a", owner=WEB.owner, token=grant.token) == Ended("done")

    def test_the_successor_under_the_same_name_is_another_owner(self, manager: LockManager) -> None:
        manager.close_owner("worker@1")
        successor = Claimant(owner="worker@2", slot="0.1", ttl=30)
        manager.request(task("a"))
        assert Executor(manager, successor).take().id == "a"


class TestReleaseOwner:
    def test_everything_of_the_owner_ends(self, manager: LockManager, remaining: Remaining) -> None:
        manager.request(task("a", "r"))
        Executor(manager).take()
        manager.request(hold("b", "s", shared=["t"], by=WORKER))
        manager.request(hold("c", "r", by=WORKER))
        assert manager.release_owner(WORKER.owner) == 3
        assert not remaining()

    def test_nothing_of_others_ends(self, manager: LockManager) -> None:
        manager.request(hold("a", shared=["r"], by=WORKER))
        manager.request(hold("b", shared=["r"], by=OTHER_WORKER))
        manager.request(task("c", shared=["r"]))
        assert manager.release_owner(WORKER.owner) == 1
        assert {holder.id for holder in manager.inspect_resource("r").holders} == {"b", "c"}

    def test_those_that_waited_are_next(self, manager: LockManager) -> None:
        manager.request(hold("a", "r", by=WORKER))
        manager.request(hold("b", "r", by=WEB))
        manager.release_owner(WORKER.owner)
        assert manager.inspect_resource("r").holders[0].id == "b"

    def test_L12_a_live_successor_under_the_same_name_keeps_everything(
        self, manager: LockManager
    ) -> None:
        successor = Claimant(owner="worker@2", ttl=30)
        manager.request(hold("a", "r", by=Claimant(owner="worker@1", ttl=30)))
        manager.request(hold("b", "s", by=successor))
        manager.release_owner("worker@1")
        assert manager.inspect_resource("r").mode == ""
        assert manager.registry(successor.owner) == {"b"}

    def test_a_dispatchers_death_takes_no_task_with_it(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        manager.close_owner(WEB.owner)
        assert manager.release_owner(WEB.owner) == 0
        assert manager.registry("queue/default") == {"a", "b"}

    def test_repeated_it_finds_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r"))
        manager.release_owner(WEB.owner)
        before = stored()
        assert manager.release_owner(WEB.owner) == 0
        assert stored() == before

    @pytest.mark.parametrize("batch", [1, 7, 1000])
    def test_batches_of_any_size_end_everything(
        self, manager: LockManager, remaining: Remaining, batch: int
    ) -> None:
        for number in range(50):
            manager.request(hold(f"a{number}", f"r{number % 5}"))
        assert manager.release_owner(WEB.owner, batch) == 50
        assert not remaining()

    def test_an_entry_whose_request_is_another_owners_is_only_dropped(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("a", "r", by=OTHER_WORKER))
        redis_client.sadd(keys.owner(WORKER.owner), "a", "gone")
        manager.release_owner(WORKER.owner)
        assert manager.registry(WORKER.owner) == set()
        assert manager.inspect_resource("r").holders[0].id == "a"


class TestForget:
    def test_of_a_process_that_holds_nothing_nothing_stays(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.beat(WORKER.owner, 30)
        manager.send(WORKER.owner, "cancel a")
        manager.retire(WORKER)
        manager.suspect(WORKER.owner)
        assert manager.forget_owner(WORKER.owner) == 0
        assert not redis_client.keys(f"{keys.base}*")

    def test_one_that_still_has_requests_is_kept(
        self, manager: LockManager, stored: Picture
    ) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        before = stored()
        assert manager.forget_owner(WEB.owner) == 2
        assert stored() == before

    def test_what_is_ready_is_offered_again(self, manager: LockManager) -> None:
        manager.request(task("a"))
        executor = Executor(manager)
        executor.lanes = ["default"]
        while executor.is_woken():
            pass
        manager.forget_owner(OTHER_WORKER.owner)
        assert executor.is_woken()

    def test_others_are_kept(self, manager: LockManager) -> None:
        manager.beat(WORKER.owner, 30)
        manager.beat(WEB.owner, 20)
        manager.forget_owner(WORKER.owner)
        assert manager.owners() == {WEB.owner: 20}


class TestForgetEntry:
    def test_one_whose_request_is_gone_is_dropped(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.sadd(keys.owner(WEB.owner), "gone")
        assert manager.forget_entry("gone", WEB.owner)
        assert manager.registry(WEB.owner) == set()

    def test_one_whose_request_is_another_owners_is_dropped_here_only(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("a", "r", by=OTHER_WORKER))
        redis_client.sadd(keys.owner(WEB.owner), "a")
        assert manager.forget_entry("a", WEB.owner)
        assert manager.registry(WEB.owner) == set()
        assert manager.registry(OTHER_WORKER.owner) == {"a"}

    def test_one_that_is_the_owners_stays(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r"))
        before = stored()
        assert not manager.forget_entry("a", WEB.owner)
        assert stored() == before


class TestSuspect:
    def test_it_tells_for_how_long_the_owner_has_been_one(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        seconds, ttl = manager.suspect(WEB.owner)
        assert (seconds, ttl) == (0, None)
        first_seen = redis_client.zscore(keys.suspects, WEB.owner)
        redis_client.zadd(keys.suspects, {WEB.owner: float(first_seen or 0) - 5000})
        seconds, _ = manager.suspect(WEB.owner)
        assert 5 <= seconds < 60

    def test_one_that_nobody_asked_about_for_a_month_is_forgotten(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.zadd(keys.suspects, {"long ago@1": 1_000_000_000_000})
        manager.suspect(WEB.owner)
        assert redis_client.zrange(keys.suspects, 0, -1) == [WEB.owner.encode()]

    def test_it_tells_the_ttl_that_the_owner_had(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        assert manager.suspect(WEB.owner)[1] == WEB.ttl


class TestRetire:
    def test_it_names_what_the_ended_executor_left(self, manager: LockManager) -> None:
        manager.request(task("a"))
        Executor(manager, WORKER).take()
        manager.request(hold("b", "r", by=WORKER))
        manager.request(hold("c", "r", by=WORKER))
        manager.request(hold("d", "s", by=Claimant(owner=WORKER.owner, slot="1.1", ttl=30)))
        manager.request(hold("e", "t", by=Claimant(owner=WORKER.owner, ttl=30)))
        manager.request(hold("f", "u", by=OTHER_WORKER))
        assert set(manager.retire(WORKER)) == {"a", "b", "c"}

    def test_it_names_what_earlier_generations_left_too(self, manager: LockManager) -> None:
        manager.request(hold("a", "r", by=WORKER))
        manager.retire(WORKER)
        second = Claimant(owner=WORKER.owner, slot="0.2", ttl=30)
        manager.request(hold("b", "s", by=second))
        assert set(manager.retire(second)) == {"a", "b"}

    def test_repeated_late_it_spares_the_successor(
        self, manager: LockManager, stored: Picture
    ) -> None:
        manager.retire(WORKER)
        second = Claimant(owner=WORKER.owner, slot="0.2", ttl=30)
        manager.request(hold("b", "s", by=second))
        before = stored()
        assert manager.retire(WORKER) == ()
        assert stored() == before
        assert isinstance(manager.request(hold("c", "t", by=second)), Grant)

    def test_it_ends_nothing(self, manager: LockManager) -> None:
        manager.request(hold("a", "r", by=WORKER))
        manager.retire(WORKER)
        assert manager.inspect_resource("r").holders[0].id == "a"

    def test_slot_ten_is_not_slot_one(self, manager: LockManager) -> None:
        ten = Claimant(owner=WORKER.owner, slot="10.1", ttl=30)
        one = Claimant(owner=WORKER.owner, slot="1.10", ttl=30)
        manager.request(hold("a", "r", by=ten))
        assert manager.retire(one) == ()
        assert isinstance(manager.request(hold("b", "s", by=ten)), Grant)

    def test_generations_are_compared_as_numbers(self, manager: LockManager) -> None:
        manager.retire(Claimant(owner=WORKER.owner, slot="0.9", ttl=30))
        tenth = Claimant(owner=WORKER.owner, slot="0.10", ttl=30)
        assert isinstance(manager.request(hold("a", "r", by=tenth)), Grant)
        assert set(manager.retire(Claimant(owner=WORKER.owner, slot="0.9", ttl=30))) == set()
        assert set(manager.retire(tenth)) == {"a"}


class TestLead:
    def test_one_process_does_a_job_at_a_time(self, manager: LockManager) -> None:
        assert manager.lead("clean-up", WORKER.owner, 60)
        assert not manager.lead("clean-up", OTHER_WORKER.owner, 60)
        assert not manager.lead("clean-up", WORKER.owner, 60)

    def test_each_job_has_its_own_leader(self, manager: LockManager) -> None:
        assert manager.lead("clean-up", WORKER.owner, 60)
        assert manager.lead("rebuild", OTHER_WORKER.owner, 60)

    def test_a_leader_that_dies_is_followed(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.lead("clean-up", WORKER.owner, 60)
        assert 0 < redis_client.pttl(keys.leader("clean-up")) <= 60_000
        manager.lead("rebuild", WORKER.owner, 0.001)
        while redis_client.exists(keys.leader("rebuild")):
            pass
        assert manager.lead("rebuild", OTHER_WORKER.owner, 60)

    def test_one_that_does_not_lead_any_more_leaves_its_successor_the_lead(
        self, manager: LockManager
    ) -> None:
        manager.lead("clean-up", WORKER.owner, 60)
        manager.end_lead("clean-up")
        manager.lead("clean-up", OTHER_WORKER.owner, 60)

        assert not manager.extend_lead("clean-up", WORKER.owner, 1)

        assert manager.lead_ends_in("clean-up") > 50

    def test_it_can_be_given_back(self, manager: LockManager) -> None:
        manager.lead("clean-up", WORKER.owner, 60)
        assert manager.extend_lead("clean-up", WORKER.owner, 0)
        assert manager.lead("clean-up", OTHER_WORKER.owner, 60)


class TestMessages:
    def test_they_arrive_in_order(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.send(WORKER.owner, "cancel a")
        manager.send(WORKER.owner, "cancel b")
        assert redis_client.lrange(keys.control(WORKER.owner), 0, -1) == [b"cancel a", b"cancel b"]

    def test_those_to_nobody_go_after_an_hour(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.send("gone@1", "cancel a")
        assert 0 < redis_client.ttl(keys.control("gone@1")) <= 3600


class TestKnown:
    def test_it_tells_which_ids_have_a_request(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        manager.request(hold("c", "s"))
        manager.release("c")
        assert manager.known(["a", "b", "c", "d"]) == {"a", "b"}
        assert manager.known([]) == set()
