"""Loads the Lua operations: resolves `--@include` lines and puts in the key names."""

import re
from functools import cache
from importlib.resources import files

from django_task_locks.locks.keys import Keys

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][A-Z_]*\b")

BATCH = 1000
ARRIVALS = 2**43

OPERATIONS = (
    "advance",
    "beat",
    "claim",
    "close_owner",
    "forget_entry",
    "forget_owner",
    "free",
    "inspect",
    "inspect_resource",
    "release",
    "release_owner",
    "request",
    "requeue",
    "retire",
    "scan",
    "settle",
    "suspect",
    "watch",
)


@cache
def read(name: str) -> str:
    """The text of one script file as it stands, by its name without `.lua`."""
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def source(name: str, keys: Keys, batch: int = BATCH) -> str:
    """The complete Lua source of an operation for these keys; each include comes in once.

    batch  most waiters that one call examines
    """
    included: set[str] = set()

    def expand(text: str) -> str:
        def include(match: re.Match[str]) -> str:
            part = match.group(1)
            if part in included:
                return ""
            included.add(part)
            return expand(read(part))

        return _INCLUDE.sub(include, text)

    # Literals: a local would cost each function that uses it an upvalue at each call.
    literals = keys.lua_literals() | {"BATCH": str(batch), "ARRIVALS": str(ARRIVALS)}
    return _NAME.sub(lambda match: literals.get(match[0], match[0]), expand(read(name)))
