"""Bodies that do not play by the rules, and services that fail at the worst moment."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from django.db import connection, connections
from redis import Redis

from django_task_locks import cancel_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.support.intervals import runs_of
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
from tests.support.servers import PostgresServer, ValkeyServer
from tests.support.suite import TTL
from tests.testapp import tasks
from tests.testapp.models import Run

on_postgres = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'", reason="PostgreSQL's own means"
)


def begun(task: Task) -> Run:
    return wait_until(lambda: Run.objects.filter(task_id=task.pk).first(), what=f"{task} to begin")


@pytest.mark.parametrize("body", [tasks.stamp_in_thread, tasks.wait_for_program])
def test_nothing_of_a_canceled_body_goes_on_when_its_locks_are_free(
    body: object, worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    """Neither a thread nor a program hears of the exception that ends the body."""
    path = tmp_path / "stamps"
    task = dispatch(body, ["canceled", str(path)], exclusive=["r"])  # type: ignore[arg-type]
    next_one = dispatch(tasks.record, ["next", 0.5], exclusive=["r"])
    wait_until(lambda: path.exists() and path.read_text())
    cancel_task(task)
    wait_for_state(next_one, State.COMPLETED)
    assert refreshed(task).state == State.CANCELED
    assert message(task) == "Canceled while it ran."
    assert float(path.read_text().split()[-1]) < runs_of([next_one])[next_one.pk].began


def test_the_end_of_a_canceled_body_is_run_and_not_put_off_by_a_nested_task(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    path = tmp_path / "done"
    task = dispatch(tasks.nest_and_tidy_up, [str(path)])
    wait_until(lambda: Run.objects.filter(label="inside").exists())
    cancel_task(task)
    wait_for_state(task, State.CANCELED)
    assert path.read_text() == "tidied up"
    assert {child.state for child in refreshed(task).child_tasks.all()} == {State.CANCELED}
    assert_nothing_is_left(locks)


def test_a_cancel_that_hits_a_nested_dispatch_leaves_nothing_of_it(
    worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    for number in range(15):
        flag = tmp_path / f"flag-{number}"
        task = dispatch(tasks.dispatch_again_and_again, [str(flag), 30.0])
        wait_until(flag.exists)
        cancel_task(task)
        wait_for_state(task, State.CANCELED)
        wait_until(lambda: not Task.objects.incomplete().exists(), what="no task left behind")
        assert_nothing_is_left(locks)


def test_a_fork_that_a_body_lets_come_back_is_no_second_executor(
    worker: Worker, locks: LockManager
) -> None:
    task = wait_for_state(dispatch(tasks.fork_and_exit), State.COMPLETED)
    rest = [dispatch(tasks.record, [f"{n}"], exclusive=["r"]) for n in range(8)]
    assert {task.state for task in wait_until_final(rest)} == {State.COMPLETED}
    assert Run.objects.count() == 8, "each ran once"
    assert task.error is None


def test_processes_that_a_body_starts_have_the_systems_own_signal_handlers(
    worker: Worker, locks: LockManager
) -> None:
    assert wait_for_state(dispatch(tasks.end_a_process), State.COMPLETED).result is True


def test_a_message_that_makes_no_sense_is_passed_over(worker: Worker, locks: LockManager) -> None:
    owner = worker.status().owner
    for text in ("cancel nonsense", "", "dance"):
        locks.send(owner, text)
    task = dispatch(tasks.record, ["victim", 60.0])
    begun(task)
    cancel_task(task)
    wait_for_state(task, State.CANCELED, timeout=5)
    assert worker.process.poll() is None


def test_an_odd_reply_of_redis_to_the_heartbeat_does_not_fence_the_worker(
    worker: Worker, locks: LockManager
) -> None:
    task = dispatch(tasks.record, ["long", 60.0])
    begun(task)
    locks.client.set(locks.keys.suspects, "not ours")
    worker.wait_for_log("unavailable for a heartbeat")
    beat = worker.status().last_heartbeat
    wait_until(lambda: (worker.status().last_heartbeat - beat).total_seconds() > TTL)
    locks.client.delete(locks.keys.suspects)
    assert refreshed(task).state == State.RUNNING
    assert "no heartbeat in time" not in worker.log()


def test_an_idle_worker_does_not_spin_when_redis_refuses_writes(
    workers: Workers, settings: object, locks: LockManager
) -> None:
    with ValkeyServer() as server, server.client() as client:
        worker = workers.start(redis=server.url)
        client.config_set("min-replicas-to-write", 1)
        worker.wait_for_log("unavailable")
        before, began = _commands(client), time.monotonic()
        beat = worker.status().last_heartbeat
        wait_until(lambda: (worker.status().last_heartbeat - beat).total_seconds() > 2)
        assert (_commands(client) - before) / (time.monotonic() - began) < 50
        client.config_set("min-replicas-to-write", 0)
        worker.wait_for_log("available again")


def _commands(client: Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])


@on_postgres
def test_L1_a_start_that_its_dead_executor_has_sent_cannot_come_late(
    workers: Workers, locks: LockManager, tmp_path: Path, postgres: PostgresServer
) -> None:
    """The UPDATE waits for the row's lock while its executor dies."""
    worker = workers.start()
    gate = tmp_path / "gate"
    first = dispatch(tasks.record_until, ["first", str(gate)], exclusive=["r"])
    task = dispatch(tasks.record, ["victim"], exclusive=["r"])
    executor = begun(first).pid
    with postgres.client("test_task_locks") as other, postgres.client() as observer:

        def waiting() -> int:
            row = observer.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            ).fetchone()
            return int(row[0]) if row else 0

        other.execute("BEGIN")
        other.execute(
            "SELECT 1 FROM django_task_locks_task WHERE id = %s FOR UPDATE", [str(task.pk)]
        )
        gate.touch()
        wait_until(waiting)
        os.kill(executor, signal.SIGKILL)
        worker.wait_for_log("executor died")
        wait_until(lambda: waiting() > 1, what="the settling to wait")
        other.execute("ROLLBACK")
    ended = wait_until_final([task])[0]
    assert (ended.state, message(ended)) == (State.FAILED, "Killed by signal 9.")
    assert_nothing_is_left(locks)


