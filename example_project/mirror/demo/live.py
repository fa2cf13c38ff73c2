"""The live view on a terminal. Needs rich."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mirror.demo.watching import Event, Running, View, Waiting

STYLES = {
    "note": "dim",
    "started": "cyan",
    "completed": "green",
    "failed": "red",
    "killed": "bold red",
    "restarted": "bold yellow",
}
MARKS = {
    "note": "·",
    "started": "▶",
    "completed": "✓",
    "failed": "✗",
    "killed": "☠",
    "restarted": "↻",
}
FEWEST_EVENTS = 4


class LiveDisplay:
    """Redraws one screen; important events stay above it, in the terminal's history."""

    queues = True

    def __init__(self, console: Console, workers: Mapping[str, int]) -> None:
        """`workers` are the names of the workers and how many tasks each runs at a time."""
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._console = console
        self._workers = workers
        self._events: deque[Text] = deque(maxlen=50)
        self._began = time.monotonic()

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def tell(self, event: Event) -> None:
        kind = "" if event.kind == "note" else f"{event.kind} "
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{time.monotonic() - self._began:5.1f} s  ", style="dim")
        line.append(f"{MARKS[event.kind]} {kind}{event.text}", style=STYLES[event.kind])
        if event.kind in {"started", "completed"}:
            self._events.append(line)
        else:
            self._console.print(line)

    def show(self, view: View) -> None:
        for event in view.events:
            self.tell(event)
        self._live.update(self._screen(view), refresh=True)

    def _screen(self, view: View) -> RenderableType:
        queue = sorted(view.waiting, key=lambda waiting: not waiting.blockers)
        room = self._console.height - 8 - sum(self._workers.values())
        events = min(len(self._events), max(FEWEST_EVENTS, room // 3))
        return Group(
            self._progress(view),
            self._running(view),
            self._waiting(queue, max(3, room - events)),
            *list(self._events)[-events:],
        )

    def _progress(self, view: View) -> RenderableType:
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        told = f"{view.final} of {view.total} ended, {len(view.running)} run"
        seconds = f"{time.monotonic() - self._began:.0f} s"
        grid.add_row(
            f"{told}, {len(view.waiting)} wait",
            ProgressBar(total=max(view.total, 1), completed=view.final),
            seconds,
        )
        return grid

    def _running(self, view: View) -> RenderableType:
        table = Table(expand=True, box=None, header_style="bold")
        table.add_column("worker", no_wrap=True)
        table.add_column("runs", ratio=1, no_wrap=True)
        table.add_column("for", justify="right", no_wrap=True)
        for worker, concurrency in self._workers.items():
            tasks = [running for running in view.running if running.worker == worker]
            for slot in range(concurrency):
                table.add_row(worker if slot == 0 else "", *_cells(tasks[slot : slot + 1]))
        return table

    def _waiting(self, queue: list[Waiting], room: int) -> RenderableType:
        table = Table(expand=True, box=None, header_style="bold")
        table.add_column("waits", ratio=2, no_wrap=True)
        table.add_column("for", ratio=3, no_wrap=True)
        for waiting in queue[:room]:
            table.add_row(str(waiting.job), ", ".join(_in_the_way(waiting)))
        if len(queue) > room:
            table.add_row(Text(f"… and {len(queue) - room} more", style="dim"), "")
        return table


def _cells(tasks: list[Running]) -> tuple[str | Text, str]:
    if not tasks:
        return Text("nothing", style="dim"), ""
    running = tasks[0]
    if running.is_cut_off:
        return Text(f"{running.job} is dead, not found yet", style="red"), ""
    return str(running.job), f"{running.seconds:.1f} s" if running.seconds is not None else ""


def _in_the_way(waiting: Waiting) -> Iterator[str]:
    if not waiting.blockers:
        yield "a free executor"
    for blocker in waiting.blockers[:2]:
        yield f"{blocker.job} on {blocker.resource}"
    if len(waiting.blockers) > 2:
        yield f"{len(waiting.blockers) - 2} more"
