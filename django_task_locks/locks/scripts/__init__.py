"""Loads the Lua operations: resolves `--@include` lines and puts in the key names."""

import re
from functools import cache
from importlib.resources import files

from django_task_locks.locks.keys import Keys

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][A-Z_]*\b")

BATCH = 1000
ARRIVALS = 2**43
# Arrivals of a rebuild follow the time: so many numbers for each millisecond since 2025-01-01 UTC,
# which 43 bits hold until 2059.
EPOCH_BEGAN = 1_735_689_600_000
EACH_MS = 8

OPERATIONS = (
    "advance",
    "beat",
    "begin_rebuild",
    "claim",
    "close_owner",
    "extend_lead",
    "forget_entry",
    "forget_owner",
    "free",
    "inspect",
    "inspect_resource",
    "look",
    "open_epoch",
    "release",
    "release_owner",
    "request",
    "requeue",
    "restore",
    "retire",
    "scan",
    "settle",
    "suspect",
    "sweep",
    "verify",
    "watch",
)


@cache
def read(name: str) -> str:
    """The text of one script file as it stands, by its name without `.lua`."""
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def source(name: str, keys: Keys, batch: int = BATCH, *, identifies: bool = False) -> str:
    """The complete Lua source of an operation for these keys; each include comes in once. Before it
    comes the look at the epoch, whose argument follows those that the operation declares.

    batch       most waiters that one call examines
    identifies  whether the server looks at each call if the epoch names it
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
    literals = keys.lua_literals() | {
        "BATCH": str(batch),
        "ARRIVALS": str(ARRIVALS),
        "EPOCH_BEGAN": str(EPOCH_BEGAN),
        "EACH_MS": str(EACH_MS),
        "IDENTIFIES": str(identifies).lower(),
    }
    whole = expand("--@include _epoch\n" + read(name))
    return _NAME.sub(lambda match: literals.get(match[0], match[0]), whole)
