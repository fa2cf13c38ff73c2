"""Redis is emptied again and again, also in the middle of a rebuild, under contention."""

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django_task_locks import dispatch
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, LockEpoch, State
from tests.support.contention import RESOURCES
from tests.support.processes import Workers, wait_until, wait_until_final
from tests.support.redis_state import answered, assert_nothing_is_left
from tests.testapp import witnesses
from tests.testapp.models import Run

PROCESSES, THREADS, COROUTINES, SECONDS = 3, 2, 2, 15.0


@contextmanager
def flushing(locks: LockManager) -> Iterator[int]:
    """FLUSHALL after random times; yields the seed of their series."""
    seed = random.SystemRandom().randrange(10**6)
    chance, stop = random.Random(seed), threading.Event()

    def flush() -> None:
        while not stop.wait(chance.choice([0.05, 0.3, 1.5, 2.5])):
            locks.client.flushall()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield seed
    finally:
        stop.set()
        thread.join()


def test_holds_of_threads_and_coroutines_never_overlap(locks: LockManager, tmp_path: Path) -> None:
    of_each = THREADS + COROUTINES
    members, memory = PROCESSES * of_each, tmp_path / "cells"
    memory.write_bytes(bytes(members * RESOURCES))
    crowd = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.contention", str(memory)]
            + [str(n) for n in (number * of_each, THREADS, COROUTINES, members, SECONDS)],
            env=dict(os.environ, DJANGO_SETTINGS_MODULE="tests.settings"),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    wait_until(lambda: AppStatus.objects.count() == PROCESSES)
    first = LockEpoch.present().number
    with flushing(locks) as seed:
        wait_until(lambda: LockEpoch.present().number > first + 4, SECONDS, "several rebuilds")
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in crowd]
    assert [text for report in reports for text in report["overlaps"]] == [], f"seed {seed}"
    assert min(report["least"] for report in reports) > 0
    wait_until(lambda: answered(lambda: not get_lock_manager().owners()), what="their end")
    assert_nothing_is_left(get_lock_manager())


def test_tasks_never_overlap_and_each_runs_once(
    locks: LockManager, workers: Workers, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        workers.launch("--name", name, "--concurrency", "2")
    for worker in workers.started:
        worker.wait_until_started()
    dispatched = []
    with flushing(locks) as seed:
        chance = random.Random(seed)
        first = LockEpoch.present().number
        for _ in range(120):
            names = chance.sample(["a", "b", "c", "d"], chance.randint(1, 3))
            cut = chance.randint(0, len(names))
            arguments = [str(tmp_path), names[:cut], names[cut:], ""]
            dispatched.append(
                dispatch(
                    witnesses.work_until,
                    arguments,
                    exclusive=names[:cut],
                    shared=names[cut:],
                    immediate=chance.random() < 0.2,
                )
            )
        wait_until(lambda: LockEpoch.present().number > first + 4, 30, "several rebuilds")
    ended = wait_until_final(dispatched, timeout=60)
    assert Counter(task.state for task in ended) == {State.COMPLETED: 120}, f"seed {seed}"
    assert witnesses.violations(tmp_path) == [], f"seed {seed}"
    assert set(Counter(Run.objects.values_list("task_id", flat=True)).values()) == {1}
    assert_nothing_is_left(get_lock_manager())
