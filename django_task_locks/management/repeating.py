"""Repeats what a command does until SIGINT or SIGTERM."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


def repeat(do: Callable[[], None], seconds: float) -> None:
    """Calls it, and again after each time that so many seconds have passed since its end. A first
    signal lets the present call come to its end; a second one does what it always does.
    """
    asked = Event()
    with _heeded(asked):
        while not asked.is_set():
            do()
            asked.wait(seconds)


@contextmanager
def _heeded(asked: Event) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _ENDING}

    def arrived(number: int, frame: FrameType | None) -> None:
        asked.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in _ENDING:
        signal.signal(number, arrived)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
