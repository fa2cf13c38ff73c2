"""Workers and their children while the locks are rebuilt: who leads dies or stalls, a claim comes
late, Redis hangs.
"""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from pytest_django import Settings

from django_task_locks import dispatch, epochs, presence, rebuilding
from django_task_locks.connections import get_lock_manager, rebuilding_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.locks.rebuild import Rebuild
from django_task_locks.models import AppStatus, LockEpoch, State, Task
from django_task_locks.sending import send_request
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.transactions import elsewhere
from tests.support import suite
from tests.support.holder import hold_until_released
from tests.support.processes import (
    Worker,
    Workers,
    is_guard,
    message,
    refreshed,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Run

LONG = timedelta(seconds=60)


@pytest.fixture
def server(locks: LockManager, settings: Settings) -> Iterator[ValkeyServer]:
    """A Valkey of the test's own, on which the locks are."""
    with ValkeyServer() as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        epochs.forget()
        assert rebuilding.rebuild()
        yield server
        presence.leave()


def is_closed_under(number: int) -> bool:
    found = Rebuild(rebuilding_lock_manager()).look()
    return found.epoch.number >= number and not found.is_open


def children(worker: Worker) -> set[int]:
    return {process.pid for process in worker.descendants() if not is_guard(process)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "stalls"])
def test_a_leader_that_is_gone_is_followed(
    number: signal.Signals, workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    worker = workers.start("--concurrency", "2", cleanup_interval=3600.0)
    gate = str(tmp_path / "gate")
    task = dispatch(tasks.record_until, ["busy", gate], exclusive=["r"])
    rival = dispatch(tasks.record, ["rival"], exclusive=["r"])
    wait_for_state(task, State.RUNNING)
    # Somebody for whom each leader waits until the test says otherwise.
    behind = AppStatusFactory.create(ttl=LONG, app_type="other")
    before, first = children(worker), LockEpoch.present().number
    locks.client.flushall()
    wait_until(lambda: is_closed_under(first + 1))
    [leader] = wait_until(lambda: found if len(found := children(worker) - before) == 1 else None)
    psutil.Process(leader).send_signal(number)

    # Nobody disturbs a leader for one TTL.
    wait_until(lambda: is_closed_under(first + 2), timeout=4 * suite.TTL)
    AppStatus.objects.filter(pk=behind.pk).update(epoch=1_000)
    wait_until(rebuilding.are_locks_right)
    assert LockEpoch.present().number == first + 2
    assert not psutil.pid_exists(leader)
    assert refreshed(rival).state == State.WAITING

    Path(gate).touch()
    wait_until_final([task, rival])
    assert [run.label for run in Run.objects.order_by("began")] == ["busy", "rival"]
    AppStatus.objects.filter(pk=behind.pk).delete()
    assert_nothing_is_left(get_lock_manager())


def test_a_claim_of_an_epoch_that_has_ended_does_not_start(
    workers: Workers, locks: LockManager
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("a row is locked to hold the claim up")
    worker = workers.start()
    task = TaskFactory.create(exclusive=["r"], args=["once"])
    with transaction.atomic():
        Task.objects.select_for_update().get(pk=task.pk)
        send_request(task)
        wait_until(lambda: locks.inspect_resource("r").holders[:1] and _is_held(locks, task))
        elsewhere(lambda: LockEpoch.objects.update(number=F("number") + 1))
    worker.wait_for_log("claimed in an epoch that has ended")
    wait_for_state(task, State.COMPLETED)
    assert Run.objects.count() == 1
    assert_nothing_is_left(get_lock_manager())


def _is_held(locks: LockManager, task: Task) -> bool:
    found = locks.inspect_request(str(task.pk))
    return found is not None and found.state == "held"


def test_a_queue_that_is_new_after_the_loss_is_served(workers: Workers, locks: LockManager) -> None:
    """Lanes are counted anew, and the first one after the loss has the number of the first one
    before it.
    """
    workers.start(cleanup_interval=3600.0)
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    first = LockEpoch.present().number
    locks.client.flushall()
    wait_until(lambda: LockEpoch.present().number > first and rebuilding.are_locks_right())
    wait_for_state(dispatch(tasks.add, [1], queue="another"), State.COMPLETED)


def test_a_redis_that_hangs_meanwhile_fences_no_worker(
    server: ValkeyServer, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start("--concurrency", "2", redis=server.url)
    holder = dispatch(hold_until_released, [str(tmp_path), "r"])
    wait_until((tmp_path / "r.held").exists)
    psutil.Process(server.pid).suspend()
    LockEpoch.objects.update(number=F("number") + 1)
    first = worker.status().last_heartbeat
    wait_until(
        lambda: (worker.status().last_heartbeat - first).total_seconds() > 2 * suite.TTL,
        timeout=4 * suite.TTL,
        what="heartbeats over two TTLs",
    )
    psutil.Process(server.pid).resume()
    wait_until(rebuilding.are_locks_right)
    (tmp_path / "release").touch()
    wait_for_state(holder, State.COMPLETED)
    assert "fenced" not in worker.log()
    assert_nothing_is_left(get_lock_manager())


def test_an_executor_that_cannot_restore_what_it_holds_is_given_up_alone(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """Its body is in C code that lets nobody else at the interpreter."""
    worker = workers.start("--concurrency", "2")
    gate = str(tmp_path / "gate")
    other = dispatch(tasks.record_until, ["other", gate])
    stuck = dispatch(tasks.hold_in_c, ["inner"])
    wait_until(lambda: Run.objects.count() == 2)
    locks.client.flushall()
    wait_for_state(stuck, State.FAILED)
    assert "Killed by signal 9." in message(stuck)
    rival = wait_for_state(dispatch(tasks.record, ["rival"], exclusive="inner"), State.COMPLETED)
    assert refreshed(other).state == State.RUNNING
    Path(gate).touch()
    wait_until_final([other, rival])
    assert "fenced" not in worker.log()
    assert_nothing_is_left(get_lock_manager())


def test_an_executor_that_dies_meanwhile_holds_nobody_up(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """What its task held by itself is restored by nobody."""
    worker = workers.start("--concurrency", "2")
    holder = dispatch(hold_until_released, [str(tmp_path), "inner"], exclusive=["r"])
    wait_until((tmp_path / "inner.held").exists)
    behind = AppStatusFactory.create(ttl=LONG, app_type="other")
    first = LockEpoch.present().number
    running = dispatch(tasks.own_pid)
    wait_for_state(running, State.COMPLETED)
    [executor] = [
        process for process in worker.descendants()
        if not is_guard(process) and process.pid != refreshed(running).result
    ]  # fmt: skip
    locks.client.flushall()
    wait_until(lambda: is_closed_under(first + 1))
    executor.kill()
    AppStatus.objects.filter(pk=behind.pk).update(epoch=1_000)
    wait_until(rebuilding.are_locks_right)
    wait_for_state(holder, State.FAILED)
    for name in ("r", "inner"):
        wait_for_state(dispatch(tasks.record, exclusive=[name]), State.COMPLETED)
    AppStatus.objects.filter(pk=behind.pk).delete()
    assert_nothing_is_left(get_lock_manager())
    connections.close_all()
