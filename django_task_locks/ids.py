"""Identifiers that sort by the time they were made."""

import os
import time
import uuid
from threading import Lock

_lock = Lock()
_last = 0


def _forget_in_child() -> None:
    # A thread that does not run there may have held it.
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def uuid7() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562, section 5.7, with the sub-millisecond fraction of method 3 in
    rand_a): each is larger than those that this process made before, also when the clock stands
    still or goes back.
    """
    global _last
    with _lock:
        milliseconds, rest = divmod(time.time_ns(), 1_000_000)
        _last = max(_last + 1, milliseconds << 12 | (rest << 12) // 1_000_000)
        ticks = _last
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return uuid.UUID(
        int=(ticks >> 12) << 80 | 0x7 << 76 | (ticks & 0xFFF) << 64 | 0b10 << 62 | random
    )
