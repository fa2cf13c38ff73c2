"""L18: many workers die and restart at once, on a server that is full of other locks."""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus
from django_task_locks.recovery import clean_up
from tests.factories import AppStatusFactory
from tests.locks.support import request_all
from tests.support.many_owners import LOCKS, leave_dead, resource, restart

FEW, MANY = 10, 150
FOREIGN = 50_000

# What a client sends for each connection.
OF_CONNECTIONS = {"client|setinfo", "client|maint_notifications", "hello", "auth", "select"}

pytestmark = [pytest.mark.slow]


@pytest.fixture
def foreign(locks: LockManager) -> AppStatus:
    """A process that lives and holds very many locks."""
    status = AppStatusFactory.create(name="foreign", ttl=timedelta(hours=1))
    claimant = Claimant(owner=status.owner, ttl=3600)
    request_all(
        locks,
        (
            LockRequest(id=f"foreign-{number}", exclusive=(f"foreign-{number}",), claimant=claimant)
            for number in range(FOREIGN)
        ),
    )
    return status


def commands(locks: LockManager, run: Callable[[], object]) -> dict[str, int]:
    """What the server did meanwhile, inside of scripts too."""
    locks.client.config_resetstat()
    run()
    stats: dict[str, Any] = locks.client.info("commandstats")
    found = {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}
    ignored = {"info", "config|resetstat", *OF_CONNECTIONS}
    return {name: calls for name, calls in found.items() if name not in ignored}


def cost_of_each(few: dict[str, int], many: dict[str, int]) -> dict[str, float]:
    """By the difference: what a round costs by itself is in both."""
    names = sorted(few | many)
    return {
        name: (many.get(name, 0) - few.get(name, 0)) / (MANY - FEW)
        for name in names
        if many.get(name, 0) != few.get(name, 0)
    }


def assert_is_constant(few: dict[str, int], many: dict[str, int]) -> dict[str, float]:
    """Each owner costs the same, among few and among many, and nothing looks at all keys."""
    each = cost_of_each(few, many)
    assert all(number == int(number) for number in each.values()), each
    base = {name: few[name] - each.get(name, 0) * FEW for name in few}
    assert all(0 <= calls <= 10 for calls in base.values()), base
    assert not {"scan", "keys"} & {*few, *many}
    return each


def assert_all_is_free(locks: LockManager, foreign: AppStatus, count: int) -> None:
    for number in range(count):
        names = [resource(number, lock) for lock in range(LOCKS)]
        assert not any(locks.inspect_resource(name).holder_count for name in names)
    assert AppStatus.objects.get() == foreign
    assert locks.client.scard(locks.keys.owner(foreign.owner)) == FOREIGN


def shown(what: str, seconds: float, each: dict[str, float]) -> str:
    listed = ", ".join(f"{name} {number:g}" for name, number in each.items())
    return f"\n{what}: {seconds:.1f} s; Redis commands of each of {MANY}: {listed}"


def test_L18_restarted_at_once_each_cleans_up_after_itself_alone(
    locks: LockManager, foreign: AppStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    """L18: 150 owners with 5 locks each are killed, and all restart together beside 50,000 locks of
    others: constant work for each, and no look at all keys."""
    cost = {}
    for count in (1, FEW, MANY):  # the first loads the scripts
        leave_dead(count)
        done: Any = None

        def run(count: int = count) -> None:
            nonlocal done
            done = restart(count)

        cost[count] = commands(locks, run)
        assert done.statuses == [0] * count
        assert_all_is_free(locks, foreign, count)
    each = assert_is_constant(cost[FEW], cost[MANY])
    with capsys.disabled():
        sys.stdout.write(shown("restart under the same name", done.seconds, each))
    assert done.seconds < 60


def test_L18_declared_missing_each_costs_the_same(
    locks: LockManager, foreign: AppStatus, capsys: pytest.CaptureFixture[str]
) -> None:
    """L18: the same owners, if nobody restarts and another process cleans up after all of them."""
    cost = {}
    for count in (1, FEW, MANY):
        leave_dead(count)
        long_ago = timezone.now() - timedelta(hours=1)
        AppStatus.objects.exclude(pk=foreign.pk).update(last_heartbeat=long_ago)
        began = timezone.now()
        cost[count] = commands(locks, clean_up)
        seconds = (timezone.now() - began).total_seconds()
        assert_all_is_free(locks, foreign, count)
    each = assert_is_constant(cost[FEW], cost[MANY])
    with capsys.disabled():
        sys.stdout.write(shown("one round of clean-up", seconds, each))
    assert seconds < 60
