"""A worker that starts while Redis, the database or both are away: it says so, and waits."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connections

from django_task_locks import dispatch
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State
from tests.support import suite
from tests.support.processes import Worker, Workers, message, refreshed, wait_for_state, wait_until
from tests.support.redis_state import assert_nothing_is_left
from tests.support.server_base import free_port
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Run

on_postgres = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'",
    reason="a file is not away: that of SQLite is there, or the settings are wrong",
)

AWAY = [
    pytest.param({"redis"}, id="redis"),
    pytest.param({"database"}, id="database", marks=on_postgres),
    pytest.param({"redis", "database"}, id="both", marks=on_postgres),
]


@pytest.fixture
def own_valkey(locks: LockManager, settings: Any) -> Iterator[ValkeyServer]:
    """A Valkey of this test's own, which keeps its data over a restart."""
    with ValkeyServer(appendonly="yes", appendfsync="always") as server:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": server.url}
        yield server


@contextmanager
def stopped(kinds: set[str], valkey: ValkeyServer) -> Iterator[None]:
    """These services, away for the time of the block."""
    with ExitStack() as back:
        if "redis" in kinds:
            valkey.stop()
            back.callback(valkey.start)
        if "database" in kinds:
            connections.close_all()
            suite.postgres.stop()
            back.callback(suite.postgres.start)
        yield


def named(kinds: set[str], valkey: ValkeyServer) -> str:
    """As the worker's output names what is away."""
    names = {"redis": f"lock service at {valkey.url}", "database": "database 'default'"}
    return " and ".join(name for kind, name in names.items() if kind in kinds)


@pytest.mark.parametrize("kinds", AWAY)
def test_it_waits_cleans_up_after_its_predecessor_and_works_when_they_are_back(
    kinds: set[str], own_valkey: ValkeyServer, workers: Workers
) -> None:
    first = workers.start("--name", "w", redis=own_valkey.url)
    victim = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    behind = dispatch(tasks.record, ["behind"], exclusive=["r"])
    wait_until(lambda: Run.objects.filter(task_id=victim.pk).exists())
    first.kill()

    with stopped(kinds, own_valkey):
        second = workers.launch("--name", "w", redis=own_valkey.url)
        second.wait_for_log(f"not started yet: {named(kinds, own_valkey)} is away; next try in 1.0")
        second.wait_for_log("next try in 2.0")
        assert second.process.poll() is None

    second.wait_for_log("available again")
    wait_for_state(behind, State.COMPLETED)
    assert message(victim) == "Worker has gone missing."
    log = second.log()
    assert log.index("its lock file is free") < log.index("worker started")
    assert "Traceback" not in log
    assert [status.pk for status in AppStatus.objects.filter(name="w")] == [second.status().pk]
    assert_nothing_is_left(get_lock_manager())
    assert second.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kinds", AWAY)
def test_it_stops_at_once_while_it_waits(
    kinds: set[str], number: int, own_valkey: ValkeyServer, workers: Workers
) -> None:
    before = set(AppStatus.objects.values_list("pk", flat=True))
    with stopped(kinds, own_valkey):
        worker = workers.launch(redis=own_valkey.url)
        worker.wait_for_log("next try in 2.0")
        assert stop_time(worker, number) < 1.0
    assert set(AppStatus.objects.values_list("pk", flat=True)) == before


def stop_time(worker: Worker, number: int) -> float:
    """Seconds that a clean end takes after this signal."""
    start = time.monotonic()
    assert worker.stop(number) == 0
    seconds = time.monotonic() - start
    assert "worker stopped" in worker.log()
    assert "Traceback" not in worker.log()
    return seconds


def test_it_stops_at_once_while_a_server_that_hangs_keeps_it_waiting(
    own_valkey: ValkeyServer, workers: Workers
) -> None:
    os.kill(own_valkey.pid, signal.SIGSTOP)
    worker = workers.launch(redis=own_valkey.url)
    wait_until(lambda: threads(worker) > 1, what="the worker to ask")
    assert stop_time(worker, signal.SIGTERM) < 1.0


