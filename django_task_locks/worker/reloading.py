"""For development: runs the worker in a process of its own, and anew when a source file changes."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

from django.apps import apps
from django.utils import autoreload

from django_task_locks.events import emit
from django_task_locks.worker.children import die_with

OPTION = "--autoreload"

_INTERVAL = 0.5
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Reloading:
    """`run` returns the worker's exit status, after a signal that has ended it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._is_stopping = False
        self._worker = self._started()

    def run(self) -> int:
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        before, is_told = _sources(), False
        while True:
            time.sleep(_INTERVAL)
            status = self._worker.poll()
            if status is not None and self._is_stopping:
                return max(status, 0)
            if status is not None and not is_told:
                is_told = True
                emit("worker.reload_waits", status=status)
            present = _sources()
            if present != before and not self._is_stopping:
                emit("worker.reloading", file=_first_difference(before, present))
                before, is_told = present, False
                self._restart()

    def _restart(self) -> None:
        if self._worker.poll() is None:
            # Running tasks get their grace, and not more: somebody waits for the new code.
            self._worker.send_signal(signal.SIGINT)
            self._worker.wait()
        if not self._is_stopping:
            self._worker = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own command line again
            self._command, preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM)
        )

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        if self._worker.poll() is None:
            self._worker.send_signal(number)


def run() -> int:
    """Runs the present command without the option."""
    command = [word for word in autoreload.get_child_arguments() if word != OPTION]
    return Reloading(command).run()


def _sources() -> dict[Path, float]:
    """The modules that are loaded here, and all of the project's apps, since only executors load
    the modules of tasks; each with the time of its last change.
    """
    reloader = autoreload.StatReloader()
    for app in apps.get_app_configs():
        if not any(part in ("site-packages", "dist-packages") for part in Path(app.path).parts):
            reloader.watch_dir(app.path, "**/*.py")
    return dict(reloader.snapshot_files())


def _first_difference(before: dict[Path, float], present: dict[Path, float]) -> Path:
    differing = (path for path in {**present, **before} if present.get(path) != before.get(path))
    return next(differing, Path(sys.argv[0]))
