"""run_after: a request whose time is still to come takes no place in any queue."""

import time
from collections.abc import Callable

import pytest
from redis import Redis

from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimed, Due, Ended, Grant, Idle, Lane, Waiting
from tests.locks.conftest import PREFIX
from tests.locks.snapshot import Value, snapshot
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]

FAR_AWAY = 10_000_000_000.0


def make_due(client: Redis, *ids: str) -> None:
    """Their time comes, in this order."""
    client.zadd(Keys(PREFIX).due, {id: position for position, id in enumerate(ids, 1)})


def state(manager: LockManager, id: str) -> str:
    found = manager.inspect_request(id)
    assert found is not None
    return found.state


class TestBeforeItsTime:
    def test_it_is_neither_granted_nor_in_the_way(
        self, manager: LockManager, remaining: Callable[[], set[str]], keys: Keys
    ) -> None:
        assert manager.request(task("a", "r", shared=["s"], run_after=FAR_AWAY)) == Due("a")
        assert remaining() == {keys.request("a"), keys.owner("queue/default"), keys.due}
        assert isinstance(manager.request(hold("b", "r", "s")), Grant)

    def test_it_can_be_looked_at(self, manager: LockManager) -> None:
        manager.request(task("a", "r", priority=5, run_after=FAR_AWAY))
        found = manager.inspect_request("a")
        assert found is not None
        assert (found.state, found.owner, found.token) == ("due", "queue/default", None)
        assert (found.exclusive, found.run_after, found.blockers) == (("r",), FAR_AWAY, ())
        assert manager.known(["a", "b"]) == {"a"}
        assert manager.registry("queue/default") == {"a"}

    def test_it_is_asked_for_once(self, manager: LockManager, stored: Picture) -> None:
        manager.request(task("a", "r", run_after=FAR_AWAY))
        before = stored()
        assert manager.request(task("a", "r", run_after=FAR_AWAY + 1)) == Due("a")
        assert manager.request(task("a", "r")) == Due("a")
        assert {**stored(), manager.keys.seq: ""} == {**before, manager.keys.seq: ""}

    def test_it_is_released_without_a_trace(
        self, manager: LockManager, remaining: Callable[[], set[str]]
    ) -> None:
        manager.request(task("a", "r", shared=["s"], run_after=FAR_AWAY))
        assert manager.release("a", owner="queue/default") == Ended("done")
        assert remaining() == set()

    def test_it_goes_with_its_owner(
        self, manager: LockManager, remaining: Callable[[], set[str]]
    ) -> None:
        for id in "abc":
            manager.request(task(id, "r", run_after=FAR_AWAY))
        assert manager.release_owner("queue/default", 2) == 3
        assert remaining() == set()

    def test_nobody_is_given_it(self, manager: LockManager) -> None:
        manager.request(task("a", "r", run_after=FAR_AWAY))
        reply = Executor(manager).claim()
        assert isinstance(reply, Idle)
        assert reply.next_due_in == pytest.approx(FAR_AWAY - time.time(), abs=60)


