"""A long mixed load while executors and workers are killed at random: nothing is lost, nothing runs
twice, nothing overlaps, nothing is left. The seed of each run is printed; TEST_SEED repeats one.

The bodies prove exclusion with locks of the kernel, which go with the process that has them.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from django_task_locks import cancel_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import AppStatus, State, Task
from tests.support.processes import Worker, Workers, is_guard, wait_until
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import witnesses

pytestmark = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'",
    reason="final states are counted by a trigger of PostgreSQL's",
)

RESOURCES = [f"r{number}" for number in range(12)]


@pytest.fixture
def ends() -> Iterator[Counter[str]]:
    """How often each task came to a final state, when the test reads it: by a trigger, so that no
    write can go unnoticed."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE TABLE soak_ends (task text, state text);
            CREATE FUNCTION soak_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
              IF NEW.state IN ('completed', 'failed', 'canceled') THEN
                INSERT INTO soak_ends VALUES (NEW.id::text, NEW.state);
              END IF;
              RETURN NEW;
            END $$;
            CREATE TRIGGER soak_note AFTER INSERT OR UPDATE ON django_task_locks_task
              FOR EACH ROW EXECUTE FUNCTION soak_note();
            """
        )
    counted: Counter[str] = Counter()
    yield counted
    with connection.cursor() as cursor:
        cursor.execute(
            "DROP TRIGGER soak_note ON django_task_locks_task; DROP FUNCTION soak_note; "
            "DROP TABLE soak_ends"
        )


def count_ends(counted: Counter[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT task, count(*) FROM soak_ends GROUP BY task")
        counted.update(dict(cursor.fetchall()))


@dataclass
class Soak:
    workers: Workers
    directory: Path
    chance: random.Random
    tasks: list[Task] = field(default_factory=list)
    running: dict[str, Worker] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    def start(self, count: int) -> None:
        for number in range(count):
            name = f"w{number}"
            self.running[name] = self.workers.launch("--name", name, "--concurrency", "2")

    def dispatch(self) -> None:
        names = self.chance.sample(RESOURCES, self.chance.randint(1, 3))
        cut = self.chance.randint(0, len(names))
        exclusive, shared = names[:cut], names[cut:]
        body: Any = self.chance.choice(
            [witnesses.work, witnesses.work, witnesses.awork, witnesses.start_program]
        )
        if body is witnesses.start_program and self.chance.random() < 0.9:
            body = witnesses.work  # a program costs more than the rest together
        options: dict[str, Any] = {}
        if self.chance.random() < 0.3:
            options |= {"on_worker_loss": "requeue", "max_attempts": 3}
        if self.chance.random() < 0.1:
            options["time_limit"] = 0.05
        seconds = self.chance.choice([0.0, 0.0, 0.005, 0.02, 0.1])
        task = dispatch(
            body,
            [str(self.directory), exclusive, shared, seconds, self.chance.random() < 0.05],
            exclusive=exclusive,
            shared=shared,
            priority=self.chance.choice([0, 0, 0, 5]),
            **options,
        )
        self.tasks.append(task)
        if self.chance.random() < 0.03:
            with suppress(Task.DoesNotExist):
                cancel_task(self.chance.choice(self.tasks[-20:]))

    def kill_one(self) -> None:
        """An executor, or a whole worker, which is started again under its name; only of workers
        that are at work: on a busy machine none would ever come to it."""
        at_work = [
            name for name, worker in self.running.items() if "started, waited" in worker.log()
        ]
        if not at_work:
            return
        name = self.chance.choice(at_work)
        worker = self.running[name]
        if self.chance.random() < 0.35:
            worker.kill()
            self.running[name] = self.workers.launch("--name", name, "--concurrency", "2")
            self.kills["workers"] += 1
            return
        for process in self.chance.sample(family := worker.descendants(), len(family)):
            with suppress(psutil.NoSuchProcess):
                if process.ppid() == worker.pid and not is_guard(process):
                    os.kill(process.pid, signal.SIGKILL)
                    self.kills["executors"] += 1
                    return

    def left(self) -> int:
        return Task.objects.incomplete().count()

    def run(self, tasks: int, kills: int) -> None:
        for _ in range(tasks // 2):
            self.dispatch()
        interval = tasks // 2 // kills or 1
        for number in range(tasks - len(self.tasks)):
            self.dispatch()
            if number % interval == interval - 1:
                self.kill_one()
        while self.kills.total() < kills or self.left():
            if self.kills.total() < kills or self.left() > tasks // 10:
                self.kill_one()
            deadline = time.monotonic() + self.chance.uniform(0.2, 1.0)
            wait_until(lambda: time.monotonic() > deadline or not self.left())  # noqa: B023
            if self.kills.total() > 3 * kills:
                break  # enough; the rest may end in peace


def soak(
    tasks: int,
    kills: int,
    workers: Workers,
    locks: LockManager,
    directory: Path,
    ends: Counter[str],
    say: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("TEST_SEED") or random.SystemRandom().randrange(10**6))
    with say.disabled():
        print(f"\nsoak: seed {seed}", flush=True)  # noqa: T201
    began = time.monotonic()
    scene = Soak(workers, directory, random.Random(seed))
    scene.start(3)
    scene.run(tasks, kills)
    wait_until(lambda: not scene.left(), timeout=300, what=f"the end of all, seed {seed}")
    count_ends(ends)
    states = Counter(Task.objects.values_list("state", flat=True))
    with say.disabled():
        print(  # noqa: T201
            f"soak: {len(scene.tasks)} tasks, {dict(states)}, {dict(scene.kills)} killed, "
            f"{time.monotonic() - began:.0f} s"
        )
    assert witnesses.violations(directory) == [], f"seed {seed}"
    assert set(ends) == {str(task.pk) for task in scene.tasks}
    assert set(ends.values()) == {1}, f"each is final once, seed {seed}"
    assert scene.kills.total() >= kills
    assert states[State.COMPLETED] > tasks * 0.7
    assert not Task.objects.exclude(app_lock=None).exists()
    # A worker that was killed just now may have left a row; its successor has taken care of it.
    wait_until(
        lambda: AppStatus.objects.filter(app_type="worker").count() == len(scene.running),
        timeout=30,
        what=f"one row for each worker, seed {seed}",
    )
    assert_nothing_is_left(locks)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_mixed_load_under_kills_short(
    workers: Workers,
    locks: LockManager,
    tmp_path: Path,
    ends: Counter[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    soak(300, 5, workers, locks, tmp_path, ends, capsys)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_mixed_load_under_kills(
    workers: Workers,
    locks: LockManager,
    tmp_path: Path,
    ends: Counter[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    soak(3000, 20, workers, locks, tmp_path, ends, capsys)
