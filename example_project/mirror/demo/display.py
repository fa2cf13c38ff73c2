"""Plain lines, one for each event: for pipes, logs and terminals without rich."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from mirror.demo.watching import Event, View


class Display(Protocol):
    """Shows what happens. A context manager, so that a terminal is left as it was."""

    queues: bool
    """Whether it shows who waits on whom all the time."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def tell(self, event: Event) -> None: ...

    def show(self, view: View) -> None: ...


class PlainDisplay:
    """Prints a line for each event and nothing in between."""

    queues = False

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._began = time.monotonic()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def tell(self, event: Event) -> None:
        self._write(f"{time.monotonic() - self._began:5.1f} s  {event.kind:<9}  {event.text}")

    def show(self, view: View) -> None:
        for event in view.events:
            self.tell(event)


def describe_waits(view: View, most: int = 3) -> str:
    """Who waits on whom, in a line."""
    blocked = [waiting for waiting in view.waiting if waiting.blockers]
    told = [f"{w.job} for {w.blockers[0].job} ({w.blockers[0].resource})" for w in blocked[:most]]
    more = f", and {len(blocked) - most} more" if len(blocked) > most else ""
    return f"{len(blocked)} wait: {'; '.join(told)}{more}" if blocked else "nothing waits"
