"""versions: a task waits in a lane that only those read who have what it needs."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from pytest_django import Settings

from django_task_locks import adispatch, dispatch
from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Lane
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration.by_hand import info
from tests.support.processes import message, refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks

Dispatch = Callable[..., Task]


@pytest.fixture(params=["dispatch", "adispatch"])
def dispatched(request: pytest.FixtureRequest) -> Dispatch:
    """Both of them, called in the same way."""
    return dispatch if request.param == "dispatch" else async_to_sync(adispatch)


def test_the_task_waits_in_a_lane_of_its_own(locks: LockManager, dispatched: Dispatch) -> None:
    versions = {"plugin": "1.1", "app": "2"}

    task = dispatched(tasks.record, versions=versions, queue="mail")

    assert refreshed(task).versions == versions
    lane = Lane(queue="mail", versions=versions)
    assert info(locks, task).lane == lane.name
    assert locks.lanes()[lane.name] == lane


def test_it_keeps_its_place_among_those_that_share_its_resources(locks: LockManager) -> None:
    first = dispatch(tasks.record, versions={"app": "9"}, exclusive="r")
    second = dispatch(tasks.record, exclusive="r")

    assert [blocker.id for blocker in info(locks, second).blockers] == [str(first.pk)]


class TestImmediate:
    @pytest.fixture(autouse=True)
    def _versions(self, locks: LockManager, settings: Settings) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "versions": {"app": ["1", "2"]}}

    @pytest.mark.parametrize("function", [tasks.record, tasks.arecord])
    def test_it_runs_where_the_process_has_what_it_needs(
        self, dispatched: Dispatch, function: Any
    ) -> None:
        task = dispatched(function, ["x"], versions={"app": "2"}, immediate=True)

        assert task.result == "x"

    @pytest.mark.parametrize("function", [tasks.record, tasks.arecord])
    def test_it_is_left_to_a_worker_where_it_has_not(
        self, locks: LockManager, dispatched: Dispatch, function: Any
    ) -> None:
        task = dispatched(function, ["x"], versions={"app": "3"}, immediate=True)

        assert refreshed(task).state == State.WAITING
        assert info(locks, task).lane == Lane(versions={"app": "3"}).name

    def test_where_it_may_not_wait_it_is_canceled(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        task = dispatched(
            tasks.record, versions={"app": "3"}, immediate=True, deferred=False, exclusive="r"
        )

        assert refreshed(task).state == State.CANCELED
        assert message(task) == "This process does not have the versions that it needs."
        assert leftovers(locks) == set()


@pytest.mark.parametrize(
    "versions",
    [["app"], {"app": 2}, {"app": ""}, {"": "1"}, {"a b": "1"}, {"a": "x" * 101}, "a=1", [], ""],
)
def test_what_says_no_versions_is_refused(locks: LockManager, versions: Any) -> None:
    with pytest.raises(InvalidTask, match=r"versions .*a dict of names to versions is accepted"):
        dispatch(tasks.record, versions=versions)

    assert not Task.objects.exists()


@pytest.mark.parametrize("argument", ["app", "app=", "=1"])
def test_the_worker_refuses_arguments_that_say_none(locks: LockManager, argument: str) -> None:
    with pytest.raises(CommandError, match=r"--version .*is accepted"):
        call_command("task_worker", "--version", argument)


def test_the_worker_says_which_setting_leads_nowhere(
    locks: LockManager, settings: Settings
) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "versions": "tests.nowhere.versions"}

    with pytest.raises(CommandError, match=r"TASK_LOCKS\['versions'\].*nowhere"):
        call_command("task_worker")
