"""Each way by which locks are left behind or freed too early has a test that carries its number."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def numbered_tests() -> Iterator[tuple[str, str]]:
    """Name and docstring of all tests of the suite."""
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_L"):
                yield node.name, ast.get_docstring(node) or ""


FOUND = list(numbered_tests())


@pytest.mark.parametrize("number", range(1, 29))
def test_path_is_named_by_a_test_that_tells_it(number: int) -> None:
    named = [text for name, text in FOUND if f"L{number}" in re.findall(r"L\d+", name)]

    assert named, f"no test_L{number}_..."
    assert any(text.startswith(f"L{number}: ") for text in named)
