"""Which exceptions earn another attempt, and how long that one is put off."""

import json
from typing import Any

import pytest

from django_task_locks.exceptions import InvalidTask
from django_task_locks.retry_rules import delay, exception_paths, kinds
from tests.testapp.retried import Unreachable

UNREACHABLE = "tests.testapp.retried.Unreachable"


class TestExceptions:
    @pytest.mark.parametrize(
        ("given", "paths"),
        [
            ((), []),
            (Unreachable, [UNREACHABLE]),
            (UNREACHABLE, [UNREACHABLE]),
            ([ValueError, OSError], ["builtins.OSError", "builtins.ValueError"]),
            ((Unreachable, UNREACHABLE), [UNREACHABLE]),
            ("json.JSONDecodeError", ["json.decoder.JSONDecodeError"]),
            ({OSError}, ["builtins.OSError"]),
        ],
    )
    def test_classes_and_paths_are_accepted(self, given: Any, paths: list[str]) -> None:
        assert exception_paths(given, "a.task") == paths

    @pytest.mark.parametrize(
        "given",
        [None, 7, "", "ValueError", "nowhere.Error", "json.loads", int, BaseException, [None]],
    )
    def test_others_are_refused(self, given: Any) -> None:
        with pytest.raises(InvalidTask, match=r"retry_on .* of a.task: subclasses of Exception"):
            exception_paths(given, "a.task")

    def test_one_that_workers_cannot_import_is_refused(self) -> None:
        class Local(Exception):
            pass

        with pytest.raises(InvalidTask, match=r"Local.*that workers can import"):
            exception_paths(Local, "a.task")

    def test_an_error_is_of_its_class_and_of_all_bases(self) -> None:
        assert {UNREACHABLE, "builtins.ConnectionError", "builtins.OSError"} <= kinds(Unreachable())
        assert "json.decoder.JSONDecodeError" in kinds(json.JSONDecodeError("", "", 0))


class TestDelay:
    def test_it_is_of_any_length_up_to_one_that_doubles(self) -> None:
        for attempt, longest in ((1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (30_000, 10.0)):
            found = [delay(attempt, 2.0, 10.0) for _ in range(2000)]
            assert 0 <= min(found) < longest * 0.1
            assert longest * 0.9 < max(found) <= longest

    def test_without_a_base_there_is_none(self) -> None:
        assert delay(5, 0.0, 10.0) == 0.0
