"""hold and ahold under real concurrency."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus
from tests.support.contention import RESOURCES
from tests.support.redis_state import leftovers

PROCESSES, THREADS, TASKS = 4, 4, 4


@pytest.mark.slow
def test_a_crowd_of_threads_and_coroutines_never_overlaps_and_nobody_starves(
    locks: LockManager, tmp_path: Path
) -> None:
    members = PROCESSES * (THREADS + TASKS)
    memory = tmp_path / "cells"
    memory.write_bytes(bytes(members * RESOURCES))
    crowd = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.contention", str(memory)]
            + [str(n) for n in (number * (THREADS + TASKS), THREADS, TASKS, members, 20.0)],
            env=dict(os.environ, DJANGO_SETTINGS_MODULE="tests.settings"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    reports = [json.loads(process.communicate(timeout=90)[0]) for process in crowd]
    assert [process.returncode for process in crowd] == [0] * PROCESSES
    assert [text for report in reports for text in report["overlaps"]] == []
    assert sum(report["holds"] for report in reports) > 1000
    # First come, first served: nobody waits for longer than the queue before it takes.
    assert min(report["least"] for report in reports) > 10
    assert max(report["longest_wait"] for report in reports) < 5.0
    assert leftovers(locks) == set()
    assert AppStatus.objects.count() == 0, "each process took its record along"
