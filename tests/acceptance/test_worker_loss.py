"""Executors and workers that die, hang or are cut off."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from django.db import connection

from django_task_locks import cancel_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
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
from tests.support.suite import TTL
from tests.testapp import tasks, witnesses
from tests.testapp.models import Run

MISSING = "Worker has gone missing."


def running(task: Task) -> Run:
    """Its run, once its body has begun."""
    return wait_until(lambda: Run.objects.filter(task_id=task.pk).first(), what=f"{task} to begin")


def test_L3_a_killed_executor_fails_its_task_and_the_next_one_starts(
    worker: Worker, locks: LockManager
) -> None:
    """L3: a child is killed while it runs its task (by hand, or for want of memory)."""
    task = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    os.kill(running(task).pid, signal.SIGKILL)
    wait_for_state(rival, State.COMPLETED, timeout=5)
    assert refreshed(task).state == State.FAILED
    assert message(task) == "Killed by signal 9."
    assert_nothing_is_left(locks)
    assert worker.process.poll() is None
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)  # the slot has a new executor


def test_L3_what_a_killed_executor_started_is_dead_before_its_locks_are_free(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    task = dispatch(tasks.with_subprocess, ["parent", str(alive)], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    run = running(task)
    wait_until(lambda: alive.exists() and alive.read_text())
    os.kill(run.pid, signal.SIGKILL)
    wait_for_state(rival, State.COMPLETED, timeout=5)
    began = runs_of([rival])[rival.pk].began
    assert float(alive.read_text().split()[-1]) < began


@pytest.mark.parametrize("status", [0, 3])
def test_L21_an_executor_that_ends_without_an_outcome_fails_its_task(
    status: int, worker: Worker, locks: LockManager
) -> None:
    """L21: a child exits, even with status 0, without recording a final state."""
    task = dispatch(tasks.vanish, [status], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    wait_for_state(rival, State.COMPLETED, timeout=5)
    assert refreshed(task).state == State.FAILED
    assert f"exited with status {status}" in message(task)
    assert_nothing_is_left(locks)


def test_L11_a_worker_restarted_under_its_name_at_once_cleans_up_before_its_first_task(
    workers: Workers, locks: LockManager
) -> None:
    """L11: it restarts under its name while the predecessor's heartbeat is fresh."""
    first = workers.start("--name", "w", "--concurrency", "2")
    victims = [dispatch(tasks.record, [f"{n}", 60], exclusive=[f"r{n}"]) for n in range(2)]
    waiting = [dispatch(tasks.record, [f"next {n}"], exclusive=[f"r{n}"]) for n in range(2)]
    for victim in victims:
        running(victim)
    first.kill()
    killed_at = time.monotonic()
    second = workers.start("--name", "w", "--concurrency", "2")
    started_after = time.monotonic() - killed_at
    ended = wait_until_final([*victims, *waiting], timeout=TTL)
    assert [task.state for task in ended] == [State.FAILED] * 2 + [State.COMPLETED] * 2
    assert {message(victim) for victim in victims} == {MISSING}
    assert "its lock file is free" in second.log()
    assert started_after < TTL, "it must not have had to wait for the TTL"
    assert AppStatus.objects.filter(name="w").count() == 1
    assert_nothing_is_left(locks)


