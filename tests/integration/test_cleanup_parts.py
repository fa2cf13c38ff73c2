"""manage.py cleanup_locks: what it leaves as it is, and why; and the options that limit it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_task_locks import dispatch
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from django_task_locks.models import AppStatus, State, Task
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker
from tests.integration.cleaning import everything, report, run, steps
from tests.support.processes import refreshed
from tests.testapp import tasks


class TestPending:
    """What it is too early to judge is shown, with the reason."""

    @pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
    def test_owner_without_a_record(self, locks: LockManager, dry_run: list[str]) -> None:
        claimant = Claimant(owner="orphan@1", ttl=60)
        locks.request(LockRequest(id="orphaned", exclusive=("e",), claimant=claimant))

        found = report(*dry_run)

        assert found["steps"] == []
        (step,) = found["pending"]
        assert (step["subject"], step["reason"]) == ("orphan@1", "no record of this process")
        assert step["action"] == "looked at again in 60 s"
        assert run(*dry_run).splitlines()[-1].endswith("; 0 failed, 1 pending.")

    def test_process_that_has_missed_a_heartbeat(self, locks: LockManager) -> None:
        since = timezone.now() - timedelta(seconds=20)
        status = AppStatusFactory.create(ttl=timedelta(seconds=60), last_heartbeat=since)

        (step,) = report()["pending"]

        assert (step["subject"], step["status"]) == (status.owner, "pending")
        assert step["reason"] == "has missed a heartbeat"
        assert step["action"] in ("missing in 40 s", "missing in 39 s")

    def test_process_that_beats_again_at_the_second_look(
        self, locks: LockManager, lost: HandWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def beat_meanwhile(seconds: float) -> None:
            AppStatus.objects.update(last_heartbeat=timezone.now())

        monkeypatch.setattr("django_task_locks.recovery.time.sleep", beat_meanwhile)

        found = report()

        assert found["steps"] == []
        (step,) = found["pending"]
        assert (step["subject"], step["action"]) == (lost.owner, "leave it")
        assert step["reason"].endswith("and has one again")


class TestPart:
    """Of what a dead process has left, only some is cleaned; the next run does the rest."""

    def test_task(self, locks: LockManager, lost: HandWorker) -> None:
        failing, retried, _ = Task.objects.order_by("pk")

        found = steps("--task", str(failing.pk))

        assert [(step["kind"], step["subject"], step["action"]) for step in found] == [
            ("process", lost.owner, "declare missing, clean in part"),
            ("task", str(failing.pk), "record as failed"),
        ]
        assert refreshed(failing).state == State.FAILED
        assert refreshed(retried).state == State.RUNNING
        assert locks.inspect_resource("b").holder_count == 1
        assert len(steps()) == 6 - 1
        assert not AppStatus.objects.exists()

    def test_task_that_was_claimed_and_did_not_start(
        self, locks: LockManager, lost: HandWorker
    ) -> None:
        claimed = Task.objects.order_by("pk")[2]

        found = steps("--task", str(claimed.pk))

        assert [(step["kind"], step["action"]) for step in found] == [
            ("process", "declare missing, clean in part"),
            ("request", "requeue"),
        ]

    def test_task_that_was_not_sent(self, locks: LockManager, lost: HandWorker) -> None:
        unsent, other = TaskFactory.create(), TaskFactory.create()

        assert [step["subject"] for step in steps("--task", str(unsent.pk))] == [str(unsent.pk)]
        assert locks.inspect_request(str(other.pk)) is None

    def test_task_with_which_all_is_well_and_one_that_there_is_not(
        self, locks: LockManager, lost: HandWorker
    ) -> None:
        task = dispatch(tasks.record)
        before = everything(locks)

        assert steps("--task", str(task.pk)) == []
        assert steps("--task", str(uuid7())) == []
        assert everything(locks) == before

    def test_resource(self, locks: LockManager, lost: HandWorker) -> None:
        found = steps("--resource", "d")

        assert [(step["kind"], step["subject"]) for step in found] == [
            ("process", lost.owner),
            ("request", "hold"),
        ]
        assert [locks.inspect_resource(name).holder_count for name in "abcd"] == [1, 1, 1, 0]

    def test_resource_of_a_task(self, locks: LockManager, lost: HandWorker) -> None:
        assert [step["kind"] for step in steps("--resource", "a")] == ["process", "task"]
        assert [locks.inspect_resource(name).holder_count for name in "abcd"] == [0, 1, 1, 1]

    def test_all_at_once(self, locks: LockManager, lost: HandWorker) -> None:
        failing = str(Task.objects.order_by("pk")[0].pk)

        assert steps("--owner", lost.owner, "--task", failing, "--resource", "b") == []
        assert steps("--owner", f"nobody@{uuid7()}", "--task", failing) == []
        assert steps("--owner", lost.owner, "--task", failing, "--resource", "a")
