"""Values for JSON columns: what is accepted comes back as it was, on every database."""

import json
from typing import Any

import pytest

from django_task_locks.payloads import problem


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**80),
        1.5,
        "",
        "text with \t\n and \x7f",
        "a backslash \\ud800 and \\u0000 that only look like escapes",
        "é ü 漢字 \U0001f600",
        [],
        {},
        [1, [2, {"three": [None]}]],
        {"key with \U0001f600": {"": ""}},
    ],
    ids=repr,
)
def test_value_that_json_can_hold_is_accepted(value: Any) -> None:
    assert problem(value) is None
    assert json.loads(json.dumps(value)) == value


def test_tuple_is_accepted_and_comes_back_as_a_list() -> None:
    assert problem((1, ("a", None))) is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "Out of range float"),
        ([float("inf")], "Out of range float"),
        ({"a": -float("inf")}, "Out of range float"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        ([1j], "complex"),
        (10**5000, "integer"),
    ],
    ids=["nan", "inf", "-inf", "set", "bytes", "complex", "huge integer"],
)
def test_value_that_json_cannot_hold_is_named(value: Any, named: str) -> None:
    found = problem(value)

    assert found is not None
    assert named in found


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [[v]], lambda v: {"a": (1, v)}])
@pytest.mark.parametrize(
    ("text", "what"),
    [("a\0b", "NUL"), ("\0", "NUL"), ("a\ud800b", "lone surrogate"), ("\udfff", "lone surrogate")],
    ids=ascii,
)
def test_text_that_a_database_refuses_is_refused_everywhere(
    wrap: Any, text: str, what: str
) -> None:
    assert problem(wrap(text)) == f"{text!r} has a {what}" + " character" * (what == "NUL")


def test_key_with_nul_is_refused() -> None:
    assert problem({"a\0": 1}) == "'a\\x00' has a NUL character"


@pytest.mark.parametrize("key", [1, 1.5, True, None], ids=repr)
def test_key_that_is_no_text_is_refused_since_it_would_come_back_as_text(key: Any) -> None:
    assert problem([{key: "value"}]) == f"key {key!r} is no text, and would come back as text"


def test_key_of_a_type_that_json_refuses_is_refused() -> None:
    assert "tuple" in str(problem({(1, 2): "value"}))


def test_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    assert problem(value) == "Circular reference detected"


def test_value_that_is_nested_too_deeply_is_refused_and_not_raised() -> None:
    value: Any = {"innermost": "\ud83d"}
    answers = []
    for _ in range(1_500):
        value = [value]
        answers.append(problem(value))

    assert all(answers)
    assert "recursion" in str(answers[-1])
