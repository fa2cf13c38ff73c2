"""Plain lines, one for each event: for pipes, logs and terminals without rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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


def describe_waits(view: View) -> Iterator[str]:
    """Who waits on whom, with an example of each kind of task."""
    blocked = [waiting for waiting in view.waiting if waiting.blockers]
    yield f"{len(blocked)} tasks wait for others, for example:"
    examples = {waiting.job.label.partition(" ")[0]: waiting for waiting in reversed(blocked)}
    for waiting in sorted(examples.values(), key=lambda waiting: waiting.job.number):
        first, *more = waiting.blockers
        others = f", and for {len(more)} more" if more else ""
        yield f"{waiting.job} waits for {first.job}, on {first.resource}{others}"
