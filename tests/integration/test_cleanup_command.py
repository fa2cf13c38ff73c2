"""manage.py cleanup_locks: what it prints, what it does, and how it ends."""

import json
import os
import subprocess
import sys
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_task_locks import dispatch
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.conftest import PASSWORD
from tests.locks.snapshot import snapshot
from tests.support.processes import refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("cleanup_locks", *arguments, stdout=output)
    return output.getvalue()


def steps(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("--format", "json", *arguments))
    return found


def what(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The steps, whether they are planned ("release") or done ("released")."""
    return [(step["kind"], step["subject"], step["action"].removesuffix("d")) for step in found]


def everything(locks: LockManager) -> tuple[Any, Any, Any]:
    """All rows and all keys, but for the notes about what was seen without a record."""
    keys = snapshot(locks.client, locks.keys.prefix)
    keys.pop(locks.keys.suspects, None)
    return list(Task.objects.values().order_by("pk")), list(AppStatus.objects.values()), keys


@pytest.fixture
def lost(locks: LockManager) -> HandWorker:
    """A missing worker with a task that fails, one that is handed back, one that never started,
    and a hold."""
    worker = HandWorker(locks, AppStatusFactory.create(stale=True))
    dispatch(tasks.record, exclusive="a")
    worker.run()
    worker.next_slot()
    dispatch(tasks.record, exclusive="b", on_worker_loss="requeue", max_attempts=2)
    worker.run()
    worker.next_slot()
    dispatch(tasks.record, exclusive="c")
    worker.claim()
    claimant = Claimant(owner=worker.owner, ttl=4)
    locks.request(LockRequest(id="hold", exclusive=("d",), claimant=claimant))
    return worker


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_nothing_to_do(locks: LockManager, dry_run: list[str]) -> None:
    assert run(*dry_run) == "Nothing to clean up.\n"
    assert steps(*dry_run) == []


def test_table_names_each_step_and_counts_them(locks: LockManager, lost: HandWorker) -> None:
    failing, retried, claimed = Task.objects.order_by("pk")

    *lines, summary = run().splitlines()

    assert lines[0].split() == ["KIND", "SUBJECT", "STATUS", "ACTION", "REASON"]
    column = lines[0].index("STATUS")
    assert {line[column:].split()[0] for line in lines[1:]} == {"done"}
    assert f"process  {lost.owner}  done" in lines[1]
    assert "no heartbeat for longer than its TTL" in lines[1]
    text = "\n".join(lines)
    for subject in (failing.pk, retried.pk, claimed.pk, "hold"):
        assert str(subject) in text
    assert not any(line.endswith(" ") for line in lines)
    assert summary == "1 process, 2 task, 3 request found; 0 failed."


def test_json_names_each_step(locks: LockManager, lost: HandWorker) -> None:
    failing, retried, claimed = map(str, Task.objects.order_by("pk").values_list("pk", flat=True))

    found = steps()

    assert {(step["subject"], step["action"]) for step in found} == {
        (lost.owner, "declare missing, clean, remove"),
        (failing, "record as failed"),
        (retried, "hand back to the queue"),
        (retried, "requeued"),
        (claimed, "requeued"),
        ("hold", "released"),
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


class TestDryRun:
    def test_changes_nothing(self, locks: LockManager, lost: HandWorker) -> None:
        TaskFactory.create(exclusive=["unsent"])
        TaskFactory.create(state=State.RUNNING)
        claimant = Claimant(owner="orphan@1", ttl=4)
        locks.request(LockRequest(id="orphaned", exclusive=("e",), claimant=claimant))
        before = everything(locks)

        run("--dry-run")
        steps("--dry-run")

        assert everything(locks) == before

    def test_says_what_a_run_then_does(self, locks: LockManager, lost: HandWorker) -> None:
        TaskFactory.create(exclusive=["unsent"])
        planned = steps("--dry-run")

        done = steps()

        assert what(planned) == what(done)
        assert {step["status"] for step in planned} == {"planned"}
        assert {step["status"] for step in done} == {"done"}

    def test_says_what_it_waits_for(self, locks: LockManager) -> None:
        claimant = Claimant(owner="orphan@1", ttl=60)
        locks.request(LockRequest(id="orphaned", exclusive=("e",), claimant=claimant))

        (step,) = steps("--dry-run")

        assert (step["subject"], step["reason"]) == ("orphan@1", "no record of this process")
        assert step["action"] == "wait 60 s and look again"
        assert steps() == []

    def test_tells_that_it_is_one(self, locks: LockManager, lost: HandWorker) -> None:
        assert run("--dry-run").splitlines()[-1].endswith("would be cleaned; 0 failed.")


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
        assert done.stderr.startswith("CommandError: owners: lock service at unix:///nonexistent/")
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
