"""Values that go into JSON columns: checked so that what is read is what was given."""

import json
from typing import Any

_encoded = json.JSONEncoder(allow_nan=False).encode  # once, and not for each value


def problem(value: Any) -> str | None:
    """Why the value would not come back from a JSON column as it is; None if it would.

    PostgreSQL refuses NUL characters and lone surrogates in JSON, so they are refused everywhere.
    Tuples come back as lists and are accepted.
    """
    try:
        text = _encoded(value)
        if "\\u0000" in text or "\\ud" in text or "{" in text:
            return _problem_inside(value)
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None


def _problem_inside(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return f"{value!r} has a NUL character"
        if any("\ud800" <= character <= "\udfff" for character in value):
            return f"{value!r} has a lone surrogate"
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"key {key!r} is no text, and would come back as text"
            if found := _problem_inside(key) or _problem_inside(item):
                return found
    elif isinstance(value, list | tuple):
        for item in value:
            if found := _problem_inside(item):
                return found
    return None
