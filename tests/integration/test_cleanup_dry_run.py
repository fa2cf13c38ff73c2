"""manage.py cleanup_locks --dry-run: exactly what a run would do, and no change anywhere."""

import json
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_task_locks import dispatch
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import State, Task, TaskGroup
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.cleaning import everything, report, run, steps
from tests.testapp import tasks


@pytest.fixture
def all_kinds(locks: LockManager, lost: HandWorker) -> None:
    """Something of each kind that there is to find, and of each that is left as it is."""
    # A task that is canceled, and two whose requests are lost.
    lost.next_slot()
    dispatch(tasks.record, exclusive="canceling")
    lost.run().request_cancel()
    for on_worker_loss, attempts in (("fail", 1), ("requeue", 2)):
        lost.next_slot()
        task = dispatch(
            tasks.record,
            exclusive="request lost",
            on_worker_loss=on_worker_loss,
            max_attempts=attempts,
        )
        lost.run()
        locks.client.delete(locks.keys.request(str(task.pk)), locks.keys.lock("request lost"))
    locks.client.sadd(locks.keys.owner(lost.owner), "entry without a request")
    # Owners without a record, and a task without an owner, seen for longer than a TTL or not.
    long_ago = int(time.time() - 3600) * 1000
    for name, seen_at in (("orphan", long_ago), ("fresh", int(time.time() * 1000))):
        claimant = Claimant(owner=f"{name}@{uuid7()}", ttl=60)
        locks.request(LockRequest(id=f"hold of {name}", exclusive=(name,), claimant=claimant))
        locks.client.zadd(locks.keys.suspects, {claimant.owner: seen_at})
    unowned = TaskFactory.create(state=State.RUNNING, exclusive=["unowned"])
    locks.client.zadd(locks.keys.suspects, {f"task/{unowned.pk}": long_ago})
    # Rows and requests that do not fit each other.
    TaskFactory.create(exclusive=["unsent"])
    ended = dispatch(tasks.record, exclusive="ended")
    Task.objects.filter(pk=ended.pk).update(state=State.CANCELED)
    group = TaskGroup.objects.create()
    TaskFactory.create(state=State.COMPLETED, task_group=group)
    # Silent, but not for long enough.
    silent_since = timezone.now() - timedelta(seconds=20)
    AppStatusFactory.create(ttl=timedelta(seconds=60), last_heartbeat=silent_since)
    # What nothing leads to: of a queue, of a process that lives, of one that nobody knows.
    for queue, state in (("lost", State.WAITING), ("ended", State.CANCELED)):
        task = dispatch(tasks.record, exclusive=queue, queue=queue)
        Task.objects.filter(pk=task.pk).update(state=state)
        locks.client.delete(locks.keys.owner(f"queue/{queue}"))
    beats_on = timezone.now() + timedelta(hours=1)  # however long the test takes
    alive = HandWorker(locks, AppStatusFactory.create(last_heartbeat=beats_on))
    claimant = Claimant(owner=alive.owner, ttl=60)
    locks.request(LockRequest(id="hold of one alive", exclusive=("alive",), claimant=claimant))
    locks.client.delete(locks.keys.owner(alive.owner))
    completed = TaskFactory.create(state=State.COMPLETED)
    locks.client.set(locks.keys.lock("stray"), f"-{completed.pk}")
    locks.client.set(locks.keys.lock("stray of a hold"), "-hold without a request")


class TestDryRun:
    @pytest.mark.parametrize("more", [[], ["--scan"]])
    def test_changes_nothing(
        self, locks: LockManager, lost: HandWorker, all_kinds: None, more: list[str]
    ) -> None:
        before = everything(locks)

        run("--dry-run", *more)
        steps("--dry-run", *more)

        assert everything(locks) == before

    @pytest.mark.parametrize("more", [[], ["--scan"], ["--resource", "a"]])
    def test_says_exactly_what_a_run_then_does(
        self, locks: LockManager, lost: HandWorker, all_kinds: None, more: list[str]
    ) -> None:
        planned = report("--dry-run", *more)

        done = report(*more)

        assert {step["status"] for step in planned["steps"]} == {"planned"}
        assert {step["status"] for step in done["steps"]} == {"done"}
        assert without_status(planned) == without_status(done)

    @pytest.mark.parametrize("more", [[], ["--scan"]])
    def test_finds_all_kinds(
        self, locks: LockManager, lost: HandWorker, all_kinds: None, more: list[str]
    ) -> None:
        found = report("--dry-run", *more)

        kinds = {"process", "task", "request", "unsent", "group"}
        assert {step["kind"] for step in found["steps"]} == kinds | ({"lock"} if more else set())
        pending = {step["reason"] for step in found["pending"]}
        assert pending == {"no record of this process", "has missed a heartbeat"} | (
            {"no registry has it", "its holder has no request"} if more else set()
        )

    def test_shows_the_same_table_as_the_run(
        self, locks: LockManager, lost: HandWorker, all_kinds: None
    ) -> None:
        planned = without_seconds(run("--dry-run").replace("planned", "done   "))

        assert planned.splitlines()[:-1] == without_seconds(run()).splitlines()[:-1]

    def test_after_the_run_nothing_is_left(
        self, locks: LockManager, lost: HandWorker, all_kinds: None
    ) -> None:
        steps("--scan")

        assert steps("--dry-run", "--scan") == []
        assert steps("--scan") == []

    def test_tells_that_it_is_one(self, locks: LockManager, lost: HandWorker) -> None:
        assert run("--dry-run").splitlines()[-1].endswith("would be cleaned; 0 failed.")


def without_status(found: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(found | {"dry_run": None}).replace('"planned"', '"done"')
    parsed: dict[str, Any] = json.loads(without_seconds(text))
    return parsed


def without_seconds(text: str) -> str:
    """Those that pass between two looks do not count."""
    return re.sub(r"in \d+ s", "in 00 s", text)