def test_L11_without_its_lock_file_a_predecessor_is_dead_after_its_ttl(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """As in a container that comes back with a new file system."""
    first = workers.start("--name", "w", run_dir=str(tmp_path / "first"))
    victim = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    waiting = dispatch(tasks.record, ["next"], exclusive=["r"])
    run = running(victim)
    first.kill()
    killed_at = time.monotonic()
    for file in (tmp_path / "first").iterdir():
        file.unlink()
    second = workers.start("--name", "w", run_dir=str(tmp_path / "second"))
    wait_for_state(waiting, State.COMPLETED, timeout=4 * TTL)
    assert time.monotonic() - killed_at > TTL - 1.0
    assert "not dead yet" in second.log()
    assert message(victim) == MISSING
    assert not psutil.pid_exists(run.pid)
    assert_nothing_is_left(locks)


def test_L11_a_unique_name_is_the_operators_promise_that_the_predecessor_is_dead(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    first = workers.start("--name", "pod-0", run_dir=str(tmp_path / "first"))
    victim = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    waiting = dispatch(tasks.record, ["next"], exclusive=["r"])
    running(victim)
    first.kill()
    for file in (tmp_path / "first").iterdir():
        file.unlink()
    second = workers.start("--name", "pod-0", "--unique-name", run_dir=str(tmp_path / "second"))
    wait_for_state(waiting, State.COMPLETED, timeout=TTL)
    assert "used once at a time" in second.log()
    assert message(victim) == MISSING
    assert_nothing_is_left(locks)


def test_L12_two_live_workers_of_one_name_do_not_touch_each_other(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """L12: a live successor, or double, under the same name is never cleaned."""
    gate = tmp_path / "gate"
    workers.start("--name", "same")
    task = dispatch(tasks.record_until, ["first", str(gate)], exclusive=["r"])
    running(task)
    second = workers.start("--name", "same")
    other = dispatch(tasks.record, ["second"], exclusive=["elsewhere"])
    wait_for_state(other, State.COMPLETED)
    assert refreshed(task).state == State.RUNNING
    second.kill()
    third = workers.start("--name", "same")
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    assert refreshed(task).state == State.RUNNING
    assert third.process.poll() is None
    gate.touch()
    wait_for_state(task, State.COMPLETED)
    assert_nothing_is_left(locks)


def test_a_killed_workers_locks_are_free_soon_after_its_ttl_through_another_worker(
    workers: Workers, locks: LockManager
) -> None:
    doomed = workers.start("--name", "doomed")
    victim = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    running(victim)
    workers.start("--name", "other")
    waiting = dispatch(tasks.record, ["next"], exclusive=["r"])
    doomed.kill()
    killed_at = time.monotonic()
    wait_for_state(waiting, State.COMPLETED, timeout=4 * TTL)
    # One clean-up interval after the TTL, or once the judge has itself beaten for one TTL.
    assert time.monotonic() - killed_at < 2 * TTL
    assert message(victim) == MISSING
    assert overlaps([victim]) == []
    wait_until(lambda: not AppStatus.objects.filter(name="doomed").exists())
    assert_nothing_is_left(locks)


def test_a_task_that_may_be_repeated_goes_back_to_its_place(
    workers: Workers, locks: LockManager
) -> None:
    first = workers.start("--name", "w")
    victim = dispatch(
        tasks.record, ["again", 1.0], exclusive=["r"], on_worker_loss="requeue", max_attempts=2
    )
    behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
    running(victim)
    first.kill()
    workers.start("--name", "w")
    ended = wait_until_final([victim, behind])
    assert {task.state for task in ended} == {State.COMPLETED}
    assert ended[0].attempt == 2
    assert Run.objects.filter(task_id=victim.pk).count() == 2
    last = Run.objects.filter(task_id=victim.pk).latest("began")
    assert last.ended is not None
    assert last.ended < runs_of([behind])[behind.pk].began
    assert_nothing_is_left(locks)


def test_executors_and_what_they_started_die_with_their_supervisor(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    task = dispatch(tasks.with_subprocess, ["parent", str(alive)], exclusive=["r"])
    running(task)
    wait_until(lambda: alive.exists() and alive.read_text())
    family = worker.descendants()
    assert len(family) >= 4, "guard, two executors, the task's own program"
    worker.kill()
    _, left = psutil.wait_procs(family, timeout=3)
    assert left == []


def test_a_frozen_supervisor_is_fenced_by_its_guard_and_starts_over(
    worker: Worker, workers: Workers, locks: LockManager
) -> None:
    task = dispatch(tasks.stubborn, ["frozen", 60], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    run = running(task)
    before = worker.status().owner
    worker.send(signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_until(
        lambda: psutil.Process(run.pid).status() == psutil.STATUS_ZOMBIE,
        what="the guard to kill the executor",
    )
    assert time.monotonic() - stopped_at < TTL, "before anybody else may judge it"
    worker.send(signal.SIGCONT)
    wait_for_state(rival, State.COMPLETED, timeout=3 * TTL)
    assert refreshed(task).state == State.FAILED
    assert worker.status().owner != before
    assert "starting as a new incarnation" in worker.log()
    assert_nothing_is_left(locks)


def test_a_worker_whose_row_was_deleted_starts_over(worker: Worker, locks: LockManager) -> None:
    task = dispatch(tasks.record, ["orphan", 60], exclusive=["r"])
    running(task)
    AppStatus.objects.filter(pk=worker.status().pk).delete()
    wait_for_state(task, State.FAILED, timeout=2 * TTL)
    wait_for_state(dispatch(tasks.record, ["next"], exclusive=["r"]), State.COMPLETED)
    assert "starting as a new incarnation" in worker.log()
    assert_nothing_is_left(locks)


def test_a_task_that_burns_the_processor_does_not_make_its_worker_missing(
    workers: Workers, locks: LockManager
) -> None:
    burner = workers.start("--name", "burner")
    workers.start("--name", "judge")
    task = dispatch(tasks.burn, ["burning", 2 * TTL], exclusive=["r"])
    running(task)
    owner = burner.status().owner, workers.started[1].status().owner
    ended = wait_for_state(task, State.COMPLETED, timeout=4 * TTL)
    assert ended.error is None
    assert owner == (burner.status().owner, workers.started[1].status().owner)
    assert AppStatus.objects.missing().count() == 0


def test_B3_code_in_c_that_keeps_the_interpreter_does_not_make_its_worker_missing(
    workers: Workers, locks: LockManager
) -> None:
    deaf, judge = workers.start("--name", "deaf"), workers.start("--name", "judge")
    task = dispatch(tasks.sleep_in_c, ["deaf", 0.0], exclusive=["r"])
    running(task)
    owners = deaf.status().owner, judge.status().owner
    beats_for(judge, 2 * TTL)
    assert (deaf.status().owner, judge.status().owner) == owners
    assert refreshed(task).state == State.RUNNING
    cancel_task(task)
    wait_for_state(task, State.CANCELED)
    assert_nothing_is_left(locks)


def beats_for(worker: Worker, seconds: float) -> None:
    """Waits until it has beaten for so long."""
    before = worker.status().last_heartbeat
    wait_until(
        lambda: (worker.status().last_heartbeat - before).total_seconds() > seconds,
        timeout=3 * seconds,
    )


def test_B3_workers_that_are_woken_without_end_beat_in_time(
    workers: Workers, locks: LockManager
) -> None:
    """By tasks, of which the others win the most, and by messages."""
    crowd = [workers.start("--name", f"w{number}") for number in range(3)]
    owners = [worker.status().owner for worker in crowd]
    dispatched, end = [], time.monotonic() + 2 * TTL
    while time.monotonic() < end:
        dispatched.append(dispatch(tasks.add, [1], exclusive=["r"]))
        for owner in owners:
            locks.send(owner, "dance")
        if connection.vendor == "postgresql":  # there the lock file tells who lives
            assert not AppStatus.objects.missing().exists()
        time.sleep(0.02)  # the pace of the load, not a wait for something
    ended = wait_until_final(dispatched, timeout=60)
    assert {task.state for task in ended} == {State.COMPLETED}
    assert [worker.status().owner for worker in crowd] == owners
    assert_nothing_is_left(locks)


@pytest.mark.parametrize("names", [("w",) * 3, ("a", "b", "c")], ids=["its own", "others"])
def test_B8_three_that_start_at_once_settle_a_dead_one_before_they_take_what_it_held(
    names: tuple[str, ...], workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = workers.start("--name", "w")
    arguments = [str(tmp_path), ["r"], [], str(gate)]
    victim = dispatch(
        witnesses.work_until,
        arguments,
        exclusive=["r"],
        on_worker_loss="requeue",
        max_attempts=3,
    )
    behind = [dispatch(witnesses.work_until, arguments, exclusive=["r"]) for _ in range(2)]
    executor = psutil.Process(running(victim).pid)
    first.kill()
    psutil.wait_procs([executor], timeout=5)
    gate.touch()
    for name in names:
        workers.launch("--name", name)
    ended = wait_until_final([victim, *behind], timeout=8 * TTL)
    assert {task.state for task in ended} == {State.COMPLETED}
    assert [task.attempt for task in ended] == [2, 1, 1]
    assert Run.objects.count() == 4
    assert witnesses.violations(tmp_path) == []
    last = Run.objects.filter(task_id=victim.pk).latest("began")
    assert last.ended is not None
    assert all(last.ended < run.began for run in runs_of(behind).values()), "it keeps its place"
    assert_nothing_is_left(locks)


def test_the_options_of_a_worker_are_checked() -> None:
    for arguments in (["--concurrency", "0"], ["--queue", "two words"], ["--name", ""]):
        ended = subprocess.run(
            [sys.executable, "-m", "django", "task_worker", *arguments],
            env=dict(os.environ, DJANGO_SETTINGS_MODULE="tests.settings"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1
        assert arguments[0] in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_unique_name_beside_a_live_worker_of_this_host_is_refused(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = workers.start("--name", "pod-0", "--unique-name")
    task = dispatch(tasks.record_until, ["first", str(gate)], exclusive=["r"])
    running(task)
    second = workers.launch("--name", "pod-0", "--unique-name")
    assert second.wait() == 1
    assert f"(pid {first.pid}) of this host lives" in second.log()
    assert "Traceback" not in second.log()
    assert AppStatus.objects.filter(name="pod-0").count() == 1
    gate.touch()
    wait_for_state(task, State.COMPLETED)
    assert_nothing_is_left(locks)
