"""Clean-up against processes that still live, and against another clean-up."""

from collections import Counter
from functools import partial
from typing import Any

import pytest

from django_task_locks import dispatch, execution
from django_task_locks.exceptions import InvalidTransition, OwnerClosed
from django_task_locks.execution import Outcome
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.recovery import clean_up
from django_task_locks.signals import task_state_changed
from django_task_locks.states import State
from tests.factories import AppStatusFactory
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import at_once
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks


class TestLateProcess:
    """L27: a process that was declared missing, and still lives."""

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    def test_L27_late_finish_and_release_are_refused(
        self,
        locks: LockManager,
        dead: HandWorker,
        alive: HandWorker,
        mode: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        resources: dict[str, Any] = {mode: "a"}
        dispatch(tasks.record, **resources)
        late = dead.run()
        dispatch(tasks.record, exclusive="a")
        clean_up()
        successor = alive.run()

        execution.record(late, Outcome(State.COMPLETED, result="late"))
        locks.release(str(late.pk), owner=dead.owner, token=late.lock_token)

        assert (refreshed(late).state, refreshed(late).result) == (State.FAILED, None)
        assert "outcome refused" in caplog.text
        assert refreshed(successor).state == State.RUNNING
        (holder,) = locks.inspect_resource("a").holders
        assert (holder.id, holder.owner) == (str(successor.pk), alive.owner)

    def test_L27_late_release_of_a_share_ends_no_other_share(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        """Shares are counted by who has them: nobody gives one back twice."""
        dispatch(tasks.record, shared="a")
        late = dead.run()
        dispatch(tasks.record, shared="a")
        other = alive.run()
        writer = dispatch(tasks.record, exclusive="a")
        clean_up()

        execution.record(late, Outcome(State.COMPLETED))
        for _ in range(2):
            locks.release(str(late.pk), owner=dead.owner, token=late.lock_token)

        assert [holder.id for holder in locks.inspect_resource("a").holders] == [str(other.pk)]
        assert info(locks, writer).state == "waiting"

    def test_L27_lost_attempt_cannot_end_the_one_that_follows(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        dispatch(tasks.record, exclusive="a", on_worker_loss="requeue", max_attempts=2)
        late = dead.run()
        clean_up()
        present = alive.run()
        assert present == late

        execution.record(late, Outcome(State.COMPLETED, result="late"))
        locks.release(str(late.pk), owner=dead.owner, token=late.lock_token)

        assert refreshed(present).state == State.RUNNING
        assert (info(locks, present).state, info(locks, present).owner) == ("held", alive.owner)
        execution.record(present, Outcome(State.COMPLETED, result="second"))
        assert refreshed(present).result == "second"
        assert leftovers(locks) == set()

    def test_L27_it_gets_no_locks_any_more(self, locks: LockManager, dead: HandWorker) -> None:
        dispatch(tasks.record, exclusive="a")
        dead.run()
        clean_up()
        dispatch(tasks.record)

        claimant = Claimant(owner=dead.owner, ttl=4)
        with pytest.raises(OwnerClosed, match="declared missing"):
            dead.claim()
        with pytest.raises(OwnerClosed):
            locks.try_request(LockRequest(id="hold", exclusive=("b",), claimant=claimant))
        with pytest.raises(OwnerClosed):
            locks.beat(dead.owner, 4)

    def test_L27_its_start_of_what_it_claimed_before_is_refused(
        self, locks: LockManager, dead: HandWorker, alive: HandWorker
    ) -> None:
        task = dispatch(tasks.record, exclusive="a")
        claimed = dead.claim()
        clean_up()

        with pytest.raises(InvalidTransition):
            task.start(dead.status, claimed.token)
        assert alive.run() == task


class TestAtOnce:
    def test_B8_two_clean_ups_decide_each_task_once(self, locks: LockManager) -> None:
        workers = [HandWorker(locks, AppStatusFactory.create(stale=True)) for _ in range(12)]
        for number, worker in enumerate(workers):
            loss = "requeue" if number % 2 else "fail"
            dispatch(tasks.record, exclusive=f"r{number}", on_worker_loss=loss, max_attempts=3)
            worker.run()
        decided: Counter[Any] = Counter()

        def count(task: Task, **kwargs: Any) -> None:
            decided[task.pk] += 1

        task_state_changed.connect(count)
        try:
            reports = at_once(clean_up, clean_up, clean_up)
        finally:
            task_state_changed.disconnect(count)

        assert [report.failures for report in reports] == [[], [], []]
        assert set(decided.values()) == {1}
        assert len(decided) == len(workers)
        states = Counter(Task.objects.values_list("state", "attempt"))
        assert states == {(State.WAITING, 2): 6, (State.FAILED, 1): 6}
        assert not AppStatus.objects.exists()
        requeued = set(locks.registry("queue/default"))
        assert requeued == {str(task.pk) for task in Task.objects.filter(state=State.WAITING)}
        assert {found.state for found in map(locks.inspect_request, requeued) if found} == {
            "granted"
        }

    def test_A5_finish_and_clean_up_at_once(self, locks: LockManager) -> None:
        """Whoever comes first decides; nothing stays locked."""
        for _ in range(20):
            worker = HandWorker(locks, AppStatusFactory.create(stale=True))
            dispatch(tasks.record, exclusive="a")
            task = worker.run()

            at_once(clean_up, partial(execution.record, task, Outcome(State.COMPLETED)))

            assert refreshed(task).state in (State.FAILED, State.COMPLETED)
            clean_up()
            assert leftovers(locks) == set()
