"""dispatch(run_after=...): a row and a request that takes no place before its time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.utils import timezone as django_timezone

from django_task_locks import adispatch, cancel_task, dispatch, recovery
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration.by_hand import HandWorker, info
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import tasks

HOUR = timedelta(hours=1)


@pytest.fixture(params=["dispatch", "adispatch"])
def dispatched(request: pytest.FixtureRequest) -> Callable[..., Task]:
    return dispatch if request.param == "dispatch" else async_to_sync(adispatch)


def in_an_hour() -> datetime:
    return django_timezone.now() + HOUR


class TestTime:
    def test_is_in_the_row_and_in_the_request(
        self, locks: LockManager, dispatched: Callable[..., Task]
    ) -> None:
        moment = in_an_hour()
        task = dispatched(tasks.record, exclusive=["r"], run_after=moment)

        assert refreshed(task).run_after == moment
        found = info(locks, task)
        assert found.state == "due"
        assert found.run_after == pytest.approx(moment.timestamp(), abs=0.1)
        assert info(locks, dispatch(tasks.record, exclusive=["r"])).state == "granted"

    def test_may_be_of_any_zone(self, locks: LockManager) -> None:
        moment = in_an_hour().astimezone(timezone(timedelta(hours=-7)))
        assert refreshed(dispatch(tasks.record, run_after=moment)).run_after == moment

    def test_may_be_an_interval_from_now(self, locks: LockManager) -> None:
        task = refreshed(dispatch(tasks.record, run_after=HOUR))
        assert task.run_after is not None
        assert abs(task.run_after - in_an_hour()) < timedelta(seconds=30)

    @pytest.mark.parametrize("moment", [datetime(2000, 1, 1, tzinfo=UTC), timedelta()])
    def test_that_has_passed_is_now(self, locks: LockManager, moment: Any) -> None:
        assert info(locks, dispatch(tasks.record, run_after=moment)).state == "granted"

    @pytest.mark.parametrize(
        "moment",
        [
            datetime(2100, 1, 1),
            timedelta(seconds=-1),
            timedelta.max,
            60,
            "2100-01-01",
            datetime.max,
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
        ],
        ids=repr,
    )
    def test_that_is_none_is_refused(
        self,
        locks: LockManager,
        redis_client: redis.Redis,
        dispatched: Callable[..., Task],
        moment: Any,
    ) -> None:
        with pytest.raises(ValueError, match=r"run_after .* of tests.testapp.tasks.record: a date"):
            dispatched(tasks.record, run_after=moment)
        assert not Task.objects.exists()
        assert leftovers(locks) == set()

    def test_does_not_go_with_an_immediate_task(self, locks: LockManager) -> None:
        with pytest.raises(ValueError, match=r"run_after .* with immediate=True"):
            dispatch(tasks.record, immediate=True, run_after=HOUR)

    def test_is_told_without_zones_where_django_knows_none(
        self, locks: LockManager, settings: Any
    ) -> None:
        settings.USE_TZ = False
        moment = datetime.now(UTC) + HOUR
        task = dispatch(tasks.record, run_after=moment)
        assert info(locks, task).run_after == pytest.approx(moment.timestamp(), abs=1)


class TestBeforeItsTime:
    def test_it_is_canceled_without_a_trace(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive=["r"], run_after=HOUR)
        assert cancel_task(task).state == State.CANCELED
        assert leftovers(locks) == set()

    def test_it_is_deleted_without_a_trace(self, locks: LockManager) -> None:
        dispatch(tasks.record, exclusive=["r"], run_after=HOUR).delete()
        assert leftovers(locks) == set()

    def test_clean_up_leaves_it_alone(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive=["r"], run_after=HOUR)
        assert recovery.clean_up().steps == []
        assert info(locks, task).state == "due"

    def test_l13_clean_up_finds_it_when_its_row_has_ended_otherwise(
        self, locks: LockManager
    ) -> None:
        task = dispatch(tasks.record, exclusive=["r"], run_after=HOUR)
        Task.objects.filter(pk=task.pk).update(state=State.CANCELED)
        recovery.clean_up()
        assert leftovers(locks) == set()

    def test_a_request_that_was_lost_is_sent_again_with_its_time(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        server.stop()
        task = dispatch(tasks.record, exclusive=["r"], run_after=HOUR)
        server.start()
        assert own_locks.client.dbsize() == 0

        recovery.clean_up()

        found = info(own_locks, task)
        assert task.run_after is not None
        assert found.state == "due"
        assert found.run_after == pytest.approx(task.run_after.timestamp(), abs=0.1)


def test_at_its_time_it_is_claimed_and_started(locks: LockManager, alive: HandWorker) -> None:
    task = dispatch(tasks.record, exclusive=["r"], run_after=HOUR)
    locks.client.zadd(locks.keys.due, {str(task.pk): 1})
    assert alive.run().pk == task.pk
