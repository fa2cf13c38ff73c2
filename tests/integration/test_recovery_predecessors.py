"""A worker's start: what earlier incarnations under its name left is cleaned before its first task,
as soon as they are dead for certain. The name alone proves nothing."""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from django_task_locks import dispatch, lock_files
from django_task_locks.conf import get_settings
from django_task_locks.lock_files import LockFile
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus
from django_task_locks.recovery import clean_predecessors, clean_up
from django_task_locks.states import State
from tests.factories import AppStatusFactory
from tests.integration.by_hand import HandWorker
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.testapp import tasks

NAME = "worker"
NO_PID = 2**22 + 1  # more than Linux gives


def incarnation(**fields: object) -> AppStatus:
    return AppStatusFactory.create(name=NAME, **fields)


def with_lock_file(status: AppStatus) -> LockFile:
    """Held by this process until it is removed."""
    file = LockFile(get_settings().run_dir, status.owner)
    status.lock_file = str(file.path)
    status.save()
    return file


def left_behind(status: AppStatus) -> Path:
    """A lock file whose process is gone."""
    path = lock_files.path_of(get_settings().run_dir, status.owner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(status.owner)
    status.lock_file = str(path)
    status.save()
    return path


@pytest.fixture
def me(locks: LockManager) -> AppStatus:
    """The present incarnation, which has just registered."""
    return incarnation()


def start(me: AppStatus, *, is_name_unique: bool = False) -> list[str]:
    """Owners that were found dead."""
    report = clean_predecessors(me, is_name_unique=is_name_unique)
    assert report.failures == []
    return [step.owner for step in report.steps if step.kind == "process"]


def test_L10_stale_predecessor_is_cleaned(locks: LockManager, me: AppStatus) -> None:
    before = HandWorker(locks, incarnation(stale=True))
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me) == [before.owner]

    assert (refreshed(task).state, message(task)) == (State.FAILED, "Worker has gone missing.")
    assert leftovers(locks) == set()
    assert AppStatus.objects.get() == me


def test_L10_all_earlier_incarnations_are_cleaned(locks: LockManager, me: AppStatus) -> None:
    before = [HandWorker(locks, incarnation(stale=True)) for _ in range(3)]
    for number, worker in enumerate(before):
        dispatch(tasks.record, exclusive=f"r{number}")
        worker.run()

    assert sorted(start(me)) == sorted(worker.owner for worker in before)
    assert leftovers(locks) == set()


def test_L11_fresh_one_whose_lock_file_is_free_is_cleaned_at_once(
    locks: LockManager, me: AppStatus
) -> None:
    before = HandWorker(locks, incarnation())
    path = left_behind(before.status)
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me) == [before.owner]

    assert refreshed(task).state == State.FAILED
    assert leftovers(locks) == set()
    assert not path.exists()


def test_L11_fresh_one_of_which_nothing_is_known_is_cleaned_after_its_ttl(
    locks: LockManager, me: AppStatus
) -> None:
    before = HandWorker(locks, incarnation(ttl=timedelta(seconds=0.3)))
    AppStatus.objects.filter(pk=before.status.pk).update(ttl=timedelta(hours=1))
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me) == []
    assert refreshed(task).state == State.RUNNING
    assert clean_up().steps == []
    AppStatus.objects.filter(pk=before.status.pk).update(ttl=timedelta(seconds=0.3))
    wait_until(lambda: AppStatus.objects.missing().exists(), what="the end of its TTL")

    clean_up()

    assert refreshed(task).state == State.FAILED
    assert leftovers(locks) == set()


def test_L11_fresh_one_is_cleaned_at_once_where_the_name_is_promised_to_be_unique(
    locks: LockManager, me: AppStatus
) -> None:
    before = HandWorker(locks, incarnation())
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me, is_name_unique=True) == [before.owner]

    assert refreshed(task).state == State.FAILED
    assert leftovers(locks) == set()


