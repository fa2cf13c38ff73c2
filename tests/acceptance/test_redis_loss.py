"""Redis loses its data, or is another server, while everything is in use: tasks run, code holds
resources by itself in three kinds of processes, an immediate task has its transaction open, and
others wait for all of it.

Bodies and holders take kernel locks besides, which tell if two conflicting ones are ever at work.
"""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from pytest_django import Settings

from django_task_locks import dispatch, epochs, presence, rebuilding
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import LockEpoch, State, Task
from tests.support import suite
from tests.support.holder import hold_until_released
from tests.support.intervals import out_of_order
from tests.support.processes import Workers, wait_for_state, wait_until, wait_until_final
from tests.support.redis_losses import (
    Deployment,
    EmptyRestart,
    Failover,
    Flush,
    FullRestart,
    SplitBrain,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import witnesses
from tests.testapp.models import Run

RUNNING = [f"r{number}" for number in range(10)]
HELD = ["script", "thread", "task"]
IMMEDIATE = "immediate"
# Seconds from the loss until the locks are granted again, where no process has to be given up.
REBUILT_WITHIN = 8.0


@pytest.fixture
def deployment(
    request: pytest.FixtureRequest, locks: LockManager, settings: Settings
) -> Iterator[Deployment]:
    with request.param() as deployment:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": deployment.url}
        epochs.forget()
        assert rebuilding.rebuild()
        yield deployment
        presence.leave()


class Scene:
    """Everything in use; `end` lets it go."""

    def __init__(self, directory: Path, workers: Workers, deployment: Deployment) -> None:
        self.directory = directory
        self.deployment = deployment
        self.running: list[Task] = []
        self.waiting: list[Task] = []
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._script: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        urls = [self.deployment.url, self.deployment.url, self.deployment.left_url]
        started = [
            self._workers.launch("--name", f"w{number}", "--concurrency", "4", redis=url)
            for number, url in enumerate(urls)
        ]
        for worker in started:
            worker.wait_until_started()
        half = len(RUNNING) // 2
        for name in RUNNING[:half]:
            self._run(name)
        self._wait_for_running()
        self.deployment.stop_following()
        for name in RUNNING[half:]:
            self._run(name)
        holder = dispatch(hold_until_released, [str(self.directory), "task"], **RETRIED)
        self.running.append(holder)
        self._wait_for_running()
        self._thread(hold_until_released, str(self.directory), "thread")
        self._script = subprocess.Popen(
            [sys.executable, "-m", "tests.support.holder", str(self.directory), "script"],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
            | {"TEST_TASK_LOCKS": _with_redis(self.deployment.url)},
        )
        self._thread(self._run_immediately)
        wait_until(lambda: all((self.directory / f"{name}.held").exists() for name in HELD))
        wait_until(lambda: get_lock_manager().inspect_resource(IMMEDIATE).holders)
        names = [*RUNNING, *HELD, IMMEDIATE]
        self.waiting = [
            self._wait_for([names[number % len(names)]], is_shared=number % 5 == 0)
            for number in range(100)
        ]

    def _run(self, name: str) -> None:
        arguments = [str(self.directory), [name], [], str(self.directory / "release")]
        self.running.append(dispatch(witnesses.work_until, arguments, exclusive=[name], **RETRIED))

    def _wait_for(self, names: list[str], *, is_shared: bool) -> Task:
        exclusive, shared = ([], names) if is_shared else (names, [])
        arguments = [str(self.directory), exclusive, shared, ""]
        return dispatch(witnesses.work_until, arguments, exclusive=exclusive, shared=shared)

    def _wait_for_running(self) -> None:
        for task in self.running:
            wait_for_state(task, State.RUNNING)

    def _run_immediately(self) -> None:
        release = str(self.directory / "release")
        arguments = [str(self.directory), [IMMEDIATE], [], release]
        if connection.vendor == "sqlite":  # whose one writer would keep all others waiting
            dispatch(witnesses.work_until, arguments, exclusive=[IMMEDIATE], immediate=True)
            return
        with transaction.atomic():
            dispatch(witnesses.work_until, arguments, exclusive=[IMMEDIATE], immediate=True)

    def _thread(self, target: Callable[..., Any], *arguments: Any) -> None:
        def run() -> None:
            try:
                target(*arguments)
            finally:
                connections.close_all()

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def answers(self, question: str) -> dict[str, str]:
        """Of the three holders, whether they hold what they held."""
        (self.directory / "ask").write_text(question)
        found: dict[str, str] = {}

        def have_all() -> bool:
            for name in HELD:
                path = self.directory / f"{name}.says"
                asked, _, answer = path.read_text().partition(" ") if path.exists() else ("",) * 3
                if asked == question:
                    found[name] = answer
            return len(found) == len(HELD)

        wait_until(have_all, what=f"the answer of each of {HELD}")
        return found

    def release(self) -> None:
        (self.directory / "release").touch()

    def end(self) -> None:
        self.release()
        for thread in self._threads:
            thread.join(20)
        if self._script is not None:
            assert self._script.wait(20) == 0


RETRIED: dict[str, Any] = {"on_worker_loss": "requeue", "max_attempts": 3}


def _with_redis(url: str) -> str:
    import json

    given = json.loads(os.environ["TEST_TASK_LOCKS"])
    return json.dumps(given | {"redis": url})


@pytest.fixture
def scene(tmp_path: Path, workers: Workers, deployment: Deployment) -> Iterator[Scene]:
    scene = Scene(tmp_path, workers, deployment)
    try:
        scene.prepare()
        yield scene
    finally:
        scene.end()


def seconds_to_rebuild(lose: Callable[[], None], timeout: float) -> float:
    before, began = LockEpoch.present(), time.monotonic()
    lose()
    wait_until(
        lambda: LockEpoch.present() != before and rebuilding.are_locks_right(),
        timeout,
        "a new epoch",
    )
    return time.monotonic() - began


def assert_all_came_right(scene: Scene) -> None:
    ended = wait_until_final([*scene.running, *scene.waiting], timeout=30)
    states = Counter(task.state for task in ended)
    assert states == {State.COMPLETED: len(ended)}, [task.error for task in ended if task.error]
    assert witnesses.violations(scene.directory) == []
    assert out_of_order(scene.waiting) == []
    runs = Counter(Run.objects.values_list("task_id", flat=True))
    assert {runs[task.pk] for task in scene.waiting} == {1}
    assert_nothing_is_left(get_lock_manager())


@pytest.mark.parametrize(
    "deployment",
    [Flush, EmptyRestart, FullRestart, Failover],
    ids=lambda kind: kind.__name__,
    indirect=True,
)
def test_nothing_overlaps_nothing_is_lost_and_what_was_held_is_held(
    scene: Scene, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = seconds_to_rebuild(scene.deployment.lose, REBUILT_WITHIN)
    with capsys.disabled():
        kind = type(scene.deployment).__name__
        print(f"\n{kind}: the locks are granted again after {seconds:.2f} s")  # noqa: T201

    assert scene.answers("afterwards") == dict.fromkeys(HELD, "True")
    assert {task.state for task in Task.objects.filter(pk__in=[t.pk for t in scene.waiting])} == {
        State.WAITING
    }
    scene.end()
    assert_all_came_right(scene)
    assert Run.objects.filter(task_id__in=[task.pk for task in scene.running]).count() == 10


@pytest.mark.parametrize("deployment", [SplitBrain], indirect=True)
def test_who_is_left_on_the_old_primary_is_given_up_and_fences_itself(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = seconds_to_rebuild(scene.deployment.lose, REBUILT_WITHIN + 3 * suite.TTL)
    with capsys.disabled():
        print(f"\nSplitBrain: the locks are granted again after {seconds:.2f} s")  # noqa: T201
    scene.end()
    assert_all_came_right(scene)
