"""A worker whose Redis loses single keys of what it runs, while the epoch stands."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Claimant, Grant, LockRequest
from django_task_locks.models import State, Task
from tests.support.holder import hold_until_released
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
from tests.testapp import tasks, witnesses
from tests.testapp.models import Run

RESTORED = "Redis alone had lost it"


def is_whole(locks: LockManager, id: str, resource: str) -> bool:
    found = locks.inspect_request(id)
    holders = [holder.id for holder in locks.inspect_resource(resource).holders]
    return found is not None and found.state == "held" and holders == [id]


def start(directory: Path, resource: str) -> Task:
    """A task that runs until the file `release` is there, and has begun."""
    release = str(directory / "release")
    arguments = [str(directory), [resource], [], release]
    task = dispatch(witnesses.work_until, arguments, exclusive=[resource])
    wait_until(lambda: Run.objects.filter(task_id=task.pk).exists())
    return task


def work_and_hold(directory: str, resource: str) -> None:
    with tasks.recorded(resource):
        hold_until_released(directory, resource)


def work_inside() -> None:
    dispatch(tasks.record, ["inside", 30.0], exclusive="inner", immediate=True, deferred=False)


@pytest.mark.parametrize(
    "what",
    [
        lambda keys, id, owner: [keys.request(id)],
        lambda keys, id, owner: [keys.lock("r")],
        lambda keys, id, owner: [keys.request(id), keys.lock("r")],
        lambda keys, id, owner: [keys.request(id), keys.lock("r"), keys.owner(owner)],
        lambda keys, id, owner: [keys.request(id), keys.lock("r"), keys.slot(owner)],
    ],
    ids=["record", "lock", "both", "and the registry", "and the slots"],
)
def test_C6_a_running_task_has_its_locks_again_and_no_rival_starts_beside_it(
    what: Callable[..., list[str]], worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    task = start(tmp_path, "r")
    before = locks.inspect_request(str(task.pk))
    assert before is not None
    locks.client.delete(*what(locks.keys, str(task.pk), before.owner))
    worker.wait_for_log(RESTORED)
    after = locks.inspect_request(str(task.pk))
    assert after is not None
    assert (after.owner, after.slot, after.token) == (before.owner, before.slot, before.token)

    arguments = [str(tmp_path), ["r"], [], ""]
    rivals = [dispatch(witnesses.work_until, arguments, exclusive=["r"]) for _ in range(3)]
    other = dispatch(tasks.record, ["other"])
    wait_for_state(other, State.COMPLETED)
    assert {refreshed(rival).state for rival in rivals} == {State.WAITING}
    (tmp_path / "release").touch()
    ended = wait_until_final([task, *rivals])
    assert {task.state for task in ended} == {State.COMPLETED}
    assert witnesses.violations(tmp_path) == []
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


def test_a_rival_that_came_first_is_named_and_both_end_well(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    task = start(tmp_path, "r")
    locks.client.delete(locks.keys.request(str(task.pk)), locks.keys.lock("r"))
    rival = LockRequest(id="rival", exclusive=("r",), claimant=Claimant(owner="another@1", ttl=60))
    assert isinstance(locks.request(rival), Grant)
    worker.wait_for_log("runs without all of its locks")
    [line] = [line for line in worker.log().splitlines() if "runs without all" in line]
    assert str(task.pk) in line
    assert "rival of another@1" in line
    (tmp_path / "release").touch()
    wait_for_state(task, State.COMPLETED)
    wait_for_state(dispatch(tasks.record, ["next"]), State.COMPLETED)
    assert is_whole(locks, "rival", "r"), "the release of the other took nothing from it"
    locks.release("rival")
    assert_nothing_is_left(locks)
    assert worker.stop() == 0


def test_what_a_task_holds_by_itself_is_held_again(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    task = dispatch(hold_until_released, [str(tmp_path), "inner"], exclusive=["outer"])
    wait_until((tmp_path / "inner.held").exists)
    [inner] = locks.inspect_resource("inner").holders
    locks.client.delete(locks.keys.request(inner.id), locks.keys.lock("inner"))
    wait_until(lambda: is_whole(locks, inner.id, "inner"))
    found = locks.inspect_request(inner.id)
    assert found is not None
    assert found.slot, "it is settled with the executor"
    (tmp_path / "release").touch()
    wait_for_state(task, State.COMPLETED)
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


def test_an_executor_that_dies_after_that_leaves_nothing(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    task = dispatch(work_and_hold, [str(tmp_path), "inner"], exclusive=["outer"])
    wait_until((tmp_path / "inner.held").exists)
    [inner] = locks.inspect_resource("inner").holders
    locks.client.delete(locks.keys.request(inner.id), locks.keys.lock("inner"))
    locks.client.delete(locks.keys.request(str(task.pk)), locks.keys.lock("outer"))
    wait_until(lambda: is_whole(locks, inner.id, "inner"))
    wait_until(lambda: is_whole(locks, str(task.pk), "outer"))
    os.kill(Run.objects.get(task_id=task.pk).pid, signal.SIGKILL)
    wait_for_state(task, State.FAILED)
    assert "Killed by signal 9." in message(task)
    wait_until(lambda: locks.inspect_resource("inner").holder_count == 0)
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("loss", ["fail", "requeue"])
def test_an_executor_that_dies_before_that_has_its_task_settled(
    loss: str, workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """Its request is lost, and nobody has looked yet."""
    worker = workers.start(cleanup_interval=3600.0)
    arguments = [str(tmp_path), ["r"], [], str(tmp_path / "release")]
    task = dispatch(
        witnesses.work_until, arguments, exclusive=["r"], on_worker_loss=loss, max_attempts=2
    )
    run = wait_until(lambda: Run.objects.filter(task_id=task.pk).first())
    locks.client.delete(locks.keys.request(str(task.pk)))
    os.kill(run.pid, signal.SIGKILL)
    if loss == "fail":
        wait_for_state(task, State.FAILED)
    else:
        wait_until(lambda: Run.objects.filter(task_id=task.pk).count() == 2)
        (tmp_path / "release").touch()
        wait_for_state(task, State.COMPLETED)
    wait_for_state(dispatch(tasks.record, exclusive=["r"]), State.COMPLETED)
    assert witnesses.violations(tmp_path) == []
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


def test_an_executor_that_dies_before_that_has_its_immediate_tasks_settled_too(
    workers: Workers, locks: LockManager
) -> None:
    worker = workers.start(cleanup_interval=3600.0)
    task = dispatch(work_inside, exclusive=["outer"])
    inner = wait_until(
        lambda: Task.objects.filter(parent_task=task.pk, state=State.RUNNING).first()
    )
    run = wait_until(lambda: Run.objects.filter(task_id=inner.pk).first())
    for pk in (task.pk, inner.pk):
        locks.client.delete(locks.keys.request(str(pk)))
    os.kill(run.pid, signal.SIGKILL)
    for one in (task, inner):
        wait_for_state(one, State.FAILED)
        assert "Killed by signal 9." in message(one)
    wait_for_state(dispatch(tasks.record, exclusive=["outer", "inner"]), State.COMPLETED)
    assert worker.stop() == 0
    assert_nothing_is_left(locks)


def test_a_hold_of_a_script_is_held_again(locks: LockManager, tmp_path: Path) -> None:
    script = subprocess.Popen(
        [sys.executable, "-m", "tests.support.holder", str(tmp_path), "script"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    try:
        wait_until((tmp_path / "script.held").exists)
        [holder] = locks.inspect_resource("script").holders
        locks.client.delete(locks.keys.request(holder.id), locks.keys.lock("script"))
        wait_until(lambda: is_whole(locks, holder.id, "script"))
    finally:
        (tmp_path / "release").touch()
        assert script.wait(20) == 0
    assert_nothing_is_left(locks)


def test_fresh_work_is_never_touched(workers: Workers, locks: LockManager) -> None:
    """The worker looks as often as it can while tasks come and go."""
    worker = workers.start(
        "--concurrency", "2", heartbeat_interval=0.05, cleanup_interval=0.1
    )  # fmt: skip
    many = [
        dispatch(tasks.hold_inside if number % 3 == 0 else tasks.record, [f"r{number % 5}"])
        for number in range(300)
    ]
    assert {task.state for task in wait_until_final(many, timeout=60)} == {State.COMPLETED}
    assert worker.stop() == 0
    assert not re.search(f"{RESTORED}|cannot be restored|runs without", worker.log())
    assert_nothing_is_left(locks)
