"""What a process can run, by the versions that tasks need."""

from typing import Any

import pytest
from pytest_django import Settings

from django_task_locks.abilities import (
    abilities_from,
    abilities_of,
    as_json,
    can_run,
    own_abilities,
)
from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks.requests import Lane
from django_task_locks.worker.executor import Orders


def installed() -> dict[str, Any]:
    return {"plugin": ["1.0", "1.1"]}


@pytest.mark.parametrize(
    ("needed", "is_able"),
    [
        ({}, True),
        ({"app": "2"}, True),
        ({"app": "3"}, True),
        ({"app": "1"}, False),
        ({"app": "2", "plugin": "1"}, True),
        ({"app": "2", "plugin": "2"}, False),
        ({"other": "1"}, False),
    ],
)
def test_a_process_can_run_what_needs_no_more_than_it_has(
    needed: dict[str, str], is_able: bool
) -> None:
    abilities = abilities_of({"app": ["2", "3"], "plugin": "1"})

    assert can_run(abilities, needed) is is_able
    assert can_run(as_json(abilities), needed) is is_able
    orders = Orders(versions=abilities, queues=frozenset({"mail"}))
    assert orders.serves(Lane(queue="mail", versions=needed)) is is_able
    assert not orders.serves(Lane(queue="other", versions=needed))


def test_without_any_it_runs_what_needs_none() -> None:
    assert can_run({}, {})
    assert not Orders().serves(Lane(versions={"app": "1"}))


@pytest.mark.parametrize(
    "given",
    [installed, "tests.unit.test_abilities.installed", installed()],
    ids=["callable", "path", "dict"],
)
def test_the_setting_is_a_dict_or_leads_to_one(settings: Settings, given: Any) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "versions": given}

    assert own_abilities() == {"plugin": {"1.0", "1.1"}}


def test_arguments_may_name_several_of_one() -> None:
    assert abilities_from(["app=1", "plugin=a", "app=2"]) == {"app": {"1", "2"}, "plugin": {"a"}}


@pytest.mark.parametrize(
    "given",
    [["app"], {"app": []}, {"app": 2}, {"app": [2]}, {"app": {"a": "b"}}, {"": "1"}, {"a b": "1"}],
    ids=str,
)
def test_what_says_no_versions_is_refused(given: Any) -> None:
    with pytest.raises(InvalidTask, match="is accepted"):
        abilities_of(given)


@pytest.mark.parametrize("argument", ["app", "app=", "=2", "app=2=3", "app=a b"])
def test_arguments_that_say_none_are_refused(argument: str) -> None:
    with pytest.raises(InvalidTask, match="is accepted"):
        abilities_from([argument])
