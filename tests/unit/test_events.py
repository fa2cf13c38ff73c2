"""Log lines: named events with fields, worded in one place."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_task_locks
from django_task_locks.events import EVENTS, emit

PACKAGE = Path(django_task_locks.__file__).parent
EVENT_NAME = re.compile(r"({})\.[a-z_]+".format("|".join({e.partition(".")[0] for e in EVENTS})))


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_task_locks")


def names_in_the_package() -> Iterator[tuple[str, str]]:
    """Whatever text in the source is formed as the name of an event, and where it stands."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "events.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and EVENT_NAME.fullmatch(node.value)
            ):
                yield node.value, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_every_event_that_is_emitted_is_worded() -> None:
    assert {name: place for name, place in names_in_the_package() if name not in EVENTS} == {}


def test_every_event_that_is_worded_is_emitted() -> None:
    assert set(EVENTS) - {name for name, _ in names_in_the_package()} == set()


def test_no_other_module_writes_to_the_log() -> None:
    writers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\.(warning|info|debug|error|exception)\(", path.read_text())
    }

    assert writers <= {"embedded.py"}, "the keeper of that server is a program of its own"


@pytest.mark.parametrize("name", EVENTS)
def test_event_goes_to_the_logger_of_its_subject(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    emit(name)

    (record,) = caplog.records
    assert record.name == f"django_task_locks.{name.partition('.')[0]}"
    assert (record.levelno, record.getMessage()) == EVENTS[name]


def test_fields_follow_the_wording_in_their_order(caplog: pytest.LogCaptureFixture) -> None:
    emit("task.finished", task="1", name="app.tasks.sync", count=3)

    assert caplog.messages == ["finished task=1 name=app.tasks.sync count=3"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (0.12349, "0.123"),
        (12, "12"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("line\nbreak", '"line\\nbreak"'),
        ("line\u2028separator", '"line\\u2028separator"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        ("\0", '"\\u0000"'),
        ("漢字", "漢字"),
        (ValueError("went wrong"), '"went wrong"'),
    ],
    ids=ascii,
)
def test_value_is_quoted_where_it_could_be_misread(
    value: object, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    emit("task.finished", field=value)

    assert caplog.messages == [f"finished field={shown}"]


def test_record_carries_the_event_and_its_fields_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("went wrong")
    emit("task.not_sent", task=7, error=error)

    (record,) = caplog.records
    assert record.__dict__["event"] == "task.not_sent"
    assert record.__dict__["fields"] == {"task": 7, "error": error}
    assert not record.exc_info


def test_traceback_comes_only_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("went wrong")
    emit("executor.error", exc_info=error)

    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_fields_may_have_any_name(caplog: pytest.LogCaptureFixture) -> None:
    emit("task.finished", name="a", message="b", event="c", args="d")

    assert caplog.messages == ["finished name=a message=b event=c args=d"]


def test_fields_are_formatted_only_for_a_line_that_is_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted in vain")

    caplog.set_level(logging.ERROR, "django_task_locks")
    emit("task.finished", field=Costly())

    assert caplog.records == []


def test_unknown_event_is_a_mistake_of_the_package() -> None:
    with pytest.raises(KeyError):
        emit("task.unheard_of")
