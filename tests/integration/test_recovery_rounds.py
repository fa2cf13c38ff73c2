"""Rounds of clean-up: one process at a time, safe at any moment, and healed by the next one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone
from pytest_django import Settings

from django_task_locks import dispatch, rebuilding
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.protocol import text
from django_task_locks.locks.transport import OwnConnections
from django_task_locks.models import AppStatus, Task
from django_task_locks.recovery import clean_up, run_periodic_cleanup
from django_task_locks.reports import Report
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import rolled_back
from tests.locks.snapshot import remove_all, snapshot
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.support.servers import ValkeyServer
from tests.support.suite import TTL
from tests.testapp import tasks

INTERVAL = 0.4


def dead_worker(locks: LockManager) -> HandWorker:
    return HandWorker(locks, AppStatusFactory.create(stale=True))


class TestLeader:
    @pytest.fixture(autouse=True)
    def _interval(self, locks: LockManager, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "cleanup_interval": INTERVAL}

    @pytest.fixture
    def _long_interval(self, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "cleanup_interval": 60}

    @pytest.mark.usefixtures("_long_interval")
    def test_one_round_comes_in_an_interval(self, locks: LockManager) -> None:
        assert run_periodic_cleanup() == Report()
        assert run_periodic_cleanup() is None

    def test_next_round_comes_one_interval_later(self, locks: LockManager) -> None:
        run_periodic_cleanup()

        assert wait_until(run_periodic_cleanup_or_zero, 5) == 1

    def test_A4_leader_that_dies_does_not_stop_the_next(self, locks: LockManager) -> None:
        dispatch(tasks.record, exclusive="a")
        task = dead_worker(locks).run()
        program = (
            "import django, os, signal; django.setup()\n"
            "from django_task_locks import recovery\n"
            "recovery.clean_up = lambda **options: os.kill(os.getpid(), signal.SIGKILL)\n"
            "recovery.run_periodic_cleanup()\n"
        )
        environment = dict(os.environ)
        given = json.loads(environment["TEST_TASK_LOCKS"])
        environment["TEST_TASK_LOCKS"] = json.dumps({**given, "cleanup_interval": INTERVAL})
        leader = subprocess.run([sys.executable, "-c", program], env=environment)
        assert leader.returncode == -signal.SIGKILL

        wait_until(run_periodic_cleanup_or_zero, 5)

        assert refreshed(task).state == State.FAILED
        assert leftovers(locks) == set()

    @pytest.mark.usefixtures("_long_interval")
    def test_A4_lead_ends_by_itself(self, locks: LockManager) -> None:
        run_periodic_cleanup()

        assert 0 < locks.client.pttl(locks.keys.leader("cleanup")) <= 60_000


def run_periodic_cleanup_or_zero() -> int:
    return int(run_periodic_cleanup() is not None)


class TestTransaction:
    """L28: nothing is released before the commit, nor after a rollback."""

    @pytest.fixture
    def task(self, locks: LockManager) -> Task:
        dispatch(tasks.record, exclusive="a")
        return dead_worker(locks).run()

    def test_L28_round_comes_after_the_commit(self, locks: LockManager, task: Task) -> None:
        """L28: clean-up runs inside a transaction, which may roll back."""
        before = snapshot(locks.client, locks.keys.prefix)

        with transaction.atomic():
            assert run_periodic_cleanup() is None
            assert snapshot(locks.client, locks.keys.prefix) == before
            assert refreshed(task).state == State.RUNNING

        assert refreshed(task).state == State.FAILED
        assert leftovers(locks) == set()

    def test_L28_rollback_cleans_nothing(self, locks: LockManager, task: Task) -> None:
        before = snapshot(locks.client, locks.keys.prefix)

        with rolled_back():
            run_periodic_cleanup()

        assert snapshot(locks.client, locks.keys.prefix) == before
        assert refreshed(task).state == State.RUNNING
        assert run_periodic_cleanup() is not None
        assert refreshed(task).state == State.FAILED

    def test_L28_clean_up_at_once_is_refused(self, locks: LockManager, task: Task) -> None:
        before = snapshot(locks.client, locks.keys.prefix)

        with transaction.atomic():
            with pytest.raises(TransactionManagementError, match="call run_periodic_cleanup"):
                clean_up()
            assert len(clean_up(dry_run=True).steps) == 2, "looking is no harm"

        assert snapshot(locks.client, locks.keys.prefix) == before
        assert refreshed(task).state == State.RUNNING
        clean_up()
        assert refreshed(task).state == State.FAILED

    def test_L28_failure_in_it_does_not_harm_the_caller(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        ran = []
        with transaction.atomic():
            run_periodic_cleanup()
            transaction.on_commit(lambda: ran.append(True))
            server.stop()

        assert ran == [True]


class TestUnsent:
    def test_waiting_rows_that_redis_does_not_know_are_sent(self, locks: LockManager) -> None:
        first = TaskFactory.create(exclusive=["a"], queue="bulk", priority=5)
        second = TaskFactory.create(exclusive=["a"])

        report = clean_up()

        assert [(step.kind, step.subject, step.status) for step in report.steps] == [
            ("unsent", str(first.pk), "done"),
            ("unsent", str(second.pk), "done"),
        ]
        states = [locks.inspect_request(str(task.pk)) for task in (first, second)]
        assert [(info.state, info.queue) for info in states if info] == [
            ("granted", "bulk"),
            ("waiting", "default"),
        ]
        assert clean_up().steps == []

    def test_others_are_not_sent(self, locks: LockManager) -> None:
        for state in State:
            if state != State.WAITING:
                TaskFactory.create(state=state, running_by=AppStatusFactory.create())

        clean_up()

        assert leftovers(locks) == set()

    def test_many_are_sent_in_their_order(self, locks: LockManager) -> None:
        found = Task.objects.bulk_create(TaskFactory.build() for _ in range(1_100))

        report = clean_up()

        assert len(report.steps) == 1_100
        ready = locks.client.zrange(locks.keys.ready("default"), 0, -1)
        assert list(map(text, ready)) == [str(task.pk) for task in found]

    def test_C7_fresh_one_whose_request_is_on_its_way_is_not_doubled(
        self, locks: LockManager
    ) -> None:
        reports: list[Report] = []
        with transaction.atomic():
            transaction.on_commit(lambda: reports.append(clean_up()))
            task = dispatch(tasks.record, exclusive="a")

        assert [step.subject for report in reports for step in report.steps] == [str(task.pk)]
        found = info(locks, task)
        assert found.state == "granted"
        assert locks.registry("queue/default") == {str(task.pk)}
        assert HandWorker(locks).claim().id == str(task.pk)
        assert not locks.client.exists(locks.keys.ready("default"))

    def test_C7_all_that_waited_waits_again_after_a_loss_of_redis(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        found = [dispatch(tasks.record, exclusive="a") for _ in range(3)]
        server.restart()
        assert leftovers(own_locks) == set()

        clean_up()

        states = [own_locks.inspect_request(str(task.pk)) for task in found]
        assert [info.state for info in states if info] == ["granted", "waiting", "waiting"]

    def test_one_that_cannot_be_sent_stops_no_other(self, locks: LockManager) -> None:
        broken = TaskFactory.create(exclusive=["a"])
        good = TaskFactory.create(exclusive=["b"])
        locks.client.rpush(locks.keys.lock("a"), "written by somebody else")

        report = clean_up()

        assert [step.subject for step in report.failures] == [str(broken.pk)]
        assert locks.inspect_request(str(good.pk)) is not None


class TestFinished:
    """A live process holds what has ended: its release was lost on the way."""

    @pytest.fixture
    def ended(self, locks: LockManager, alive: HandWorker) -> Task:
        """Past the signals, as by SQL."""
        dispatch(tasks.record, exclusive="a", shared="s")
        return alive.run()

    def end(self, task: Task, ago: float) -> None:
        finished_at = timezone.now() - timedelta(seconds=ago)
        rows = Task.objects.filter(pk=task.pk)
        rows.update(state=State.COMPLETED, finished_at=finished_at, app_lock=None)

    def test_it_is_released_a_ttl_after_the_end(self, locks: LockManager, ended: Task) -> None:
        behind = dispatch(tasks.record, exclusive="a")
        self.end(ended, ago=2 * TTL)

        (step,) = clean_up().steps

        assert (step.subject, step.reason) == (str(ended.pk), "its task ended a TTL ago")
        assert locks.inspect_request(str(ended.pk)) is None
        assert info(locks, behind).state == "granted"
        assert clean_up().steps == []

    def test_before_that_it_may_be_on_its_way(self, locks: LockManager, ended: Task) -> None:
        self.end(ended, ago=0)
        assert clean_up().steps == []
        assert info(locks, ended).state == "held"

    def test_what_runs_is_left_alone(self, locks: LockManager, ended: Task) -> None:
        Task.objects.filter(pk=ended.pk).update(finished_at=timezone.now() - timedelta(days=1))
        assert clean_up().steps == []
        assert info(locks, ended).state == "held"

    def test_one_whose_row_is_not_there_is_left_to_its_owner(
        self, locks: LockManager, ended: Task
    ) -> None:
        Task.objects.all()._raw_delete("default")
        assert clean_up().steps == []
        assert info(locks, ended).state == "held"


class Crash(BaseException):
    """The process ends here: no handler of an ordinary error sees it."""


def wrap_redis(patch: pytest.MonkeyPatch, around: Callable[[Callable[[], Any]], Any]) -> None:
    """Every call of a lock manager to Redis goes through `around`."""
    for name in ("run", "send"):
        call = getattr(OwnConnections, name)

        def wrapped(self: Any, *args: Any, call: Any = call, **kwargs: Any) -> Any:
            return around(lambda: call(self, *args, **kwargs))

        patch.setattr(OwnConnections, name, wrapped)


class Crashes:
    """Ends the process before or after its n-th call to Redis or to the database."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.after = False
        wrap_redis(patch, self.step)

    def step(self, run: Callable[[], Any]) -> Any:
        if self.left is None:
            return run()
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Crash
        result = run()
        if self.left < 0:
            raise Crash
        return result

    @contextmanager
    def at(self, number: int, *, after: bool) -> Iterator[None]:
        def query(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            return self.step(lambda: execute(sql, params, many, context))

        self.left, self.after = number, after
        try:
            with connection.execute_wrapper(query):
                yield
        finally:
            self.left = None


class Scene:
    """A dead worker with something in each state that a process can leave behind."""

    def __init__(self, locks: LockManager) -> None:
        Task.objects.all()._raw_delete("default")
        AppStatus.objects.all().delete()
        remove_all(locks.client, locks.keys.prefix)
        assert rebuilding.rebuild()
        self.locks = locks
        self.worker = dead_worker(locks)
        self.failing = self.run(exclusive="a")
        self.retried = self.run(exclusive="b", on_worker_loss="requeue", max_attempts=2)
        self.canceling = self.run(exclusive="c")
        self.canceling.request_cancel()
        self.claimed = dispatch(tasks.record, shared="d")
        self.worker.claim()
        hold = LockRequest(id="hold", exclusive=("e",), claimant=self.worker.claimant)
        locks.request(hold)
        self.behind = dispatch(tasks.record, exclusive=["a", "e"])
        self.unsent = TaskFactory.create(exclusive=["f"])

    def run(self, **options: Any) -> Task:
        """One more that runs, in a slot of its own."""
        dispatch(tasks.record, **options)
        task = self.worker.run()
        self.worker.next_slot()
        return task

    def assert_healed(self, what: object) -> None:
        states = {
            name: (refreshed(task).state, refreshed(task).attempt)
            for name, task in vars(self).items()
            if isinstance(task, Task)
        }
        assert states == {
            "failing": (State.FAILED, 1),
            "retried": (State.WAITING, 2),
            "canceling": (State.CANCELED, 1),
            "claimed": (State.WAITING, 1),
            "behind": (State.WAITING, 1),
            "unsent": (State.WAITING, 1),
        }, what
        ready = {str(task.pk) for task in (self.retried, self.claimed, self.behind, self.unsent)}
        assert self.locks.registry("queue/default") == ready, what
        found = [self.locks.inspect_request(id) for id in ready]
        assert {info.state for info in found if info} == {"granted"}, what
        assert not AppStatus.objects.exists(), what
        assert self.worker.owner not in self.locks.owners(), what


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_G5_crash_at_any_step_is_healed_by_the_next_round(
    locks: LockManager, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    crashes = Crashes(monkeypatch)
    for number in count():
        scene = Scene(locks)
        try:
            with crashes.at(number, after=after):
                clean_up()
        except Crash:
            connection.close()  # as the end of a process does
            has_crashed = True
        else:
            has_crashed = False

        assert clean_up().failures == [], number
        scene.assert_healed(number)
        assert clean_up().steps == [], number
        if not has_crashed:
            break
    assert number > 25


def test_clean_up_of_a_healthy_system_costs_little(
    locks: LockManager, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    """It looks at what lives in bulk: no row, no process and no lock one by one."""
    for number in range(30):
        alive = HandWorker(locks)
        dispatch(tasks.record, exclusive=f"r{number}")
        alive.run()
        dispatch(tasks.record, exclusive=f"r{number}")
    calls: list[None] = []

    def counted(call: Callable[[], Any]) -> Any:
        calls.append(None)
        return call()

    wrap_redis(monkeypatch, counted)
    with django_assert_max_num_queries(11):
        assert clean_up().steps == []

    assert len(calls) <= 7
