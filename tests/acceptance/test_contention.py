"""Tasks that contend for resources, on two workers with two executors each."""

import random
from pathlib import Path

import pytest

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State
from tests.support.intervals import out_of_order, overlaps, runs_of
from tests.support.processes import Worker, Workers, wait_for_state, wait_until_final
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks


@pytest.fixture
def two_workers(workers: Workers) -> list[Worker]:
    return [workers.start("--name", name, "--concurrency", "2") for name in ("one", "two")]


def test_conflicting_tasks_never_overlap_and_keep_their_order(
    locks: LockManager, two_workers: list[Worker]
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    dispatched = []
    for number in range(80):
        names = chance.sample(["a", "b", "c", "d"], chance.randint(1, 3))
        cut = chance.randint(0, len(names))
        dispatched.append(
            dispatch(
                tasks.record,
                [f"{number}", chance.choice([0.0, 0.01, 0.03])],
                exclusive=names[:cut],
                shared=names[cut:],
            )
        )
    ended = wait_until_final(dispatched, timeout=60)
    assert {task.state for task in ended} == {State.COMPLETED}
    assert len(runs_of(ended)) == 80
    assert overlaps(ended) == [], f"seed {seed}"
    assert out_of_order(ended) == [], f"seed {seed}"
    assert_nothing_is_left(locks)


def test_shared_holders_run_together_and_an_exclusive_one_waits_for_all_of_them(
    locks: LockManager, two_workers: list[Worker], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    readers = [dispatch(tasks.record_until, [f"r{n}", str(gate)], shared=["r"]) for n in range(3)]
    for reader in readers:
        wait_for_state(reader, State.RUNNING)
    writer = dispatch(tasks.record, ["writer"], exclusive=["r"])
    late = dispatch(tasks.record, ["late reader"], shared=["r"])
    free = dispatch(tasks.record, ["other"], exclusive=["elsewhere"])
    wait_for_state(free, State.COMPLETED)
    info = locks.inspect_request(str(writer.pk))
    assert info is not None
    assert {blocker.id for blocker in info.blockers} == {str(reader.pk) for reader in readers}
    late_info = locks.inspect_request(str(late.pk))
    assert late_info is not None
    assert [blocker.id for blocker in late_info.blockers] == [str(writer.pk)]
    gate.touch()
    ended = wait_until_final([*readers, writer, late])
    assert {task.state for task in ended} == {State.COMPLETED}
    assert overlaps(ended) == []
    assert out_of_order(ended) == []
    assert_nothing_is_left(locks)


def test_blocked_tasks_do_not_hold_up_others(
    locks: LockManager, two_workers: list[Worker], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    busy = dispatch(tasks.record_until, ["busy", str(gate)], exclusive=["r1"])
    wait_for_state(busy, State.RUNNING)
    blocked = [dispatch(tasks.record, [f"{n}"], exclusive=["r1"]) for n in range(30)]
    other = dispatch(tasks.record, ["other"], exclusive=["r2"])
    wait_for_state(other, State.COMPLETED, timeout=5)
    assert not any(task.is_final for task in blocked)
    gate.touch()
    wait_until_final([busy, *blocked])


def test_a_higher_priority_goes_first_among_those_that_wait(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    busy = dispatch(tasks.record_until, ["busy", str(gate)], exclusive=["r"])
    wait_for_state(busy, State.RUNNING)
    low, normal, high = (
        dispatch(tasks.record, [name], exclusive=["r"], priority=priority)
        for name, priority in (("low", -5), ("normal", 0), ("high", 5))
    )
    gate.touch()
    ended = wait_until_final([busy, low, normal, high])
    began = {run.label: run.began for run in runs_of(ended).values()}
    assert began["busy"] < began["high"] < began["normal"] < began["low"]


def test_a_worker_serves_the_queues_that_it_was_given(workers: Workers, locks: LockManager) -> None:
    worker = workers.start("--queue", "mail")
    slow = dispatch(tasks.add, [1], queue="slow")
    mail = dispatch(tasks.add, [1], queue="mail")
    wait_for_state(mail, State.COMPLETED, timeout=5)
    info = locks.inspect_request(str(slow.pk))
    assert info is not None
    assert info.state == "granted"
    workers.start()  # all queues
    wait_for_state(slow, State.COMPLETED, timeout=5)
    assert worker.process.poll() is None


def test_burst_ends_when_nothing_is_left_to_do(workers: Workers, locks: LockManager) -> None:
    dispatched = [dispatch(tasks.record, [f"{n}", 0.02], exclusive=["r"]) for n in range(8)]
    worker = workers.launch("--burst", "--concurrency", "2")
    assert worker.wait() == 0
    assert {task.state for task in wait_until_final(dispatched)} == {State.COMPLETED}
    assert not AppStatus.objects.filter(app_type="worker").exists()
    assert_nothing_is_left(locks)


def test_bodies_of_every_kind_end_as_they_should(worker: Worker, locks: LockManager) -> None:
    expected = [
        (dispatch(tasks.add, [1], {"b": 2}), State.COMPLETED, ""),
        (dispatch(tasks.arecord, ["async"]), State.COMPLETED, ""),
        (dispatch(tasks.fail, ["boom"]), State.FAILED, "boom"),
        (dispatch(tasks.leave, [3]), State.FAILED, "3"),
        (dispatch(tasks.add, []), State.FAILED, "missing 1 required positional argument"),
        (dispatch(tasks.return_object), State.FAILED, "cannot be stored as JSON"),
        (dispatch(tasks.leave_transaction_open), State.FAILED, "left a transaction open"),
        (dispatch(tasks.kill_self), State.FAILED, "Killed by signal 9."),
        (dispatch(tasks.vanish, [0]), State.FAILED, "exited with status 0 and recorded no outcome"),
        (dispatch(tasks.vanish, [7]), State.FAILED, "exited with status 7 and recorded no outcome"),
        (dispatch(tasks.add, [1]), State.COMPLETED, ""),
    ]
    wait_until_final([task for task, _, _ in expected])
    for task, state, message in expected:
        task.refresh_from_db()
        assert task.state == state, task.name
        assert message in (task.error or {"message": ""})["message"]
        assert task.app_lock_id is None
        assert task.started_at is not None
        assert task.finished_at is not None
        assert task.worker_name == worker.status().name
    assert expected[0][0].result == 3
    error = expected[2][0].error or {}
    assert error["type"] == "builtins.ValueError"
    assert "raise ValueError(message)" in error["traceback"]
    assert_nothing_is_left(locks)


def test_L19_a_nested_immediate_task_leaves_its_parents_hold_intact(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    """L19: a task dispatches an immediate one on the shared resource that it holds."""
    parent = dispatch(tasks.nested, ["parent", ["r"]], shared=["r"])
    parent = wait_for_state(parent, State.COMPLETED)
    child = parent.child_tasks.get()
    assert parent.result == {"inner": str(child.pk), "state": State.COMPLETED}
    assert_nothing_is_left(locks)
