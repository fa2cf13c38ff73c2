"""manage.py demo: tasks that contend for locks, and a worker that is killed amid them."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from mirror.demo.catalog import TooFewDistributions
from mirror.demo.performance import Performance
from mirror.demo.premises import Occupied
from mirror.demo.workers import WorkerEnded


class Command(BaseCommand):
    help = (
        "Mirrors installed packages with two workers, kills one of them half-way, and checks that "
        "nothing was lost, overlapped or left locked. Starts with an empty database."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _leave)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # An encoding may lack the check marks.
        performance = Performance(
            manage=Path(settings.BASE_DIR, "manage.py"),
            var=Path(settings.VAR_DIR),
            write=self.stdout.write,
            is_terminal=self.stdout.isatty(),
        )
        try:
            checks = performance.run()
        except (TooFewDistributions, Occupied, WorkerEnded) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stderr.write("Interrupted. The workers were ended.")
            sys.exit(128 + signal.SIGINT)
        self.stdout.write("")
        for check in checks:
            style, mark = (self.style.SUCCESS, "✓") if check.ok else (self.style.ERROR, "✗")
            self.stdout.write(style(f"{mark} {check.text}"))
            for problem in check.problems:
                self.stdout.write(f"    {problem}")
        self.stdout.write("\nWhat to look at next:")
        places = list(_next_places())
        width = max(len(place) for place, _ in places)
        for place, what in places:
            self.stdout.write(f"  {place:<{width}}  {what}")
        if not all(check.ok for check in checks):
            sys.exit(1)


def _leave(number: int, frame: FrameType | None) -> None:
    """Unwinds, so that the workers are ended."""
    sys.exit(128 + number)


def _next_places() -> Iterator[tuple[str, str]]:
    base = Path(settings.BASE_DIR)
    yield os.path.relpath(base / "mirror" / "tasks.py"), "the tasks: ordinary functions"
    yield os.path.relpath(base / "mirror" / "demo" / "scenario.py"), "how they are dispatched"
    yield os.path.relpath(base.parent / "README.md"), "what the library does"
    manage = f"python {os.path.relpath(base / 'manage.py')}"
    yield f"{manage} task_worker", "a worker of your own"
    yield f"{manage} cleanup_locks --dry-run", "what a clean-up would find"
