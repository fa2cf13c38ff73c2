"""What a worker prints: a line a person can read, or a JSON object."""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from django_task_locks.events import emit
from django_task_locks.worker.output import HumanFormatter, JsonFormatter, log_to_terminal

TASK: dict[str, Any] = {"task": "0199", "name": "app.tasks.sync"}
TRACEBACK = 'Traceback (most recent call last):\n  File "tasks.py"\nValueError: boom\n'


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_task_locks")


def line(caplog: pytest.LogCaptureFixture, formatter: logging.Formatter) -> str:
    """The record as the formatter shows it, without the time in front."""
    (record,) = caplog.records
    return formatter.format(record)


def human(caplog: pytest.LogCaptureFixture) -> str:
    return line(caplog, HumanFormatter()).split(" ", 2)[2]


def as_json(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    text = line(caplog, JsonFormatter())
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


class TestHuman:
    @pytest.mark.parametrize(
        ("event", "fields", "shown"),
        [
            (
                "task.started",
                {"waited": 0.0123},
                "INFO    app.tasks.sync started, waited 0.012 s [0199]",
            ),
            (
                "task.finished",
                {"seconds": 1.5, "waited": 200.4},
                "INFO    app.tasks.sync finished in 1.500 s, waited 3 min 20 s [0199]",
            ),
            (
                "task.failed",
                {"seconds": 8000.0, "waited": 0.0, "reason": "ValueError: boom"},
                "WARNING app.tasks.sync failed after 2 h 13 min, waited 0.000 s: "
                "ValueError: boom [0199]",
            ),
            (
                "task.canceled",
                {"seconds": 1.0, "waited": 1.0},
                "INFO    app.tasks.sync canceled after 1.000 s, waited 1.000 s [0199]",
            ),
        ],
    )
    def test_the_life_of_a_task_is_told_in_sentences(
        self, event: str, fields: dict[str, Any], shown: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit(event, **TASK, **fields)
        assert human(caplog) == shown

    def test_other_events_are_shown_with_their_fields(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit("worker.started", owner="w@1", executors=2)
        assert human(caplog) == "INFO    worker started owner=w@1 executors=2"

    def test_an_event_that_lacks_a_field_is_shown_as_any_other(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit("task.finished", **TASK)
        assert human(caplog) == "INFO    finished task=0199 name=app.tasks.sync"

    def test_the_traceback_of_a_failure_stands_under_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        fields: dict[str, Any] = {"seconds": 1.0, "waited": 1.0, "reason": "boom"}
        emit("task.failed", **TASK, **fields, traceback=TRACEBACK)
        first, *below = human(caplog).splitlines()
        assert first.endswith("boom [0199]")
        assert below == [f"    {line}" for line in TRACEBACK.splitlines()]

    def test_a_reason_of_several_lines_cannot_look_like_another_event(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit("task.failed", **TASK, seconds=1.0, waited=1.0, reason="a\nb")
        assert '"a\\nb"' in human(caplog)

    def test_an_exception_of_ours_is_shown_once(self, caplog: pytest.LogCaptureFixture) -> None:
        emit("executor.error", exc_info=ValueError("went wrong"))
        assert human(caplog).count("ValueError: went wrong") == 1


class TestJson:
    def test_a_line_has_the_event_and_its_fields(self, caplog: pytest.LogCaptureFixture) -> None:
        emit("task.finished", **TASK, seconds=1.23456789, waited=0.5)
        found = as_json(caplog)
        assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
        assert found == {
            "level": "info",
            "logger": "django_task_locks.task",
            "event": "task.finished",
            "message": "finished",
            "task": "0199",
            "name": "app.tasks.sync",
            "seconds": 1.234568,
            "waited": 0.5,
        }

    def test_values_of_any_kind_can_be_shown(self, caplog: pytest.LogCaptureFixture) -> None:
        emit("task.not_sent", error=ValueError("a\nb\ud800"), task=None, count=3, done=True)
        found = as_json(caplog)
        assert found["error"] == "a\nb\ud800"
        assert (found["task"], found["count"], found["done"]) == (None, 3, True)

    def test_a_field_cannot_take_the_place_of_what_each_line_has(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        emit("task.finished", level="x", message="y", event="z")
        found = as_json(caplog)
        assert (found["level"], found["message"], found["event"]) == (
            "info",
            "finished",
            "task.finished",
        )

    def test_tracebacks_are_in_the_line(self, caplog: pytest.LogCaptureFixture) -> None:
        emit("task.failed", **TASK, traceback=TRACEBACK)
        assert as_json(caplog)["traceback"] == TRACEBACK

    def test_exceptions_of_ours_too(self, caplog: pytest.LogCaptureFixture) -> None:
        emit("executor.error", exc_info=ValueError("went wrong"))
        assert as_json(caplog)["traceback"].endswith("ValueError: went wrong\n")

    def test_records_of_others_on_the_logger_are_shown_too(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        logging.getLogger("django_task_locks.other").warning("%d things", 3)
        assert as_json(caplog)["message"] == "3 things"


class TestTerminal:
    @pytest.fixture(autouse=True)
    def logger(self) -> Iterator[logging.Logger]:
        logger = logging.getLogger("django_task_locks")
        before = logger.handlers[:], logger.propagate, logger.level
        yield logger
        logger.handlers[:], logger.propagate, logger.level = before

    def test_the_projects_logging_decides(self, logger: logging.Logger) -> None:
        own = logging.NullHandler()
        logger.addHandler(own)
        handlers = logger.handlers[:]
        log_to_terminal()
        assert logger.handlers == handlers

    def test_json_is_printed_if_it_is_asked_for(
        self, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logger.addHandler(logging.StreamHandler(sys.stdout))
        log_to_terminal(as_json=True)
        emit("worker.stopped", owner="w@1")
        (printed,) = capsys.readouterr().out.splitlines()
        assert json.loads(printed)["message"] == "worker stopped"
