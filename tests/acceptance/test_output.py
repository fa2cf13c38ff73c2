"""What a worker tells whoever runs it, and that it starts anew when the code changes."""

import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State
from tests.support.processes import Workers, wait_for_state, wait_until
from tests.support.servers import ValkeyServer
from tests.testapp import tasks


def test_each_start_finish_and_failure_is_a_line_with_its_times(
    workers: Workers, locks: LockManager
) -> None:
    worker = workers.start()
    done = wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    failed = wait_for_state(dispatch(tasks.fail, ["boom"]), State.FAILED)
    worker.wait_for_log("failed after")
    assert worker.stop() == 0
    lines = worker.log().splitlines()
    number = r"\d+\.\d{3} s"
    for pattern in (
        rf"INFO    tests.testapp.tasks.add started, waited {number} \[{done.pk}\]$",
        rf"INFO    tests.testapp.tasks.add finished in {number}, waited {number} \[{done.pk}\]$",
        rf"WARNING tests.testapp.tasks.fail failed after {number}, waited {number}: "
        rf"builtins.ValueError: boom \[{failed.pk}\]$",
    ):
        assert sum(bool(re.search(pattern, line)) for line in lines) == 1, pattern
    assert "    Traceback (most recent call last):" in lines
    assert "    ValueError: boom" in lines


def test_the_first_line_says_where_it_works_and_no_password(
    workers: Workers, locks: LockManager
) -> None:
    with ValkeyServer(tcp=True, requirepass="swordfish") as server:
        url = f"redis://:swordfish@127.0.0.1:{server.port}/3"
        worker = workers.start("--queue", "mail", "--queue", "default", redis=url)
        (line,) = [line for line in worker.log().splitlines() if "worker started" in line]
        assert f"redis=127.0.0.1:{server.port}/3" in line
        assert "prefix=test" in line
        assert "queues=default,mail" in line
        assert "executors=1" in line
        assert re.search(r"host=\S+ pid=\d+", line)
        assert worker.stop() == 0
        assert "swordfish" not in worker.log()


def test_json_logs_are_one_object_a_line(workers: Workers, locks: LockManager) -> None:
    worker = workers.start("--json-logs")
    task = wait_for_state(dispatch(tasks.fail, ["boom"]), State.FAILED)
    worker.wait_for_log("task.failed")
    assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.log().splitlines()]
    (failed,) = [line for line in lines if line["event"] == "task.failed"]
    assert (failed["task"], failed["name"]) == (str(task.pk), "tests.testapp.tasks.fail")
    assert failed["reason"] == "builtins.ValueError: boom"
    assert failed["traceback"].endswith("ValueError: boom\n")
    assert failed["seconds"] >= 0
    assert failed["waited"] >= 0


class TestAutoreload:
    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An app of a project in development, with one module of tasks."""
        app = tmp_path / "shop"
        app.mkdir()
        (app / "__init__.py").touch()
        module = app / "jobs.py"
        module.write_text("def answer():\n    return 'old'\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("TEST_MORE_APPS", "shop")
        monkeypatch.syspath_prepend(str(tmp_path))
        return module

    def test_a_changed_module_of_tasks_is_used_from_then_on(
        self, module: Path, workers: Workers, locks: LockManager
    ) -> None:
        worker = workers.start("--autoreload")
        old = wait_for_state(dispatch("shop.jobs.answer"), State.COMPLETED)
        assert old.result == "old"
        module.write_text("def answer():\n    return 'newer'\n")
        worker.wait_for_log("source file changed")
        wait_until(lambda: worker.log().count("worker started") == 2)
        new = wait_for_state(dispatch("shop.jobs.answer"), State.COMPLETED)
        assert new.result == "newer"
        assert worker.stop(signal.SIGINT) == 0
        assert not AppStatus.objects.filter(app_type="worker").exists()

    def test_a_worker_that_a_mistake_has_ended_is_started_after_the_next_change(
        self, module: Path, workers: Workers, locks: LockManager
    ) -> None:
        models = module.with_name("models.py")
        worker = workers.start("--autoreload")
        models.write_text("this is no Python")
        worker.wait_for_log("started again when a source file changes")
        models.write_text("")
        wait_until(lambda: worker.log().count("worker started") == 2)
        assert worker.stop() == 0

    def test_the_worker_does_not_outlive_a_killed_reloader(
        self, module: Path, workers: Workers, locks: LockManager
    ) -> None:
        worker = workers.start("--autoreload")
        family = worker.descendants()
        worker.kill()
        began = time.monotonic()
        assert psutil.wait_procs(family, timeout=10)[1] == [], time.monotonic() - began
        assert not AppStatus.objects.filter(app_type="worker").exists()
