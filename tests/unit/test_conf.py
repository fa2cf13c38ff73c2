"""TASK_LOCKS: each key with what it accepts, the defaults, and changes at run time."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_task_locks.conf import Settings, get_settings, problems

# Key: accepted values, refused values, what the message must say is accepted.
KEYS: dict[str, tuple[list[Any], list[Any], str]] = {
    "redis": (
        ["default", "redis://host", "rediss://h:1/2", "unix:///a.sock", "embedded:///data"],
        ["", None, 7, "http://host", "amqp://host"],
        "accepted",
    ),
    "prefix": (
        ["a", "task_locks", "app:stage.1/x@y-z", "x" * 64],
        ["", "x" * 65, "{tag}", "white space", "é", "quote'", None, 7],
        "1 to 64 letters, digits or any of _.:/@- are accepted",
    ),
    "ttl": (
        [0.5, 1, 30.0, 86_400],
        [0, 0.4, 86_401, -1, True, None, "30", float("nan"), float("inf")],
        "seconds from 0.5 to 86400 are accepted",
    ),
    "heartbeat_interval": (
        [0.05, 5, 10],
        [0, 0.04, 28_801, False, None, "5", float("nan")],
        "seconds from 0.05 to 28800 are accepted",
    ),
    "cleanup_interval": (
        [0.1, 1, 86_400],
        [0, 86_401, True, None, "1"],
        "seconds from 0.1 to 86400 are accepted",
    ),
    "shutdown_grace": (
        [0, 0.0, 86_400],
        [-1, 86_401, True, None, "1"],
        "seconds from 0 to 86400 are accepted",
    ),
    "immediate_time_limit": (
        [None, 0.001, 5],
        [0, -1, 86_401, True, "5"],
        "seconds from 0.001 to 86400 or None are accepted",
    ),
    "connect_timeout": (
        [0.01, 600],
        [0, 601, None, "3"],
        "seconds from 0.01 to 600 are accepted",
    ),
    "reply_timeout": (
        [0.01, 600],
        [0, 601, None, "3"],
        "seconds from 0.01 to 600 are accepted",
    ),
    "retry_delay": (
        [0, 1.5, 604_800],
        [-1, 604_801, None, True, "1"],
        "seconds from 0 to 604800 are accepted",
    ),
    "retry_delay_limit": (
        [0, 600, 604_800],
        [-1, 604_801, None, True, "1"],
        "seconds from 0 to 604800 are accepted",
    ),
    "versions": (
        [{}, {"app": "2"}, {"app": ["1", "2"]}, dict, "mirror.versions.installed"],
        ["installed", 2, None, ["app"]],
        "a dict of names to versions, or a callable that returns one, is accepted",
    ),
    "check_server": ([True, False], [1, 0, "no", None], "True or False is accepted"),
    "retries": ([0, 100], [-1, 101, 1.5, True, None], "a whole number from 0 to 100 is accepted"),
    "run_dir": (["/run/app", Path("/run/app")], ["", None, 7], "a directory is accepted"),
}


def cases(column: int) -> list[Any]:
    return [
        pytest.param(key, value, id=f"{key}={value!r}")
        for key, row in KEYS.items()
        for value in row[column]
    ]


def test_every_key_is_tested_here() -> None:
    assert set(KEYS) == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(("key", "value"), cases(0))
def test_value_is_accepted(key: str, value: Any) -> None:
    assert problems({key: value}) == []


@pytest.mark.parametrize(("key", "value"), cases(1))
def test_value_is_refused_with_the_key_and_what_is_accepted(key: str, value: Any) -> None:
    (problem,) = problems({key: value})

    assert problem.startswith(f"TASK_LOCKS[{key!r}] is {value!r}: ")
    assert KEYS[key][2] in problem


def test_url_of_another_scheme_is_told_the_schemes() -> None:
    (problem,) = problems({"redis": "http://host"})

    assert (
        "redis://, rediss://, unix://, redis+cluster://, rediss+cluster://, embedded://" in problem
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [("prefx", "prefix"), ("TTL_", None), ("heart_beat_interval", "heartbeat_interval")],
)
def test_unknown_key_is_refused_with_what_was_meant(key: str, meant: str | None) -> None:
    (problem,) = problems({key: 1})

    assert problem.startswith(f"TASK_LOCKS[{key!r}] is unknown: ")
    assert ("did you mean" in problem) == bool(meant)
    assert repr(meant or "ttl") in problem
    assert all(repr(known) in problem for known in KEYS)


def test_key_that_is_no_text_is_refused() -> None:
    (problem,) = problems({7: 1})

    assert "TASK_LOCKS[7] is unknown" in problem


@pytest.mark.parametrize("given", [None, [], "redis://host", 7], ids=repr)
def test_what_is_no_dict_is_refused(given: Any) -> None:
    assert problems(given) == [f"TASK_LOCKS is {given!r}: a dict is accepted."]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = problems({"ttl": 0, "prefix": "", "nothing": 1})

    assert len(found) == 3


@pytest.mark.parametrize(
    ("given", "limit"),
    [({"heartbeat_interval": 10.1}, "10"), ({"ttl": 6, "heartbeat_interval": 3}, "2")],
)
def test_heartbeat_interval_is_at_most_a_third_of_the_ttl(
    given: dict[str, Any], limit: str
) -> None:
    (problem,) = problems(given)

    assert problem.startswith(
        f"TASK_LOCKS['heartbeat_interval'] is {given['heartbeat_interval']!r} at a TTL of "
    )
    assert f"at most a third of it ({limit}) is accepted" in problem


def test_third_of_the_ttl_itself_is_accepted() -> None:
    assert problems({"ttl": 30, "heartbeat_interval": 10}) == []


@override_settings(TASK_LOCKS={})
def test_defaults() -> None:
    found = get_settings()

    assert (found.redis, found.prefix, found.ttl) == ("default", "task_locks", 30)
    assert (found.heartbeat_interval, found.cleanup_interval) == (5, 30)
    assert (found.shutdown_grace, found.immediate_time_limit) == (10, 5)
    assert Path(found.run_dir).name == f"django-task-locks-run-{os.getuid()}"


@override_settings(TASK_LOCKS={"ttl": 60})
def test_intervals_follow_from_the_ttl() -> None:
    assert get_settings().heartbeat_interval == 10
    assert get_settings().cleanup_interval == 60


@override_settings(TASK_LOCKS={"ttl": 60, "heartbeat_interval": 1, "cleanup_interval": 7})
def test_given_intervals_stand() -> None:
    assert get_settings().heartbeat_interval == 1
    assert get_settings().cleanup_interval == 7


@pytest.mark.parametrize("ttl", KEYS["ttl"][0])
def test_defaults_are_accepted_at_every_ttl(ttl: float) -> None:
    with override_settings(TASK_LOCKS={"ttl": ttl}):
        found = get_settings()

    assert problems({key: getattr(found, key) for key in KEYS}) == []


@override_settings(TASK_LOCKS={"run_dir": Path("/run/app")})
def test_directory_may_be_a_path() -> None:
    assert get_settings().run_dir == "/run/app"


@override_settings(TASK_LOCKS={"ttl": -1, "prefx": "a"})
def test_reading_wrong_settings_tells_everything_that_is_wrong() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"'ttl'\] is -1.*'prefx'\] is unknown"):
        get_settings()


def test_changed_settings_count_at_once() -> None:
    before = get_settings()
    with override_settings(TASK_LOCKS={"prefix": "other"}):
        assert get_settings().prefix == "other"

    assert get_settings() == before


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        get_settings().ttl = 1  # type: ignore[misc]


def test_no_password_of_a_url_comes_into_a_message() -> None:
    for url in ("memcached://user:secret@host/0", "amqp://:secret@host?password=secret"):
        (problem,) = problems({"redis": url})
        assert "secret" not in problem
        assert "host" in problem
