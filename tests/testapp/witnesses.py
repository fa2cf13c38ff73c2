"""Bodies that find out by themselves whether somebody else has what they were given.

Each takes a lock of the kernel on a file for each of its resources, in the same mode, without
waiting: it goes with the last process that has it, so that a killed body's is free exactly when
nothing of it can run any more.
"""

import asyncio
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django_task_locks import current_task
from tests.testapp.tasks import recorded

_VIOLATIONS = "violations"


@contextmanager
def witnessed(directory: str, exclusive: list[str], shared: list[str]) -> Iterator[list[int]]:
    """The descriptors of the locks, which programs may inherit."""
    descriptors = []
    try:
        for names, mode in ((exclusive, fcntl.LOCK_EX), (shared, fcntl.LOCK_SH)):
            for name in names:
                path = Path(directory) / f"{name}.witness"
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                descriptors.append(descriptor)
                try:
                    fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
                except BlockingIOError:
                    _note(directory, f"{name} is taken")
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def violations(directory: Path) -> list[str]:
    path = directory / _VIOLATIONS
    return path.read_text().splitlines() if path.exists() else []


def _note(directory: str, what: str) -> None:
    task = current_task()
    with (Path(directory) / _VIOLATIONS).open("a") as file:
        file.write(f"{what}, says {task.pk if task else None}\n")


def work(
    directory: str, exclusive: list[str], shared: list[str], seconds: float, fails: bool
) -> None:
    with witnessed(directory, exclusive, shared):
        time.sleep(seconds)
        if fails:
            raise ValueError("as it was told")


async def awork(
    directory: str, exclusive: list[str], shared: list[str], seconds: float, fails: bool
) -> None:
    with witnessed(directory, exclusive, shared):
        await asyncio.sleep(seconds)
        if fails:
            raise ValueError("as it was told")


def work_until(directory: str, exclusive: list[str], shared: list[str], path: str) -> None:
    """Until a file appears; without a path, for a moment."""
    with recorded(",".join(exclusive + shared)), witnessed(directory, exclusive, shared):
        time.sleep(0.01)
        while path and not Path(path).exists():
            time.sleep(0.02)


def start_program(
    directory: str, exclusive: list[str], shared: list[str], seconds: float, fails: bool
) -> None:
    """The program has the locks, too, for as long as it lives."""
    with witnessed(directory, exclusive, shared) as descriptors:
        subprocess.run(["sleep", str(seconds)], check=True, pass_fds=descriptors)