class TestItsTime:
    def test_that_has_passed_is_no_time(self, manager: LockManager) -> None:
        assert manager.request(task("a", "r", run_after=time.time() - 60)) == Grant("a", None)
        assert manager.request(task("b", "r", run_after=0)) == Waiting("b")

    def test_comes_with_the_next_claim(self, manager: LockManager) -> None:
        manager.request(task("a", "r", run_after=time.time() + 0.1))
        executor = Executor(manager)
        reply = executor.claim()
        assert isinstance(reply, Idle)
        assert reply.next_due_in
        assert reply.next_due_in <= 0.101
        time.sleep(reply.next_due_in)
        assert executor.take().id == "a"

    def test_comes_with_the_next_advance(self, manager: LockManager, redis_client: Redis) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r", run_after=FAR_AWAY))
        executor = Executor(manager)
        claimed = executor.take()
        make_due(redis_client, "b")
        assert executor.advance(claimed) == Claimed("b", claimed.token + 2)

    def test_comes_with_a_beat_where_all_are_busy(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("a", "r", run_after=FAR_AWAY))
        make_due(redis_client, "a")
        manager.beat(WEB.owner, 30)
        assert state(manager, "a") == "granted"
        executor = Executor(manager)
        executor.claim()
        manager.release("a")
        assert redis_client.zcard(manager.keys.due) == 0

    def test_gives_it_the_place_of_one_that_is_new(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("early", "r", run_after=FAR_AWAY))
        manager.request(hold("a", "r"))
        manager.request(task("b", "r"))
        make_due(redis_client, "early")
        manager.beat(WEB.owner, 30)
        manager.request(task("c", "r"))
        assert manager.release("a") == Ended("done", ("b",))
        assert manager.release("b") == Ended("done", ("early",))
        assert manager.release("early") == Ended("done", ("c",))

    def test_lets_a_higher_priority_send_back_what_nobody_has_claimed(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("high", "r", priority=1, run_after=FAR_AWAY))
        manager.request(task("low", "r"))
        make_due(redis_client, "high")
        assert Executor(manager).take().id == "high"
        assert state(manager, "low") == "waiting"

    def test_comes_in_the_order_of_the_times(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        for id in "abc":
            manager.request(task(id, "r", run_after=FAR_AWAY))
        make_due(redis_client, "b", "c", "a")
        manager.beat(WEB.owner, 30)
        assert state(manager, "b") == "granted"
        assert manager.release("b") == Ended("done", ("c",))

    def test_comes_for_a_bounded_number_a_call(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        ids = [f"{number:03}" for number in range(250)]
        for id in ids:
            manager.request(task(id, run_after=FAR_AWAY, lane=Lane(queue="other")))
        make_due(redis_client, *ids)
        executor = Executor(manager)
        assert [executor.claim(), executor.claim()] == [Idle(0.0), Idle(0.0)]
        assert redis_client.zcard(manager.keys.due) == 50
        assert executor.claim() == Idle()

    def test_is_later_for_one_that_a_foreign_value_keeps_out(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        """It holds up nobody else, and is looked at again."""
        for id, resource in (("a", "bad"), ("b", "good")):
            manager.request(task(id, resource, run_after=FAR_AWAY))
        make_due(redis_client, "a", "b")
        redis_client.lpush(manager.keys.lock("bad"), "not ours")
        executor = Executor(manager)
        assert executor.take().id == "b"
        assert state(manager, "a") == "due"
        redis_client.delete(manager.keys.lock("bad"))
        make_due(redis_client, "a")
        assert Executor(manager, OTHER_WORKER).take().id == "a"


class TestWakeUp:
    def test_an_idle_executor_hears_of_a_new_first_one(self, manager: LockManager) -> None:
        executor = Executor(manager)
        manager.request(task("other"))
        executor.advance(executor.take())
        while executor.is_woken():
            pass
        manager.request(task("a", "r", lane=Lane(queue="elsewhere"), run_after=FAR_AWAY))
        assert executor.is_woken()
        executor.claim()
        while executor.is_woken():
            pass
        manager.request(task("b", "r", lane=Lane(queue="elsewhere"), run_after=FAR_AWAY + 1))
        assert not executor.is_woken()
        manager.request(task("c", "r", lane=Lane(queue="elsewhere"), run_after=FAR_AWAY - 1))
        assert executor.is_woken()

    def test_whoever_becomes_busy_hands_the_watch_on(self, manager: LockManager) -> None:
        first, second = Executor(manager), Executor(manager, OTHER_WORKER)
        manager.request(task("later", run_after=FAR_AWAY))
        for executor in (first, second):
            executor.claim()
        while second.is_woken():
            pass
        manager.request(task("now"))
        first.take()
        assert second.is_woken()


class TestRequeue:
    def test_a_claimed_one_is_handed_back_for_later(
        self, manager: LockManager, redis_client: Redis, remaining: Callable[[], set[str]]
    ) -> None:
        """Its locks are free, and who waited is granted."""
        manager.request(task("a", "r", shared=["s"], priority=3))
        claimed = Executor(manager).take()
        manager.request(task("b", "r"))
        assert manager.requeue(
            "a", owner=WORKER.owner, token=claimed.token, run_after=FAR_AWAY
        ) == Ended("done", ("b",))
        assert state(manager, "a") == "due"
        manager.release("b")
        keys = manager.keys
        assert remaining() == {keys.request("a"), keys.owner("queue/default"), keys.due}
        make_due(redis_client, "a")
        assert Executor(manager).take().token > claimed.token

    def test_a_repeated_call_changes_nothing(self, manager: LockManager, stored: Picture) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        manager.requeue("a", owner=WORKER.owner, token=claimed.token, run_after=FAR_AWAY)
        before = stored()
        assert manager.requeue(
            "a", owner=WORKER.owner, token=claimed.token, run_after=FAR_AWAY
        ) == Ended("refused")
        assert stored() == before

    def test_its_place_is_lost_with_its_arrival(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        manager.requeue("a", owner=WORKER.owner, token=claimed.token, run_after=FAR_AWAY)
        manager.request(task("b", "r"))
        make_due(redis_client, "a")
        assert Executor(manager).take().id == "b"

    def test_a_time_that_has_passed_is_none(self, manager: LockManager) -> None:
        manager.request(task("a", "r"))
        claimed = Executor(manager).take()
        assert manager.requeue(
            "a", owner=WORKER.owner, token=claimed.token, run_after=1.5
        ) == Ended("done", ("a",))


class TestRefused:
    @pytest.mark.parametrize("moment", [-1, 1e15, float("nan"), float("inf")])
    def test_a_time_that_is_none(self, moment: float) -> None:
        with pytest.raises(InvalidTask, match="run_after"):
            task("a", run_after=moment)

    def test_a_process_that_would_hold_later(self) -> None:
        with pytest.raises(InvalidTask, match="at once"):
            LockRequest(id="a", claimant=WEB, run_after=FAR_AWAY)

    def test_a_try_for_later(self, manager: LockManager, redis_client: Redis) -> None:
        with pytest.raises(InvalidTask, match="run_after"):
            manager.try_request(task("a", run_after=FAR_AWAY))
        assert snapshot(redis_client, PREFIX) == {}
