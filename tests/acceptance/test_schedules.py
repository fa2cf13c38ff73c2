"""Schedules with real workers."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_task_locks.locks import LockManager
from django_task_locks.models import State, Task, TaskSchedule
from django_task_locks.schedules import set_schedule
from tests.support.processes import Workers, wait_until
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks


def delays(first: datetime, every: timedelta) -> dict[int, float]:
    """By the number of the time: by how many seconds its task came after it."""
    found = {}
    for created in Task.objects.values_list("created_at", flat=True):
        number, delay = divmod(created - first, every)
        assert number not in found, "two tasks for one time"
        found[number] = delay.total_seconds()
    return found


def test_each_time_comes_to_one_task_within_a_second_of_it(
    workers: Workers, locks: LockManager
) -> None:
    for _ in range(2):
        workers.start()
    start, every = timezone.now() + timedelta(seconds=6), timedelta(seconds=3)
    set_schedule("tick", tasks.add, [1], every=every, start=start)

    wait_until(lambda: Task.objects.filter(state=State.COMPLETED).count() >= 4, 30)

    found = delays(start, every)
    assert set(found) >= {0, 1, 2, 3}
    assert max(found.values()) < 1
    TaskSchedule.objects.all().delete()
    wait_until(lambda: not Task.objects.incomplete().exists())
    assert_nothing_is_left(locks)


def test_after_an_outage_of_all_workers_there_is_one_task(
    workers: Workers, locks: LockManager
) -> None:
    set_schedule("tick", tasks.add, [1], every=3600)
    TaskSchedule.objects.update(next_run=timezone.now() - timedelta(days=2))

    workers.start()

    wait_until(lambda: Task.objects.filter(state=State.COMPLETED).exists())
    next_run = TaskSchedule.objects.get().next_run
    assert next_run is not None
    assert next_run > timezone.now()
    assert Task.objects.count() == 1


@pytest.mark.slow
def test_another_worker_goes_on_when_one_is_killed(workers: Workers, locks: LockManager) -> None:
    set_schedule("tick", tasks.add, [1], every=1)
    first, _ = workers.start(), workers.start()
    wait_until(Task.objects.exists)

    first.kill()

    before = Task.objects.count()
    wait_until(lambda: Task.objects.count() > before + 2, 30)
    first_time = TaskSchedule.objects.get().next_run
    assert first_time is not None
    assert delays(first_time, timedelta(seconds=1))
