"""cancel_task: whoever loses the race with start or finish leaves nothing behind."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from django_task_locks import acancel_task, cancel_task, dispatch, execution, rebuilding
from django_task_locks.execution import Outcome
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.transactions import elsewhere, rolled_back
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import answered, leftovers, state_in_redis
from tests.support.servers import ValkeyServer
from tests.testapp import tasks

Cancel = Callable[..., Task]


@pytest.fixture(params=["cancel_task", "acancel_task"])
def cancel(request: pytest.FixtureRequest) -> Cancel:
    return cancel_task if request.param == "cancel_task" else async_to_sync(acancel_task)


class TestWaiting:
    def test_it_is_canceled_at_once_and_the_next_is_granted(
        self, locks: LockManager, cancel: Cancel
    ) -> None:
        first, second = (dispatch(tasks.record, exclusive="a") for _ in range(2))
        assert state_in_redis(locks, second) == "waiting"

        canceled = cancel(first)

        assert (canceled.state, refreshed(first).state) == (State.CANCELED, State.CANCELED)
        assert message(first) == "Canceled before it started."
        assert state_in_redis(locks, first) is None
        assert state_in_redis(locks, second) == "granted"

    def test_one_in_the_middle_of_a_queue_leaves_it(self, locks: LockManager) -> None:
        first, second, third = (dispatch(tasks.record, exclusive="a") for _ in range(3))

        cancel_task(second)

        assert [state_in_redis(locks, task) for task in (first, second, third)] == [
            "granted",
            None,
            "waiting",
        ]

    def test_one_that_redis_does_not_know_is_canceled(self, locks: LockManager) -> None:
        task = TaskFactory.create(exclusive=["a"])

        assert cancel_task(task).state == State.CANCELED
        assert leftovers(locks) == set()

    @pytest.mark.parametrize("name", ["instance", "uuid", "text"])
    def test_it_is_named_by_instance_or_id(self, locks: LockManager, name: str) -> None:
        task = dispatch(tasks.record)
        by: dict[str, Any] = {"instance": task, "uuid": task.pk, "text": str(task.pk)}

        assert cancel_task(by[name]).pk == task.pk
        assert refreshed(task).state == State.CANCELED

    @pytest.mark.parametrize("name", [uuid4(), str(uuid4()), Task(pk=uuid4())], ids=["u", "t", "i"])
    def test_unknown_one_is_told(self, locks: LockManager, cancel: Cancel, name: Any) -> None:
        with pytest.raises(Task.DoesNotExist):
            cancel(name)


class TestRunning:
    def test_it_becomes_canceling_and_its_process_is_told(
        self, locks: LockManager, cancel: Cancel
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        worker = HandWorker(locks)
        task = worker.run()

        assert cancel(task).state == State.CANCELING

        found = refreshed(task)
        assert (found.state, found.app_lock, found.error) == (State.CANCELING, worker.status, None)
        assert worker.messages() == [f"cancel {task.pk}"]
        assert state_in_redis(locks, task) == "held", "its code may still run"

    def test_message_does_not_stay_for_ever(self, locks: LockManager) -> None:
        dispatch(tasks.record)
        worker = HandWorker(locks)
        cancel_task(worker.run())

        assert 0 < locks.client.ttl(locks.keys.control(worker.owner)) <= 3600

    def test_cancel_again_tells_again(self, locks: LockManager) -> None:
        dispatch(tasks.record)
        worker = HandWorker(locks)
        task = worker.run()

        assert cancel_task(task).state == cancel_task(task).state == State.CANCELING

        assert worker.messages() == [f"cancel {task.pk}"] * 2

    @pytest.mark.parametrize(
        "outcome", [Outcome(State.COMPLETED, result=42), Outcome.failed("went wrong")], ids=repr
    )
    def test_G2_whatever_the_body_returns_it_ends_as_canceled(
        self, locks: LockManager, outcome: Outcome
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        task = HandWorker(locks).run()
        cancel_task(task.pk)

        execution.record(task, outcome)

        found = refreshed(task)
        assert (found.state, found.result) == (State.CANCELED, None)
        assert message(task) == "Canceled while it ran."
        assert state_in_redis(locks, task) is None
        assert locks.inspect_resource("a").holder_count == 0

    def test_one_without_a_process_becomes_canceling(self, locks: LockManager) -> None:
        """Nobody can be told; the periodic clean-up ends it."""
        task = TaskFactory.create(state=State.RUNNING)

        assert cancel_task(task).state == State.CANCELING
        assert leftovers(locks) == set()

    def test_one_whose_process_has_no_row_becomes_canceling(self, locks: LockManager) -> None:
        task = TaskFactory.create(running_by=AppStatusFactory.build())

        assert cancel_task(task).state == State.CANCELING


@pytest.mark.parametrize("state", [state for state in State if state.is_final])
def test_one_that_has_ended_is_returned_unchanged(
    locks: LockManager, cancel: Cancel, state: State
) -> None:
    task = TaskFactory.create(state=state, result=42)
    before = Task.objects.filter(pk=task.pk).values().get()

    assert cancel(task).state == state

    assert Task.objects.filter(pk=task.pk).values().get() == before
    assert leftovers(locks) == set()


class TestTransaction:
    def test_waiting_one_leaves_the_queue_on_commit(self, locks: LockManager) -> None:
        task = dispatch(tasks.record, exclusive="a")

        with transaction.atomic():
            assert cancel_task(task).state == State.CANCELED
            assert state_in_redis(locks, task) == "granted"
            assert elsewhere(lambda: refreshed(task)).state == State.WAITING

        assert leftovers(locks) == set()

    def test_process_of_a_running_one_is_told_on_commit(self, locks: LockManager) -> None:
        dispatch(tasks.record)
        worker = HandWorker(locks)
        task = worker.run()

        with transaction.atomic():
            cancel_task(task)
            assert worker.messages() == []

        assert worker.messages() == [f"cancel {task.pk}"]

    def test_rollback_cancels_nothing(self, locks: LockManager) -> None:
        dispatch(tasks.record)
        worker = HandWorker(locks)
        running = worker.run()
        waiting = dispatch(tasks.record, exclusive="a")

        with rolled_back():
            cancel_task(running)
            cancel_task(waiting)

        assert (refreshed(running).state, refreshed(waiting).state) == ("running", "waiting")
        assert state_in_redis(locks, waiting) == "granted"
        assert worker.messages() == []

    def test_one_that_was_dispatched_in_it_never_reaches_redis(self, locks: LockManager) -> None:
        with transaction.atomic():
            task = dispatch(tasks.record, exclusive="a")
            cancel_task(task)

        assert refreshed(task).state == State.CANCELED
        assert leftovers(locks) == set()


class TestRaceWithStart:
    def test_L6_start_of_one_that_was_canceled_after_its_claim_is_refused(
        self, locks: LockManager
    ) -> None:
        task, behind = (dispatch(tasks.record, exclusive="a") for _ in range(2))
        worker = HandWorker(locks)
        claimed = worker.claim()

        assert cancel_task(task).state == State.CANCELED

        assert worker.start(claimed) is None
        worker.release(claimed)
        assert refreshed(task).state == State.CANCELED
        assert worker.claim().id == str(behind.pk)

    def test_L6_release_of_the_loser_does_not_touch_the_next_holder(
        self, locks: LockManager
    ) -> None:
        dispatch(tasks.record, exclusive="a")
        worker, other = HandWorker(locks), HandWorker(locks)
        claimed = worker.claim()
        cancel_task(claimed.id)
        behind = dispatch(tasks.record, exclusive="a")
        assert other.claim().id == str(behind.pk)

        worker.release(claimed)

        assert state_in_redis(locks, behind) == "held"

    def test_L6_cancel_after_an_early_look_tells_the_process_that_started_it(
        self, locks: LockManager
    ) -> None:
        task = dispatch(tasks.record)
        stale = Task.objects.get(pk=task.pk)
        worker = HandWorker(locks)
        worker.run()

        assert cancel_task(stale).state == State.CANCELING
        assert worker.messages() == [f"cancel {task.pk}"]

    def test_L6_G1_random_interleavings_leave_nothing(self, locks: LockManager) -> None:
        """Cancel against claim, start, finish and release, each in a thread of its own."""
        seed = random.randrange(10**9)
        chance = random.Random(seed)
        worker = HandWorker(locks)
        barrier = Barrier(2, timeout=30)
        rounds = 200

        def spin(count: int) -> None:
            for _ in range(count):
                pass

        def work(delays: list[int]) -> bool:
            claimed = worker.claim()
            barrier.wait()
            spin(delays[0])
            task = worker.start(claimed)
            if task is not None:
                spin(delays[1])
                execution.record(task, Outcome(State.COMPLETED))
            worker.release(claimed)
            return task is not None

        def cancel(id: str, delay: int) -> None:
            barrier.wait()
            spin(delay)
            cancel_task(id)

        def leave() -> None:
            barrier.wait()  # each thread once
            connections.close_all()

        ended: set[tuple[bool, str]] = set()
        with ThreadPoolExecutor(2) as threads:
            for _ in range(rounds):
                task = dispatch(tasks.record, exclusive="a", shared="b")
                delays = [chance.randrange(60_000) for _ in range(3)]
                working = threads.submit(work, delays)
                threads.submit(cancel, str(task.pk), delays[2]).result()
                ended.add((working.result(), refreshed(task).state))
            for done in [threads.submit(leave) for _ in range(2)]:
                done.result()

        locks.client.delete(locks.keys.control(worker.owner))
        assert leftovers(locks) == set(), f"seed {seed}"
        assert ended <= {(False, "canceled"), (True, "canceled"), (True, "completed")}, seed
        assert (False, "canceled") in ended
        assert len(ended) > 1, "both sides have won at times"
        assert not Task.objects.incomplete().exists()


class TestRedisAway:
    def test_waiting_one_is_canceled_and_leaves_the_queue_when_redis_is_back(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        server.close()
        with ValkeyServer(server.directory, appendonly="yes", appendfsync="always") as lasting:
            assert rebuilding.rebuild()
            task, behind = (dispatch(tasks.record, exclusive="a") for _ in range(2))
            lasting.stop()

            assert cancel_task(task).state == State.CANCELED

            assert refreshed(task).state == State.CANCELED
            lasting.start()
            assert rebuilding.rebuild()
            wait_until(lambda: answered(lambda: state_in_redis(own_locks, behind)) == "granted")
            assert state_in_redis(own_locks, task) is None

    def test_running_one_is_canceling_and_a_warning_tells(
        self, own_locks: LockManager, server: ValkeyServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        dispatch(tasks.record)
        worker = HandWorker(own_locks)
        task = worker.run()
        server.stop()

        assert cancel_task(task).state == State.CANCELING

        assert refreshed(task).state == State.CANCELING
        (record,) = [found for found in caplog.records if found.levelname == "WARNING"]
        assert record.__dict__["event"] == "task.cancel_not_sent"
        assert str(task.pk) in record.getMessage()