@pytest.fixture
def frozen(postgres: PostgresServer) -> Iterator[list[int]]:
    """Pids of backends to freeze in the test; they go on at its end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@on_postgres
def test_a_database_connection_that_hangs_fences_the_worker_and_can_be_stopped(
    workers: Workers, locks: LockManager, postgres: PostgresServer, frozen: list[int]
) -> None:
    """As behind a router that forgot it: nothing is answered, and nothing is refused."""
    worker = workers.start()
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = 'test_task_locks' AND query LIKE "
        "'UPDATE \"django_task_locks_appstatus\"%%'"
    )
    with postgres.client() as other:
        frozen += wait_until(lambda: [pid for (pid,) in other.execute(query).fetchall()])
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    worker.wait_for_log("starting as a new incarnation")
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    assert worker.stop() == 0


@on_postgres
def test_coroutines_work_again_after_the_database_was_restarted(
    workers: Workers, locks: LockManager, postgres: PostgresServer
) -> None:
    workers.start()
    wait_for_state(dispatch(tasks.acount_books), State.COMPLETED)
    with postgres.client() as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = 'test_task_locks' AND pid <> pg_backend_pid()"
        )
    connections.close_all()
    wait_until_final([dispatch(tasks.acount_books)])  # finds out
    wait_for_state(dispatch(tasks.acount_books), State.COMPLETED)


@on_postgres
def test_an_outcome_that_the_database_never_takes_ends_as_failed(
    workers: Workers, locks: LockManager
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
              IF NEW.result::text = '77' THEN
                RAISE EXCEPTION 'too large' USING ERRCODE = '54000';
              END IF;
              RETURN NEW;
            END $$;
            CREATE TRIGGER refuse BEFORE UPDATE ON django_task_locks_task
              FOR EACH ROW EXECUTE FUNCTION refuse();
            """
        )
        try:
            workers.start()
            task = wait_for_state(dispatch(tasks.add, [77]), State.FAILED, timeout=20)
        finally:
            cursor.execute("DROP TRIGGER refuse ON django_task_locks_task; DROP FUNCTION refuse")
    assert "cannot be stored: too large" in message(task)
    assert_nothing_is_left(locks)


def test_an_executor_that_dies_at_once_is_not_started_in_a_hot_loop(
    worker: Worker, locks: LockManager
) -> None:
    supervisor = psutil.Process(worker.pid)
    (guard,) = filter(is_guard, supervisor.children())
    seconds = 3
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for child in supervisor.children():
            if child.pid != guard.pid:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        time.sleep(0.005)
    # Each of the two slots starts again after a second at the earliest.
    assert 2 <= worker.log().count("executor died") <= 2 * (seconds + 2)
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    assert AppStatus.objects.online().filter(pid=worker.pid).exists()
