"""release: ends a request whatever its state, and hands over to those that waited for it."""

from collections.abc import Callable

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimant, Claimed, Ended, Grant, Lane, Waiting
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]
Remaining = Callable[[], set[str]]


class TestEnd:
    def test_a_held_request_is_freed(self, manager: LockManager, remaining: Remaining) -> None:
        manager.request(hold("a", "r", shared=["s"]))
        assert manager.release("a") == Ended("done")
        assert not remaining()

    def test_a_grant_that_nobody_has_claimed_is_freed(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        manager.request(task("a", "r", shared=["s"]))
        assert manager.release("a") == Ended("done")
        assert not remaining()

    def test_a_waiter_leaves_the_queue(self, manager: LockManager, remaining: Remaining) -> None:
        manager.request(task("a", "r", "s"))
        manager.request(task("b", "r", shared=["s"]))
        assert manager.release("b") == Ended("done")
        assert manager.release("a") == Ended("done")
        assert not remaining()

    def test_a_claimed_request_leaves_its_slot(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        assert manager.release("a", owner=WORKER.owner, token=claimed.token) == Ended("done")
        assert not remaining()

    def test_released_again_it_is_unknown(self, manager: LockManager, stored: Picture) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        assert manager.release("a") == Ended("done", ("b",))
        before = stored()
        assert manager.release("a") == Ended("unknown")
        assert stored() == before

    def test_what_was_never_there_is_unknown(self, manager: LockManager, stored: Picture) -> None:
        assert manager.release("a") == Ended("unknown")
        assert manager.release("a", owner=WEB.owner, token=1) == Ended("unknown")
        assert not stored()


class TestRefused:
    def test_the_wrong_owner_changes_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "r"))
        before = stored()
        assert manager.release("a", owner=OTHER_WORKER.owner) == Ended("refused")
        assert stored() == before

    def test_the_wrong_token_changes_nothing(self, manager: LockManager, stored: Picture) -> None:
        grant = manager.request(hold("a", "r"))
        assert isinstance(grant, Grant)
        before = stored()
        for token in (0, (grant.token or 0) + 1):
            assert manager.release("a", owner=WEB.owner, token=token) == Ended("refused")
        assert stored() == before

    def test_a_token_does_not_fit_what_nobody_has_claimed(
        self, manager: LockManager, stored: Picture
    ) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        before = stored()
        assert manager.release("a", token=1) == Ended("refused")
        assert manager.release("b", token=1) == Ended("refused")
        assert stored() == before

    def test_the_queue_that_gave_a_task_away_may_not_end_it(
        self, manager: LockManager, stored: Picture
    ) -> None:
        manager.request(task("a", "r"))
        Executor(manager).take()
        before = stored()
        assert manager.release("a", owner="queue/default") == Ended("refused")
        assert stored() == before

    def test_an_owner_without_a_token_does_not_end_a_task_that_its_executor_has_claimed(
        self, manager: LockManager, stored: Picture
    ) -> None:
        """It means the request that it made itself, not what a worker's slot was given since."""
        manager.request(task("a", "r"))
        Executor(manager).take()
        before = stored()
        assert manager.release("a", owner=WORKER.owner) == Ended("refused")
        assert stored() == before

    def test_an_owner_without_a_token_ends_its_own_hold(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        assert manager.release("b", owner=WEB.owner) == Ended("done")
        assert manager.release("a", owner=WEB.owner) == Ended("done")

    def test_L27_a_late_finish_does_not_free_the_lock_of_the_successor(
        self, manager: LockManager
    ) -> None:
        """The worker was declared missing, its task was requeued, and another worker runs it."""
        manager.request(task("a", "r"))
        first = Executor(manager).take()
        manager.close_owner(WORKER.owner)
        manager.requeue("a", owner=WORKER.owner, token=first.token)
        second = Executor(manager, OTHER_WORKER).take()
        assert (second.id, second.token > first.token) == ("a", True)
        late = manager.release("a", owner=WORKER.owner, token=first.token)
        assert late == Ended("refused")
        assert manager.inspect_resource("r").holders[0].owner == OTHER_WORKER.owner

    def test_L27_a_late_finish_does_not_free_the_lock_of_the_next_task(
        self, manager: LockManager
    ) -> None:
        """The worker was declared missing, its task was failed, and the next one has the lock."""
        manager.request(task("a", "r"))
        first = Executor(manager).take()
        manager.request(task("b", "r"))
        manager.close_owner(WORKER.owner)
        manager.release_owner(WORKER.owner)
        Executor(manager, OTHER_WORKER).take()
        late = manager.release("a", owner=WORKER.owner, token=first.token)
        assert late == Ended("unknown")
        assert manager.inspect_resource("r").holders[0].id == "b"

    def test_a_token_of_an_earlier_run_of_the_same_owner_is_refused(
        self, manager: LockManager
    ) -> None:
        manager.request(task("a", "r"))
        executor = Executor(manager)
        first = executor.take()
        manager.requeue("a", owner=WORKER.owner, token=first.token)
        second = executor.take()
        assert manager.release("a", owner=WORKER.owner, token=first.token) == Ended("refused")
        assert manager.release("a", owner=WORKER.owner, token=second.token) == Ended("done")


class TestHandOver:
    def test_the_first_writer_is_next(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(task("writer1", "r"))
        manager.request(task("writer2", "r"))
        manager.request(task("reader", shared=["r"]))
        assert manager.release("a") == Ended("done", ("writer1",))

    def test_all_readers_before_the_next_writer_come_together(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        for id in ("reader1", "reader2"):
            manager.request(task(id, shared=["r"]))
        manager.request(task("writer", "r"))
        manager.request(task("reader3", shared=["r"]))
        assert manager.release("a") == Ended("done", ("reader1", "reader2"))
        assert manager.release("reader1") == Ended("done")
        assert manager.release("reader2") == Ended("done", ("writer",))
        assert manager.release("writer") == Ended("done", ("reader3",))

    def test_a_writer_that_gives_up_lets_the_readers_behind_it_in(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("reader", shared=["r"]))
        manager.request(task("writer", "r"))
        manager.request(task("reader1", shared=["r"]))
        manager.request(task("reader2", shared=["r"]))
        manager.request(task("last", "r"))
        assert manager.release("writer") == Ended("done", ("reader1", "reader2"))

    def test_a_reader_that_gives_up_lets_the_writer_behind_it_in(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("busy", "s"))
        manager.request(task("reader", shared=["r", "s"]))
        manager.request(task("writer", "r"))
        assert manager.release("reader") == Ended("done", ("writer",))

    def test_waiters_of_several_resources_come_in_the_order_of_their_scores(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("all", "r1", "r2", "r3"))
        manager.request(task("low", "r1", priority=-1))
        manager.request(task("first", "r3"))
        manager.request(task("second", "r2"))
        manager.request(task("high", shared=["r2"], priority=1))
        assert manager.release("all") == Ended("done", ("high", "first", "low"))

    def test_who_still_lacks_a_resource_goes_on_waiting(self, manager: LockManager) -> None:
        manager.request(hold("a", "r1"))
        manager.request(hold("b", "r2"))
        manager.request(task("both", "r1", "r2"))
        manager.request(task("late", "r1"))
        assert manager.release("a") == Ended("done")
        assert manager.release("b") == Ended("done", ("both",))

    def test_a_reader_of_two_does_not_overtake_the_writer_of_one_of_them(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("a", "r1"))
        manager.request(hold("reader", shared=["r2"]))
        manager.request(task("writer", "r2"))
        manager.request(task("both", shared=["r1", "r2"]))
        assert manager.release("a") == Ended("done")
        assert manager.release("reader") == Ended("done", ("writer",))
        assert manager.release("writer") == Ended("done", ("both",))

    def test_a_writer_of_two_does_not_overtake_the_readers_of_one_of_them(
        self, manager: LockManager
    ) -> None:
        manager.request(hold("a", "r1", "r3"))
        manager.request(task("reader", shared=["r2", "r3"]))
        manager.request(task("both", "r1", "r2"))
        manager.request(hold("b", "r3", priority=1))
        assert manager.release("a") == Ended("done", ("b",))
        assert manager.release("b") == Ended("done", ("reader",))
        assert manager.release("reader") == Ended("done", ("both",))

    def test_it_crosses_queues(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(task("b", "r", lane=Lane(queue="other")))
        assert manager.release("a") == Ended("done", ("b",))
        assert Executor(manager, queues=["other"]).take().id == "b"

    def test_a_hundred_readers_at_once(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        ids = tuple(f"reader{number:03}" for number in range(100))
        for id in ids:
            manager.request(task(id, shared=["r"]))
        assert manager.release("a") == Ended("done", ids)

    def test_those_handed_over_to_can_be_claimed_at_once(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        assert manager.request(task("b", "r")) == Waiting("b")
        executor = Executor(manager)
        executor.claim()
        while executor.is_woken():
            pass
        manager.release("a")
        assert executor.is_woken()
        assert isinstance(executor.claim(), Claimed)


class TestLocksThatAreNotOursAnyMore:
    """An operator deleted a lock, or something else took its key: what is not ours stays."""

    def test_a_successors_lock_is_left_alone(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("a", "r", "s"))
        redis_client.delete(keys.lock("r"))
        manager.request(hold("b", "r"))
        assert manager.release("a") == Ended("done")
        assert manager.inspect_resource("r").holders[0].id == "b"
        assert manager.inspect_resource("s").mode == ""

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    def test_a_foreign_value_in_one_lock_leaves_the_rest_free(
        self, manager: LockManager, redis_client: Redis, keys: Keys, mode: str
    ) -> None:
        names = ("r1", "r2", "r3")
        manager.request(hold("a", *names) if mode == "exclusive" else hold("a", shared=names))
        redis_client.delete(keys.lock("r2"))
        redis_client.rpush(keys.lock("r2"), "not ours")
        assert manager.release("a") == Ended("done")
        assert manager.inspect_request("a") is None
        assert redis_client.exists(keys.lock("r1"), keys.lock("r3")) == 0
        assert redis_client.lrange(keys.lock("r2"), 0, -1) == [b"not ours"]


class TestWhatMustNotBeHandedOver:
    def test_a_hold_of_a_process_declared_missing_is_not_granted(
        self, manager: LockManager
    ) -> None:
        """Its code would start beside that of the next one, when its locks are released."""
        gone = Claimant(owner="gone@1", ttl=30)
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r", by=gone))
        manager.request(task("c", "r"))
        manager.close_owner(gone.owner)
        assert manager.release("a") == Ended("done")
        assert manager.wait_for_grant("b", 0.01) is None
        assert manager.release_owner(gone.owner) == 1
        found = manager.inspect_request("c")
        assert found is not None
        assert found.state == "granted"


class TestLockThatAnOperatorDeleted:
    @pytest.fixture
    def lost(self, manager: LockManager, redis_client: Redis, keys: Keys) -> LockManager:
        """A lock with a holder and a waiter, deleted by hand, then taken by somebody else."""
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        redis_client.delete(keys.lock("r"))
        manager.request(hold("c", "r"))
        return manager

    def test_who_asks_again_is_granted_when_it_is_free(self, lost: LockManager) -> None:
        lost.release("a")
        lost.release("c")
        assert isinstance(lost.request(hold("b", "r")), Grant)

    def test_who_asks_again_stops_others_from_passing(self, lost: LockManager) -> None:
        assert lost.request(hold("b", "r")) == Waiting("b")
        assert lost.request(hold("d", "r")) == Waiting("d")
        lost.release("a")
        assert lost.release("c") == Ended("done", ("b",))

    def test_the_holder_from_before_frees_nothing_of_the_new_one(self, lost: LockManager) -> None:
        lost.release("a")
        assert lost.inspect_resource("r").holders[0].id == "c"


class TestSharedLockThatAnOperatorDeleted:
    @pytest.fixture
    def lost(self, manager: LockManager, redis_client: Redis, keys: Keys) -> LockManager:
        """One with a holder and a waiter, in a process that has taken locks before."""
        manager.request(hold("before", "x"))
        manager.request(hold("a", shared=["r"]))
        manager.request(hold("w", "r"))
        redis_client.delete(keys.lock("r"))
        return manager

    def test_nobody_passes_the_waiter(self, lost: LockManager) -> None:
        assert lost.request(hold("b", shared=["r"])) == Waiting("b")

    def test_who_waits_behind_an_exclusive_holder_is_not_forgotten(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("before", "x"))
        manager.request(hold("a", "r"))
        manager.request(hold("w", shared=["r"]))
        redis_client.delete(keys.lock("r"))
        assert isinstance(manager.request(hold("b", shared=["r"])), Grant)
        assert manager.release("b") == Ended("done")
        assert manager.release("a") == Ended("done", ("w",))


class TestFromHoldToHold:
    """The usual hand-over of one resource, which takes fewer commands than others."""

    def test_each_in_turn_and_nothing_is_left(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        for name in "abc":
            manager.request(hold(name, "r"))
        assert manager.release("a", owner=WEB.owner) == Ended("done", ("b",))
        assert manager.request(hold("d", "r")) == Waiting("d")
        assert manager.release("b") == Ended("done", ("c",))
        assert manager.release("c") == Ended("done", ("d",))
        assert manager.release("d") == Ended("done")
        assert remaining() == set()

    def test_the_news_come_with_the_token_by_which_it_is_held(self, manager: LockManager) -> None:
        before = manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        manager.release("a")
        grant = manager.wait_for_grant("b", 1)
        assert grant == manager.request(hold("b", "r"))
        assert isinstance(before, Grant)
        assert grant is not None
        assert (grant.token or 0) > (before.token or 0)

    @pytest.mark.parametrize(
        "waiter",
        [
            task("b", "r"),
            hold("b", "r", "s"),
            hold("b", "r", shared=["s"]),
            hold("b", shared=["r"]),
        ],
    )
    def test_whoever_else_is_next_is_granted_too(
        self, manager: LockManager, waiter: LockRequest
    ) -> None:
        manager.request(hold("a", "r"))
        manager.request(waiter)
        manager.request(hold("c", "r"))
        assert manager.release("a") == Ended("done", ("b",))
        assert manager.release("b") == Ended("done", ("c",))


def test_news_of_a_grant_whose_record_was_deleted_are_not_those_of_the_next(
    manager: LockManager, redis_client: Redis, keys: Keys
) -> None:
    manager.request(hold("a", "r"))
    manager.request(hold("b", "r"))
    manager.release("a")
    redis_client.delete(keys.request("b"), keys.lock("r"))
    manager.request(hold("c", "r"))
    manager.request(hold("b", "r"))
    assert manager.wait_for_grant("b", 0.01) is None
