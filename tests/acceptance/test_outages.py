"""Redis or the database away while workers are at work; and what an idle worker costs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from django_task_locks import cancel_task, dispatch
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.support import suite
from tests.support.processes import (
    Workers,
    message,
    refreshed,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_refusals import (
    Busy,
    CannotSave,
    NoReplicas,
    OutOfMemory,
    ReadOnly,
    Refusal,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Run


@pytest.fixture
def own_valkey(locks: LockManager, settings: Any) -> Iterator[ValkeyServer]:
    """A Valkey of this test's own, which keeps its data over a restart."""
    with ValkeyServer(appendonly="yes", appendfsync="always") as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        yield server


def test_a_running_task_outlives_redis_and_is_released_when_it_is_back(
    own_valkey: ValkeyServer, workers: Workers, tmp_path: Path
) -> None:
    worker = workers.start("--concurrency", "2", redis=own_valkey.url)
    gate = tmp_path / "gate"
    task = dispatch(tasks.record_until, ["busy", str(gate)], exclusive=["r"])
    next_one = dispatch(tasks.record, ["next"], exclusive=["r"])
    wait_for_state(task, State.RUNNING)
    own_valkey.kill()
    worker.wait_for_log("unavailable")
    gate.touch()
    wait_for_state(task, State.COMPLETED)
    assert refreshed(next_one).state == State.WAITING
    late = dispatch(tasks.record, ["dispatched without Redis"], exclusive=["r"])
    own_valkey.start()
    wait_for_state(next_one, State.COMPLETED)
    wait_for_state(late, State.COMPLETED)  # the periodic clean-up sends it
    assert_nothing_is_left(get_lock_manager())
    assert worker.process.poll() is None
    assert Run.objects.count() == 3


def test_an_idle_worker_waits_for_redis_and_goes_on(
    own_valkey: ValkeyServer, workers: Workers
) -> None:
    worker = workers.start(redis=own_valkey.url)
    own_valkey.kill()
    worker.wait_for_log("unavailable")
    own_valkey.start()
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    worker.wait_for_log("available again")
    assert worker.process.poll() is None


def test_a_worker_stops_cleanly_enough_without_redis(
    own_valkey: ValkeyServer, workers: Workers
) -> None:
    worker = workers.start(redis=own_valkey.url)
    own_valkey.kill()
    worker.wait_for_log("unavailable")
    assert worker.stop() == 1
    assert "Traceback" not in worker.log()
    own_valkey.start()
    workers.start(redis=own_valkey.url)  # under the same name: it clears up
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    wait_until(lambda: AppStatus.objects.filter(app_type="worker").count() == 1)


