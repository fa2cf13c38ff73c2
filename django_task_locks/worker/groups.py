"""Whether a killed process group is gone: a signal is sent in an instant, dying takes its time."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def is_empty(group: int) -> bool:
    """Whether no process of the group can run any more. A zombie cannot: what nobody waits for, or
    what the caller has yet to wait for, does not count.
    """
    if sys.platform == "linux" and (_PROC / "self").exists():
        return not any(_living(group))
    try:
        os.killpg(group, 0)  # passes over zombies there
    except (ProcessLookupError, PermissionError):
        return True
    return False


def _living(group: int) -> Iterator[int]:
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            with suppress(OSError, ValueError):  # it has ended meanwhile
                text = (_PROC / entry / "stat").read_text(errors="replace")
                # The name in front may hold anything, brackets too.
                state, _, its_group = text.rpartition(")")[2].split()[:3]
                if int(its_group) == group and state not in "ZX":
                    yield int(entry)
