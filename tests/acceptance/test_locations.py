"""Real workers whose locks are elsewhere than by a plain URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from django_task_locks import cancel_task, dispatch, presence
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.support.locations import BY_SENTINEL, LOCATIONS, Location, by_sentinel
from tests.support.processes import Workers, wait_for_state
from tests.support.redis_state import assert_nothing_is_left
from tests.support.sentinel import SentinelGroup
from tests.support.services import Services
from tests.testapp import tasks


def lead_to(location: Location, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    location.put_into(settings)
    location.put_into_environment(monkeypatch)


@pytest.mark.parametrize(
    "name",
    ["URL with a user", "TLS alias", "alias that decodes replies", "Sentinel by the setting",
     "cluster URL"],
)  # fmt: skip
def test_tasks_run_in_order_and_a_message_stops_one(
    name: str,
    services: Services,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    locks: LockManager,
    workers: Workers,
) -> None:
    location = LOCATIONS[name](services)
    lead_to(location, settings, monkeypatch)
    with location.way.control() as control:
        control.flushall()
        # So rarely that it cannot be a heartbeat which finds out.
        worker = workers.start("--concurrency", "2", ttl=60, heartbeat_interval=20)

        endless = dispatch(tasks.record, ["endless", 60.0], exclusive=["r"])
        following = dispatch(tasks.add, [1, 2], shared=["r"])
        beside = dispatch(tasks.add, [1, 3], exclusive=["s"])
        assert wait_for_state(beside, State.COMPLETED).result == 4
        wait_for_state(endless, State.RUNNING)

        cancel_task(endless)

        assert wait_for_state(following, State.COMPLETED, timeout=5).result == 3
        wait_for_state(endless, State.CANCELED)
        assert worker.stop() == 0
        assert_nothing_is_left(LockManager(control, locks.keys.prefix))


class TestFailover:
    @pytest.fixture
    def group(
        self, locks: LockManager, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[SentinelGroup]:
        with SentinelGroup() as group:
            lead_to(by_sentinel(group, factory=BY_SENTINEL), settings, monkeypatch)
            yield group
            presence.leave()

    def test_a_worker_goes_on_with_the_new_primary(
        self, group: SentinelGroup, workers: Workers, tmp_path: Path
    ) -> None:
        worker = workers.start("--concurrency", "2")
        gate = tmp_path / "gate"
        task = dispatch(tasks.record_until, ["busy", str(gate)], exclusive=["r"])
        following = dispatch(tasks.add, [1], exclusive=["r"])
        wait_for_state(task, State.RUNNING)

        group.replace_primary()

        gate.touch()
        wait_for_state(task, State.COMPLETED)
        wait_for_state(following, State.COMPLETED)
        wait_for_state(dispatch(tasks.add, [1], exclusive=["s"]), State.COMPLETED)
        assert worker.stop() == 0
        assert_nothing_is_left(get_lock_manager())