def threads(worker: Worker) -> int:
    with open(f"/proc/{worker.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def test_a_burst_waits_too(own_valkey: ValkeyServer, workers: Workers) -> None:
    task = dispatch(tasks.record, ["once"], exclusive=["r"])
    with stopped({"redis"}, own_valkey):
        worker = workers.launch("--burst", redis=own_valkey.url)
        worker.wait_for_log("next try in")
    assert worker.wait() == 0
    wait_for_state(task, State.COMPLETED)


def test_a_predecessor_that_cannot_be_cleaned_yet_is_cleaned_later(
    own_valkey: ValkeyServer, workers: Workers
) -> None:
    """Redis answers, but takes no writes: the worker is there, and so is its clean-up."""
    first = workers.start("--name", "w", redis=own_valkey.url)
    victim = dispatch(tasks.record, ["victim", 60], exclusive=["r"])
    wait_until(lambda: Run.objects.filter(task_id=victim.pk).exists())
    first.kill()
    with own_valkey.client() as client:
        client.config_set("min-replicas-to-write", 1)
        second = workers.launch("--name", "w", redis=own_valkey.url)
        second.wait_for_log("clean-up step failed")
        second.wait_until_started()
        assert refreshed(victim).state == State.RUNNING
        client.config_set("min-replicas-to-write", 0)
    wait_for_state(victim, State.FAILED)
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    wait_until(lambda: AppStatus.objects.filter(name="w").count() == 1)


@on_postgres
def test_a_check_of_the_project_that_asks_the_database_is_no_reason_to_refuse(
    own_valkey: ValkeyServer, workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "asking").mkdir()
    (tmp_path / "asking" / "__init__.py").touch()
    (tmp_path / "asking" / "apps.py").write_text(
        "from django.apps import AppConfig\n"
        "from django.core.checks import register\n"
        "from django.db import connection\n"
        "class Asking(AppConfig):\n"
        "    name = 'asking'\n"
        "    def ready(self):\n"
        "        register(lambda **kwargs: connection.ensure_connection() or [])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TEST_MORE_APPS", "asking")
    with stopped({"database"}, own_valkey):
        worker = workers.launch(redis=own_valkey.url)
        worker.wait_for_log("next try in")
        refused = workers.launch(redis=own_valkey.url, ttl=0)
        assert refused.wait() == 1
        assert "TASK_LOCKS['ttl'] is 0" in refused.log()
    worker.wait_until_started()
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)


@pytest.mark.parametrize(("policy", "lines"), [("allkeys-lru", 1), ("volatile-lru", 0)])
def test_a_server_that_drops_locks_is_told_of_and_used(
    policy: str, lines: int, own_valkey: ValkeyServer, workers: Workers
) -> None:
    with own_valkey.client() as client:
        client.config_set("maxmemory-policy", policy)
    worker = workers.start(redis=own_valkey.url)
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    assert worker.log().count(f"policy={policy}") == lines


class TestWrongConfigurationIsRefusedAtOnce:
    def refused(self, workers: Workers, *arguments: str, **locks: Any) -> str:
        worker = workers.launch(*arguments, **locks)
        assert worker.wait() == 1
        assert "Traceback" not in worker.log()
        assert "next try" not in worker.log()
        return worker.log()

    def test_password_that_redis_does_not_take(self, workers: Workers, locks: LockManager) -> None:
        with ValkeyServer(tcp=True, requirepass="right") as server:
            url = f"redis://:swordfish@127.0.0.1:{server.port}"
            log = self.refused(workers, redis=url)
        assert f"127.0.0.1:{server.port}" in log
        assert "TASK_LOCKS['redis']" in log
        assert "swordfish" not in log

    def test_user_without_the_rights(self, workers: Workers, locks: LockManager) -> None:
        with ValkeyServer(tcp=True) as server, server.client() as client:
            client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "-@all", "+hello")
            log = self.refused(workers, redis=f"redis://poor:pw@127.0.0.1:{server.port}")
        assert "TASK_LOCKS['redis']" in log

    def test_settings_that_are_wrong_though_redis_is_away(
        self, workers: Workers, locks: LockManager
    ) -> None:
        log = self.refused(workers, redis=f"redis://127.0.0.1:{free_port()}", ttl=0)
        assert "TASK_LOCKS['ttl'] is 0" in log

    def test_directory_that_cannot_be_written(self, workers: Workers, locks: LockManager) -> None:
        assert "TASK_LOCKS['run_dir']" in self.refused(workers, run_dir="/proc/nowhere")

    def test_database_without_our_tables(
        self, workers: Workers, locks: LockManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.setenv("TEST_DATABASE_NAME", "postgres")
        monkeypatch.setenv("TEST_SQLITE_FILE", str(tmp_path / "new.sqlite3"))
        assert "manage.py migrate" in self.refused(workers)

    def test_options(self, workers: Workers, locks: LockManager) -> None:
        assert "--concurrency" in self.refused(workers, "--concurrency", "0")
