"""Ways by which locks are left behind, or freed too early, between grant and end of a task: with
real workers. What dead processes leave is in test_leak_paths_of_processes.py; other paths have
their tests beside what they are about. All carry their number."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from django_task_locks import cancel_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import State, Task
from tests.support.intervals import overlaps, runs_of
from tests.support.processes import (
    Worker,
    Workers,
    message,
    refreshed,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.support.refusals import refused_transition
from tests.support.servers import PostgresServer
from tests.support.suite import TTL
from tests.testapp import tasks
from tests.testapp.models import Run

on_postgres = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'", reason="PostgreSQL's own means"
)


def run_of(task: Task) -> Run | None:
    return Run.objects.filter(task_id=task.pk).first()


def test_L1_an_error_between_grant_and_start_changes_when_and_not_what(
    workers: Workers, locks: LockManager
) -> None:
    """L1: an exception after the grant and before the start. The task still runs, once."""
    with refused_transition(State.RUNNING):
        worker = workers.start()
        task = dispatch(tasks.record, ["late"], exclusive=["r"])
        worker.wait_for_log("refused for a test")
        assert refreshed(task).state == State.WAITING
        info = locks.inspect_request(str(task.pk))
        assert info is not None
        assert info.state == "held", "it is still this worker's"
    wait_for_state(task, State.COMPLETED)
    assert Run.objects.count() == 1
    assert_nothing_is_left(locks)


def test_L1_a_worker_that_ends_with_such_an_error_hands_the_task_back(
    workers: Workers, locks: LockManager
) -> None:
    with refused_transition(State.RUNNING):
        worker = workers.start()
        task = dispatch(tasks.record, ["late"], exclusive=["r"])
        worker.wait_for_log("refused for a test")
        assert worker.stop() == 0
        info = locks.inspect_request(str(task.pk))
        assert info is not None
        assert (info.state, info.owner) == ("granted", "queue/default")
    workers.start()
    wait_for_state(task, State.COMPLETED)
    assert refreshed(task).attempt == 1
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("end", ["canceled", "gone"])
def test_L2_one_that_was_decided_between_grant_and_claim_is_released(
    end: str, workers: Workers, locks: LockManager
) -> None:
    """L2: the row is canceled or gone between grant and claim, past all signals."""
    task = dispatch(tasks.record, ["never"], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
    rows = Task.objects.filter(pk=task.pk)
    if end == "canceled":
        rows.update(state=State.CANCELED)
    else:
        rows._raw_delete("default")
    # No clean-up within the test: the claim finds it by itself.
    worker = workers.start(cleanup_interval=3600.0)
    wait_for_state(behind, State.COMPLETED)
    told = {"canceled": "decided elsewhere", "gone": "this database does not know it"}
    worker.wait_for_log(told[end])
    assert [run.label for run in Run.objects.all()] == ["behind"]
    assert_nothing_is_left(locks)


@on_postgres
@pytest.mark.parametrize(
    "decide",
    [
        "UPDATE django_task_locks_task SET state = 'canceled' WHERE id = %s",
        "DELETE FROM django_task_locks_task WHERE id = %s",
    ],
)
def test_L2_one_that_is_decided_while_its_start_waits_is_released(
    decide: str, workers: Workers, locks: LockManager, postgres: PostgresServer
) -> None:
    """L2: in the very moment between claim and start."""
    workers.start(cleanup_interval=3600.0)
    with postgres.client("test_task_locks") as other, postgres.client() as observer:
        first = dispatch(tasks.record, ["first", 1.0], exclusive=["r"])
        task = dispatch(tasks.record, ["never"], exclusive=["r"])
        behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
        wait_for_state(first, State.RUNNING)
        other.execute("BEGIN")
        other.execute(decide, [str(task.pk)])
        wait_until(
            lambda: observer.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            ).fetchone(),
            what="the start to wait",
        )
        other.execute("COMMIT")
    wait_for_state(behind, State.COMPLETED)
    assert run_of(task) is None
    assert_nothing_is_left(locks)


def test_L5_a_cancel_that_the_database_refuses_is_repeated(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    """L5: the path of a cancel raises in its transition. Nothing leaks, nothing is freed twice."""
    gate = tmp_path / "gate"
    task = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"])
    rival = dispatch(tasks.record_until, ["rival", str(gate)], exclusive=["r"])
    third = dispatch(tasks.record, ["third"], exclusive=["r"])
    wait_until(lambda: run_of(task))
    with refused_transition(State.CANCELED):
        cancel_task(task)
        worker.wait_for_log("could not be settled; tried again")
        assert refreshed(task).state == State.CANCELING
        assert holders(locks, "r") == [str(task.pk)], "not before its end is recorded"
    wait_for_state(task, State.CANCELED)
    wait_until(lambda: run_of(rival))
    # The other executor ends, too, and is settled in the meantime.
    wait_for_state(dispatch(tasks.vanish, [0]), State.FAILED)
    assert holders(locks, "r") == [str(rival.pk)], "the next holder's lock is its own"
    assert run_of(third) is None
    gate.touch()
    wait_until_final([rival, third])
    assert_nothing_is_left(locks)


def test_L5_an_abort_that_the_database_refuses_is_made_good_by_the_next_worker(
    workers: Workers, locks: LockManager
) -> None:
    """L5: the same for the abort at a worker's end, which does not wait for ever."""
    worker = workers.start("--name", "w")
    task = dispatch(tasks.record, ["victim", 60.0], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    wait_until(lambda: run_of(task))
    with refused_transition(State.FAILED):
        assert worker.stop(signal.SIGINT) == 1
        assert "worker ended with something left" in worker.log()
        assert refreshed(task).state == State.RUNNING
        assert holders(locks, "r") == [str(task.pk)]
    workers.start("--name", "w")
    wait_for_state(rival, State.COMPLETED)
    assert (refreshed(task).state, message(task)) == (State.FAILED, "Worker has gone missing.")
    assert_nothing_is_left(locks)


def holders(locks: LockManager, resource: str) -> list[str]:
    return [holder.id for holder in locks.inspect_resource(resource).holders]


class TestSupervisorThatEndsFirst:
    """L7: the parent finishes supervising while the child still runs."""

    def test_L7_asked_to_stop_it_releases_nothing_before_the_body_has_ended(
        self, workers: Workers, locks: LockManager, tmp_path: Path
    ) -> None:
        """L7: a graceful stop has no limit, and another worker is there for the rival."""
        gate = tmp_path / "gate"
        first = workers.start("--name", "first")
        task = dispatch(tasks.record_until, ["long", str(gate)], exclusive=["r"])
        rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
        wait_until(lambda: run_of(task))
        first.send(signal.SIGTERM)
        first.wait_for_log("stopping: no new tasks")
        workers.start("--name", "second")
        wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
        assert holders(locks, "r") == [str(task.pk)]
        assert run_of(rival) is None
        gate.touch()
        wait_until_final([task, rival])
        assert first.wait() == 0
        assert overlaps([task, rival]) == []
        assert_nothing_is_left(locks)

    @pytest.mark.parametrize(
        "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=on_postgres)]
    )
    def test_L7_killed_or_frozen_its_locks_are_free_when_all_that_it_ran_is_dead(
        self, number: int, workers: Workers, locks: LockManager, tmp_path: Path
    ) -> None:
        """L7: what its executor has started goes on until the guard acts, and no longer."""
        stamps = tmp_path / "stamps"
        first = workers.start("--name", "first")
        task = dispatch(tasks.with_subprocess, ["long", str(stamps)], exclusive=["r"])
        rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
        wait_until(lambda: stamps.exists() and stamps.read_text())
        workers.start("--name", "second")
        executor = psutil.Process(wait_until(lambda: run_of(task)).pid)
        os.kill(first.pid, number)
        wait_for_state(rival, State.COMPLETED, timeout=6 * TTL)
        assert message(task) == "Worker has gone missing."
        assert not executor.is_running() or executor.status() == psutil.STATUS_ZOMBIE
        assert float(stamps.read_text().split()[-1]) < runs_of([rival])[rival.pk].began
        os.kill(first.pid, signal.SIGCONT)
        assert_nothing_is_left(locks)