@pytest.mark.parametrize("kind", [ReadOnly, OutOfMemory, NoReplicas, CannotSave, Busy])
def test_C3_a_redis_that_refuses_changes_when_and_not_what(
    kind: type[Refusal], workers: Workers, locks: LockManager, settings: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with ValkeyServer(save="3600 1", busy_reply_threshold=10) as server, server.client() as control:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        worker = workers.start("--concurrency", "2", redis=server.url)
        task = dispatch(tasks.record_until, ["busy", str(gate)], exclusive=["r"])
        behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
        wait_for_state(task, State.RUNNING)
        owner = worker.status().owner
        refusal = kind(server, control)
        refusal.begin()
        try:
            worker.wait_for_log("unavailable")
            gate.touch()
            wait_for_state(task, State.COMPLETED)
            late = dispatch(tasks.record, ["late"], exclusive=["r"])
        finally:
            refusal.end()
        ended = wait_until_final([task, behind, late])
        assert {task.state for task in ended} == {State.COMPLETED}
        assert Run.objects.count() == 3
        assert worker.status().owner == owner
        assert_nothing_is_left(get_lock_manager())
        assert worker.stop() == 0
        assert "executor died" not in worker.log()


def test_C3_scripts_that_the_server_forgets_are_sent_again_unnoticed(
    workers: Workers, locks: LockManager
) -> None:
    worker = workers.start("--concurrency", "2")
    for number in range(5):
        locks.client.script_flush()
        wait_for_state(dispatch(tasks.add, [number], exclusive=["r"]), State.COMPLETED)
    assert "unavailable" not in worker.log()
    assert_nothing_is_left(locks)


def test_D6_what_cannot_be_released_hides_no_outcome(
    own_valkey: ValkeyServer, workers: Workers, tmp_path: Path
) -> None:
    """A success, an exception and a cancel, all of which end while Redis is away."""
    worker = workers.start("--concurrency", "3", redis=own_valkey.url)
    gate = tmp_path / "gate"
    done = dispatch(tasks.until, [str(gate)], exclusive=["a"])
    failed = dispatch(tasks.fail_after, ["went wrong", str(gate)], exclusive=["b"])
    canceled = dispatch(tasks.record, ["canceled", 60.0], exclusive=["c"])
    behind = [dispatch(tasks.record, [name], exclusive=[name]) for name in "abc"]
    wait_until(lambda: Run.objects.count() == 2 and Path(f"{gate}.began").exists())
    own_valkey.kill()
    worker.wait_for_log("unavailable")
    cancel_task(canceled)
    gate.touch()
    assert wait_for_state(done, State.COMPLETED).result == str(gate)
    wait_for_state(failed, State.FAILED)
    assert message(failed) == "went wrong"
    assert {refreshed(task).state for task in behind} == {State.WAITING}
    own_valkey.start()
    wait_for_state(canceled, State.CANCELED)
    assert {task.state for task in wait_until_final(behind)} == {State.COMPLETED}
    assert [refreshed(task).state for task in (done, failed)] == [State.COMPLETED, State.FAILED]
    assert_nothing_is_left(get_lock_manager())
    assert worker.process.poll() is None


def test_a_rolled_back_dispatch_never_runs(workers: Workers, locks: LockManager) -> None:
    workers.start()

    class Undo(Exception):
        pass

    with suppress(Undo), transaction.atomic():
        dispatch(tasks.record, ["never"], exclusive=["r"])
        raise Undo
    with transaction.atomic():
        task = dispatch(tasks.record, ["once"], exclusive=["r"])
        assert locks.inspect_request(str(task.pk)) is None
        assert not Run.objects.exists()
    wait_for_state(task, State.COMPLETED)
    assert [run.label for run in Run.objects.all()] == ["once"]
    assert Task.objects.count() == 1
    assert_nothing_is_left(locks)


def test_an_idle_worker_asks_the_database_nothing_but_its_heartbeat(
    workers: Workers, locks: LockManager
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("counted in PostgreSQL's log of statements")
    with connection.cursor() as cursor:
        cursor.execute("ALTER DATABASE test_task_locks SET log_statement = 'all'")
    try:
        # No clean-up in the time that is watched: that is one process's of a whole deployment.
        worker = workers.start("--concurrency", "2", cleanup_interval=3600.0)
        wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
        start = suite.postgres.log_file.stat().st_size
        first = worker.status().last_heartbeat
        beats = 5
        wait_until(
            lambda: (worker.status().last_heartbeat - first).total_seconds() > beats * suite.TTL / 6
        )
        with suite.postgres.log_file.open() as log:
            log.seek(start)
            statements = [line for line in log if "statement: " in line or "execute " in line]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER DATABASE test_task_locks RESET log_statement")
    theirs = [line for line in statements if 'UPDATE "django_task_locks_appstatus"' in line]
    assert beats - 1 <= len(theirs) <= beats + 3
    assert statements == theirs


def test_a_task_that_was_ended_past_the_signals_does_not_hold_up_others(
    workers: Workers, locks: LockManager
) -> None:
    """By an update, in the admin or with SQL, in a queue that nobody serves."""
    workers.start("--queue", "default")
    ended = dispatch(tasks.add, [1], exclusive=["r"], queue="nightly")
    behind = dispatch(tasks.add, [2], exclusive=["r"])
    Task.objects.filter(pk=ended.pk).update(state=State.CANCELED)
    wait_for_state(behind, State.COMPLETED, timeout=4 * suite.TTL)
    assert_nothing_is_left(locks)
