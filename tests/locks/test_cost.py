"""What an operation costs the server: it depends on its own resources and on nothing else."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Lane
from tests.locks.support import WEB, WORKER, Executor, hold, request_all, task

FEW, MANY = 100, 50_000
FAR_AWAY = 10_000_000_000


def crowd(manager: LockManager, first: int, last: int) -> None:
    """Foreign requests: half of them hold or are granted a resource of their own, half wait; and
    some that are not due yet.
    """
    request_all(
        manager,
        (
            task(f"later-{number}", f"foreign-{number}", run_after=FAR_AWAY)
            for number in range(first, last, 10)
        ),
    )
    request_all(
        manager,
        (task(f"foreign-{number}", f"foreign-{number // 2}") for number in range(first, last)),
    )


def commands(client: Redis) -> dict[str, int]:
    stats = client.info("commandstats")
    ignored = {"cmdstat_info", "cmdstat_config|resetstat"}
    return {name: value["calls"] for name, value in stats.items() if name not in ignored}


def operations(manager: LockManager) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each operation once, on requests of its own, in an order in which each has its effect."""
    # Foreign grants are ready in the lane of another queue.
    executor = Executor(manager, queues=["own"])
    own = [task(f"own-{n}", "a", "b", shared=["c"], lane=Lane(queue="own")) for n in range(2)]
    executor.claim()
    yield "claim of nothing", executor.claim
    yield "request granted", lambda: manager.request(own[0])
    yield "request queued", lambda: manager.request(own[1])
    yield "request blocked", lambda: manager.try_request(hold("try", "a"))
    yield "inspect request", lambda: manager.inspect_request("own-1")
    yield "inspect resource", lambda: manager.inspect_resource("a")
    executor.claim()
    yield "claim again", executor.claim
    first = executor.take()
    yield "requeue", lambda: manager.requeue("own-0", owner=WORKER.owner, token=first.token)
    claimed = executor.take()
    yield "advance", lambda: executor.advance(claimed)
    yield "retire", lambda: manager.retire(WORKER)
    yield "release", lambda: manager.release("own-1")
    yield "hold", lambda: manager.request(hold("held", "h1", "h2"))
    yield "request later", lambda: manager.request(task("due", "a", run_after=FAR_AWAY + 1))
    yield "release later", lambda: manager.release("due")
    yield "beat", lambda: manager.beat(WEB.owner, 30)
    yield "close owner", lambda: manager.close_owner(WEB.owner)
    yield "release owner", lambda: manager.release_owner(WEB.owner)
    yield "forget owner", lambda: manager.forget_owner(WEB.owner)
    yield "settle", manager.settle


def measured(manager: LockManager) -> dict[str, dict[str, int]]:
    found = {}
    for name, operate in operations(manager):
        manager.client.config_resetstat()
        operate()
        found[name] = commands(manager.client)
    manager.release_owner(WORKER.owner)
    manager.client.zrem(manager.keys.closed, WEB.owner)
    manager.client.delete(manager.keys.slot(WORKER.owner))
    return found


@pytest.mark.slow
def test_no_operation_costs_more_among_many_foreign_requests(manager: LockManager) -> None:
    crowd(manager, 0, FEW)
    measured(manager)  # loads the scripts
    among_few = measured(manager)
    crowd(manager, FEW, MANY)
    among_many = measured(manager)
    assert among_many == among_few
    assert not any("scan" in name or name.endswith("keys") for name in among_many["release owner"])


def test_a_release_costs_in_proportion_to_its_own_resources(manager: LockManager) -> None:
    def cost(count: int) -> int:
        manager.request(hold("h", *(f"r{n}" for n in range(count))))
        manager.client.config_resetstat()
        manager.release("h")
        return sum(commands(manager.client).values())

    cost(1)
    small, large = cost(10), cost(1000)
    assert large < small * 110