def another_owner(path: Path, owner: str) -> None:
    path.write_text(f"{owner}-of-another-host")


def empty(path: Path, owner: str) -> None:
    path.write_text("")


def missing(path: Path, owner: str) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [another_owner, empty, missing])
def test_L11_lock_file_of_somebody_else_proves_nothing(
    locks: LockManager, me: AppStatus, change: Callable[[Path, str], None]
) -> None:
    before = HandWorker(locks, incarnation())
    change(left_behind(before.status), before.owner)
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me) == []
    assert refreshed(task).state == State.RUNNING


def test_A3_a_dead_one_is_dead_though_its_pid_is_that_of_a_living_process(
    locks: LockManager, me: AppStatus
) -> None:
    """In a container that restarts each process has the number 1."""
    before = HandWorker(locks, incarnation(pid=os.getpid(), hostname=socket.gethostname()))
    left_behind(before.status)
    dispatch(tasks.record, exclusive="a")
    task = before.run()

    assert start(me) == [before.owner]

    assert refreshed(task).state == State.FAILED
    assert leftovers(locks) == set()


def test_A3_a_living_one_lives_though_no_process_here_has_its_pid(
    locks: LockManager, me: AppStatus
) -> None:
    """It is in another container, which numbers its processes by itself."""
    other = HandWorker(locks, incarnation(pid=NO_PID, hostname=socket.gethostname()))
    dispatch(tasks.record, exclusive="a")
    task = other.run()

    assert start(me) == []
    assert clean_up().steps == []
    assert refreshed(task).state == State.RUNNING


def test_L12_two_live_workers_of_one_name_never_touch_each_other(
    locks: LockManager, me: AppStatus
) -> None:
    other = HandWorker(locks, incarnation())
    mine = HandWorker(locks, me)
    file = with_lock_file(other.status)
    dispatch(tasks.record, exclusive="a")
    dispatch(tasks.record, exclusive="b")
    running = [other.run(), mine.run()]

    assert start(me) == []
    assert start(other.status) == []

    assert [refreshed(task).state for task in running] == [State.RUNNING] * 2
    assert locks.inspect_resource("a").holder_count == 1
    file.remove()


@pytest.mark.parametrize("is_name_unique", [False, True])
def test_another_name_is_left_alone(
    locks: LockManager, me: AppStatus, is_name_unique: bool
) -> None:
    other = HandWorker(locks, AppStatusFactory.create(name=f"{NAME}-2", stale=True))
    dispatch(tasks.record, exclusive="a")
    task = other.run()

    assert start(me, is_name_unique=is_name_unique) == []
    assert refreshed(task).state == State.RUNNING


def test_process_of_the_same_name_that_is_no_worker_is_left_alone(
    locks: LockManager, me: AppStatus
) -> None:
    """A shell on the worker's host has the host's name, too."""
    HandWorker(locks, incarnation(app_type=AppStatus.AppType.OTHER, stale=True))

    assert start(me, is_name_unique=True) == []


def test_worker_never_takes_itself_for_a_predecessor(locks: LockManager, me: AppStatus) -> None:
    """Whatever its row says: an other host's clock may have been wrong."""
    AppStatus.objects.filter(pk=me.pk).update(
        last_heartbeat=AppStatusFactory.build(stale=True).last_heartbeat
    )

    assert start(me, is_name_unique=True) == []


def test_second_start_finds_nothing(locks: LockManager, me: AppStatus) -> None:
    HandWorker(locks, incarnation(stale=True))

    assert len(start(me)) == 1
    assert start(me) == []


def test_L11_predecessor_that_was_cleaned_may_not_come_back(
    locks: LockManager, me: AppStatus
) -> None:
    """The operator's promise was wrong: the earlier one still lives, and is shut out."""
    before = HandWorker(locks, incarnation())
    task = dispatch(tasks.record, exclusive="a")
    claimed = before.claim()

    start(me, is_name_unique=True)

    assert before.start(claimed) is None
    assert HandWorker(locks, me).run() == task
