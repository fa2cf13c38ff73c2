"""A task that is deleted leaves the queue; one that runs keeps its locks and is stopped first."""

from django.db import transaction

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.factories import TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.transactions import rolled_back
from tests.support.redis_state import leftovers
from tests.testapp import tasks


def test_waiting_one_leaves_the_queue(locks: LockManager) -> None:
    first, second = (dispatch(tasks.record, exclusive="a") for _ in range(2))

    first.delete()

    assert HandWorker(locks).claim().id == str(second.pk)


def test_whole_queue_can_be_deleted(locks: LockManager) -> None:
    for _ in range(20):
        dispatch(tasks.record, exclusive="a")

    Task.objects.all().delete()

    assert leftovers(locks) == set()


def test_running_one_keeps_its_locks_and_its_process_is_told(locks: LockManager) -> None:
    dispatch(tasks.record, exclusive="a")
    worker = HandWorker(locks)
    task = worker.run()

    Task.objects.filter(pk=task.pk).delete()

    assert worker.messages() == [f"cancel {task.pk}"]
    assert locks.inspect_resource("a").holder_count == 1


def test_one_that_was_claimed_meanwhile_is_left_to_its_worker(locks: LockManager) -> None:
    task = dispatch(tasks.record, exclusive="a")
    worker = HandWorker(locks)
    claimed = worker.claim()

    task.delete()

    assert locks.inspect_resource("a").holder_count == 1
    worker.release(claimed)
    assert leftovers(locks) == set()


def test_deletion_counts_on_commit(locks: LockManager) -> None:
    task = dispatch(tasks.record, exclusive="a")

    with transaction.atomic():
        Task.objects.all().delete()
        assert locks.inspect_request(str(task.pk)) is not None

    assert leftovers(locks) == set()


def test_rollback_deletes_nothing(locks: LockManager) -> None:
    task = dispatch(tasks.record, exclusive="a")

    with rolled_back():
        Task.objects.all().delete()

    assert locks.inspect_request(str(task.pk)) is not None
    assert HandWorker(locks).run() == task


def test_one_that_has_ended_can_be_deleted(locks: LockManager) -> None:
    TaskFactory.create(state=State.COMPLETED).delete()

    assert not Task.objects.exists()
    assert leftovers(locks) == set()


def test_redis_that_is_away_stops_no_deletion(no_redis: str) -> None:
    TaskFactory.create(exclusive=["a"]).delete()

    assert not Task.objects.exists()
