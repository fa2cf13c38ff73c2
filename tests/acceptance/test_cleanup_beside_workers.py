"""cleanup_locks again and again beside workers that are at work: nothing of theirs is touched."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.support.intervals import out_of_order, overlaps
from tests.support.processes import Workers, wait_until, wait_until_final
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks


def test_it_finds_nothing_while_live_workers_contend(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        workers.start("--name", name, "--concurrency", "2")
    output = tmp_path / "rounds"
    with output.open("wb") as file:
        options = ["--watch", "0.02", "--scan", "--format", "json"]
        watch = subprocess.Popen(
            [sys.executable, "-m", "django", "cleanup_locks", *options], stdout=file
        )
    try:
        wait_until(output.read_text, what="its first round")
        sent = [
            dispatch(tasks.record, [f"{n}", 0.02], exclusive=[f"r{n % 3}"], shared=["s"])
            for n in range(90)
        ]
        ended = wait_until_final(sent, timeout=60)
        watch.send_signal(signal.SIGTERM)
        assert watch.wait(20) == 0
    finally:
        watch.kill()
        watch.wait()
    assert {task.state for task in ended} == {State.COMPLETED}
    assert overlaps(sent) == out_of_order(sent) == []
    rounds = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rounds) > 5
    # A task may be seen between its commit and its request, which is then sent twice: one request.
    assert {step["kind"] for found in rounds for step in found["steps"]} <= {"unsent"}
    assert_nothing_is_left(locks)
