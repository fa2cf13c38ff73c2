"""manage.py cleanup_locks: what it prints, what it does, and how it ends."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_task_locks import dispatch
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.cleaning import everything, report, run, steps
from tests.integration.conftest import PASSWORD
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import tasks

MISSING = "Worker has gone missing."


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_nothing_to_do(locks: LockManager, dry_run: list[str]) -> None:
    assert run(*dry_run) == "Nothing to clean up.\n"
    assert report(*dry_run) == {
        "dry_run": bool(dry_run),
        "failed": 0,
        "classes": [],
        "steps": [],
        "pending": [],
    }


def test_table_names_each_step_and_counts_them(locks: LockManager, lost: HandWorker) -> None:
    failing, retried, claimed = Task.objects.order_by("pk")

    table, classes, summary = (part.splitlines() for part in run().split("\n\n"))

    lines = table
    assert lines[0].split() == ["KIND", "SUBJECT", "STATUS", "ACTION", "REASON"]
    column = lines[0].index("STATUS")
    assert {line[column:].split()[0] for line in lines[1:]} == {"done"}
    assert f"process  {lost.owner}  done" in lines[1]
    assert "no heartbeat for longer than its TTL" in lines[1]
    text = "\n".join(lines)
    for subject in (failing.pk, retried.pk, claimed.pk, "hold"):
        assert str(subject) in text
    assert not any(line.endswith(" ") for line in lines)
    assert [line.split()[:2] for line in classes[1:]] == [
        ["1", "process"],
        ["1", "task"],
        ["1", "task"],
        ["2", "request"],
        ["1", "request"],
    ]
    assert "record as failed" in classes[2]
    assert MISSING in classes[2]
    assert summary == ["1 process, 2 task, 3 request found; 0 failed."]


def test_json_names_each_step(locks: LockManager, lost: HandWorker) -> None:
    failing, retried, claimed = map(str, Task.objects.order_by("pk").values_list("pk", flat=True))

    found = steps()

    assert {(step["subject"], step["action"]) for step in found} == {
        (lost.owner, "declare missing, clean, remove"),
        (failing, "record as failed"),
        (retried, "hand back to the queue"),
        (retried, "requeue"),
        (claimed, "requeue"),
        ("hold", "release"),
    }
    assert {(step["status"], step["error"], step["owner"]) for step in found} == {
        ("done", "", lost.owner)
    }


def test_run_does_what_it_says(locks: LockManager, lost: HandWorker) -> None:
    run()

    states = Task.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [State.FAILED, State.WAITING, State.WAITING]
    assert not AppStatus.objects.exists()
    assert run() == "Nothing to clean up.\n"


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [
        (["--task", "seven"], "--task 'seven': the id of a task, a UUID, is accepted"),
        (["--resource", ""], "--resource '': "),
        (["--watch", "0"], "--watch '0': seconds above 0 are accepted, up to 86400"),
        (["--watch", "soon"], "--watch 'soon': seconds"),
    ],
)
def test_odd_values_are_refused(
    arguments: list[str], accepted: str, locks: LockManager, lost: HandWorker
) -> None:
    before = everything(locks)
    with pytest.raises(CommandError) as caught:
        run(*arguments)

    assert str(caught.value).startswith(accepted)
    assert everything(locks) == before


def test_owner_alone_is_cleaned(locks: LockManager, lost: HandWorker) -> None:
    other = HandWorker(locks, AppStatusFactory.create(stale=True))
    dispatch(tasks.record, exclusive="e")
    task = other.run()

    found = steps("--owner", lost.owner)

    assert {step["owner"] for step in found} == {lost.owner}
    assert refreshed(task).state == State.RUNNING
    assert AppStatus.objects.get() == other.status


def test_owner_that_there_is_not_is_nothing_to_do(locks: LockManager, lost: HandWorker) -> None:
    before = everything(locks)

    assert steps("--owner", f"nobody@{uuid7()}") == []
    assert everything(locks) == before


@pytest.mark.parametrize("owner", ["nobody", "nobody@1", "@", ""])
def test_owner_that_is_none_is_refused(owner: str, locks: LockManager) -> None:
    with pytest.raises(CommandError, match="<name>@<id> is accepted"):
        steps("--owner", owner)


def test_failure_is_told_and_ends_with_status_1(locks: LockManager, lost: HandWorker) -> None:
    key = locks.keys.request("hold")
    kept = locks.client.dump(key)
    locks.client.set(key, "written by somebody else")
    output = StringIO()

    with pytest.raises(SystemExit) as ended:
        call_command("cleanup_locks", stdout=output)

    assert ended.value.code == 1
    text = output.getvalue()
    assert "ForeignValue: " in text
    assert text.splitlines()[-1].endswith("2 failed.")
    locks.client.restore(key, 0, kept, replace=True)
    run()
    assert locks.inspect_resource("d").holder_count == 0


def test_redis_that_is_away_is_told_without_the_password(no_redis: str) -> None:
    with pytest.raises(CommandError, match=f"lock service at {no_redis} is unavailable") as caught:
        run()

    assert PASSWORD not in str(caught.value)


class TestWatch:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_goes_on_until_a_signal_and_ends_well(
        self, locks: LockManager, lost: HandWorker, number: int
    ) -> None:
        with started("--watch", "0.1", "--format", "json") as process:
            assert json.loads(process.stdout.readline())["steps"] != []
            assert json.loads(process.stdout.readline())["steps"] == []
            later = TaskFactory.create()
            wait_until(lambda: locks.inspect_request(str(later.pk)))
            process.send_signal(number)
            rest, errors = process.communicate(timeout=20)
        assert process.returncode == 0
        assert all(json.loads(line)["failed"] == 0 for line in rest.splitlines())
        assert "Traceback" not in errors

    def test_an_outage_does_not_end_it(
        self, locks: LockManager, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TEST_REDIS_URL", server.url)
        with started("--watch", "0.1") as process:
            assert "KIND" in process.stdout.readline(), "there the locks are rebuilt"
            line = ""
            while line != "Nothing to clean up.\n":
                line = process.stdout.readline()
            server.stop()
            while "is unavailable" not in process.stderr.readline():
                pass
            server.start()
            while process.stderr in select.select([process.stderr], [], [], 2)[0]:
                process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
        assert process.returncode == 0, "that of the last round"


@contextmanager
def started(*arguments: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "cleanup_locks", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def program(**environment: str) -> "subprocess.CompletedProcess[str]":
    """The command as an operator calls it."""
    return subprocess.run(
        [sys.executable, "-m", "django", "cleanup_locks"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


class TestProgram:
    def test_all_is_well(self, locks: LockManager, lost: HandWorker) -> None:
        done = program()

        assert done.returncode == 0
        assert "Traceback" not in done.stderr
        assert done.stdout.endswith("0 failed.\n")
        assert leftovers(locks) != set(), "of what waits for a worker"

    def test_redis_is_away(self, locks: LockManager) -> None:
        done = program(TEST_REDIS_URL="unix:///nonexistent/valkey.sock")

        assert done.returncode == 1
        assert done.stderr.startswith("CommandError: look: lock service at unix:///nonexistent/")
        assert "Traceback" not in done.stderr
        assert done.stdout == ""

    def test_database_is_away(self, locks: LockManager) -> None:
        away = {"postgresql": "TEST_DATABASE_HOST", "sqlite": "TEST_SQLITE_FILE"}
        done = program(**{away[connection.vendor]: "/nonexistent/database"})

        assert done.returncode == 1
        assert done.stderr.startswith("CommandError: The database cannot be used: ")
        assert "Traceback" not in done.stderr

    def test_settings_are_wrong(self, locks: LockManager) -> None:
        done = program(TEST_TASK_LOCKS='{"ttl": 0}')

        assert done.returncode == 1
        assert "TASK_LOCKS['ttl'] is 0: seconds from 0.5 to 86400 are accepted." in done.stderr
        assert "Traceback" not in done.stderr
