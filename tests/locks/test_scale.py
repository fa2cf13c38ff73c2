"""Large requests and long queues: what is allowed works, and no call does more than it may."""

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Ended, Grant, Waiting
from django_task_locks.locks.resources import MAX_RESOURCES
from django_task_locks.locks.scripts import BATCH
from tests.locks.support import Executor, hold, request_all, task

pytestmark = pytest.mark.slow

WAITERS = 100_000


def names(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"r{number}" for number in range(first, last))


class TestTenThousandResources:
    @pytest.fixture(params=["exclusive", "shared", "both"])
    def large(self, request: pytest.FixtureRequest) -> LockRequest:
        counts = {"exclusive": MAX_RESOURCES, "shared": 0, "both": MAX_RESOURCES // 2}
        exclusive = counts[request.param]
        return task("large", *names(0, exclusive), shared=names(exclusive, MAX_RESOURCES))

    def test_it_runs_through_every_state(
        self, manager: LockManager, redis_client: Redis, large: LockRequest
    ) -> None:
        last = f"r{MAX_RESOURCES - 1}"
        manager.request(hold("in the way", last))
        assert manager.request(large) == Waiting("large")
        assert manager.release("in the way") == Ended("done", ("large",))
        executor = Executor(manager)
        claimed = executor.take()
        manager.requeue("large", owner=executor.claimant.owner, token=claimed.token)
        claimed = executor.take()
        assert manager.request(hold("behind", last)) == Waiting("behind")
        assert manager.release("large", token=claimed.token) == Ended("done", ("behind",))
        manager.release("behind")
        assert not [key for key in list(redis_client.keys()) if b"lock:" in key or b"wait:" in key]

    def test_without_anything_in_its_way_it_is_granted_at_once(
        self, manager: LockManager, large: LockRequest
    ) -> None:
        assert manager.request(large) == Grant("large", None)
        assert manager.release("large").is_done


class TestAHundredThousandWaiters:
    def test_exclusive_ones_are_served_in_their_order(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(hold("first", "r"))
        request_all(manager, (task(f"t{number}", "r") for number in range(WAITERS)))
        assert manager.inspect_resource("r").exclusive_waiter_count == WAITERS
        assert manager.release("first").granted == ("t0",)
        executor = Executor(manager)
        claimed = executor.take()
        for number in range(1, 200):
            following = executor.advance(claimed)
            assert following.id == f"t{number}"  # type: ignore[union-attr]
            claimed = following  # type: ignore[assignment]

    def test_shared_ones_are_all_granted_in_bounded_calls(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        manager.request(hold("writer", "r"))
        request_all(manager, (task(f"t{number}", shared=["r"]) for number in range(WAITERS)))
        redis_client.config_resetstat()
        ended = manager.release("writer")
        assert ended.granted == tuple(f"t{number}" for number in range(WAITERS))
        calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls >= WAITERS / BATCH

    def test_the_last_in_the_queue_costs_no_more_than_the_first(
        self, manager: LockManager, redis_client: Redis
    ) -> None:
        def commands() -> int:
            stats = redis_client.info("commandstats")
            return sum(value["calls"] for name, value in stats.items() if "info" not in name)

        def cost(id: str) -> int:
            redis_client.config_resetstat()
            manager.request(task(id, "r"))
            manager.inspect_request(id)
            manager.release(id)
            return commands()

        manager.request(hold("first", "r"))
        request_all(manager, [task("t", "r")])
        cost("loads the scripts")
        among_few = cost("one")
        request_all(manager, (task(f"t{number}", "r") for number in range(WAITERS)))
        assert cost("one") == among_few


class TestSendingBack:
    def test_each_unclaimed_grant_is_looked_at_once_however_much_they_share(
        self, manager: LockManager
    ) -> None:
        """Once for each of its resources, two hundred readers of two hundred resources would be
        forty thousand looks.
        """
        shared = names(0, 200)
        readers = [task(f"low{number}", shared=shared, priority=-1) for number in range(200)]
        request_all(manager, readers)
        manager.client.config_resetstat()
        assert manager.request(task("high", *shared)) == Grant("high", None)
        stats = manager.client.info("commandstats")
        assert stats["cmdstat_get"]["calls"] < 200 * 200 * 3
        assert stats["cmdstat_smembers"]["calls"] == 200
        states = {manager.inspect_request(request.id).state for request in readers}  # type: ignore[union-attr]
        assert states == {"waiting"}
        assert set(manager.release("high").granted) == {request.id for request in readers}

    def test_one_large_grant_goes_back_and_leaves_nothing_in_the_way(
        self, manager: LockManager
    ) -> None:
        manager.request(task("low", *names(0, 2000), priority=-1))
        assert manager.request(task("high", *names(0, 2000))) == Grant("high", None)
        assert manager.release("high") == Ended("done", ("low",))

    def test_urgent_work_passes_all_that_nobody_has_claimed(self, manager: LockManager) -> None:
        readers = [task(f"low{number}", shared=names(0, 6), priority=-1) for number in range(170)]
        request_all(manager, readers)
        assert manager.request(task("urgent", *names(0, 6), priority=100)) == Grant("urgent", None)
