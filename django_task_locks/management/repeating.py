"""Repeats what a command does until SIGINT or SIGTERM."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


def repeat(do: Callable[[], None], seconds: float) -> None:
    """Calls it, and again after each time that so many seconds have passed since its end. A first
    signal lets the present call come to its end; a second one does what it always does.
    """
    with _signs() as descriptor:
        do()
        while not select.select([descriptor], [], [], seconds)[0]:
            do()


@contextmanager
def _signs() -> Iterator[int]:
    """A descriptor that becomes readable with the first signal."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    read, write = os.pipe()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def arrived(number: int, frame: FrameType | None) -> None:
        os.write(write, b".")
        restore()

    for number in _ENDING:
        signal.signal(number, arrived)
    try:
        yield read
    finally:
        restore()
        os.close(read)
        os.close(write)
