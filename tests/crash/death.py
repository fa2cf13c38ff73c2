"""A worker that was killed in the middle of everything."""

import os
import signal
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django_task_locks import cancel_task, presence
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks.requests import Claimant, Claimed, Lanes
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.crash import evidence
from tests.crash.case import AGAIN, PATIENCE, task
from tests.crash.stage import Stage

# How its tasks, and those that wait for them, come to their ends.
AFTER_DEATH = {
    "ran": State.FAILED,
    "again": State.COMPLETED,
    "canceling": State.CANCELED,
    "claimed": State.COMPLETED,
    "ended": State.COMPLETED,
    **{
        f"after {label}": State.COMPLETED
        for label in ("ran", "again", "canceling", "claimed", "ended")
    },
}


def dead_worker(stage: Stage) -> None:
    """A worker that was killed in the middle of everything: tasks that ran, may run again, were
    being canceled, were claimed and not started, and had ended without the release; rivals wait.
    """
    labels: dict[str, dict[str, Any]] = {
        "ran": {},
        "again": AGAIN,
        "canceling": {},
        "claimed": {},
        "ended": {},
    }
    for label, options in labels.items():
        task(stage, label, exclusive=[label], **options)
        task(stage, f"after {label}", exclusive=[label])

    def live_and_die() -> None:
        present = presence.prepare("w", AppStatus.AppType.WORKER)
        presence.register(present)
        for slot, label in enumerate(labels):
            claimed = _claim(replace(present.claimant, slot=f"{slot}.1"))
            found = Task.objects.get(pk=claimed.id)
            if label == "claimed":
                continue
            found.start(present.status, claimed.token)
            begun = evidence.recorded(
                stage.evidence, label, claimed.id, found.exclusive, found.shared
            )
            begun.__enter__()
            if label == "canceling":
                cancel_task(found)
            if label == "ended":
                begun.__exit__(None, None, None)
                # As the one who dies between commit and release.
                Task.objects.filter(pk=claimed.id).update(state=State.COMPLETED, app_lock=None)
        os.kill(os.getpid(), signal.SIGKILL)

    dead = stage.fork("dead", live_and_die)
    assert stage.until(dead.has_ended, PATIENCE)
    assert dead.status() == -signal.SIGKILL, stage.log_file.read_text()


def _claim(claimant: Claimant) -> Claimed:
    """The next that is ready; there is one."""
    locks, version = get_lock_manager(), ""
    lanes: tuple[str, ...] = ()
    while not isinstance(reply := locks.claim(claimant, version, lanes), Claimed):
        assert isinstance(reply, Lanes), "nothing is ready"
        version, lanes = reply.version, tuple(reply.lanes)
    return reply


def long_dead_worker(stage: Stage) -> None:
    dead_worker(stage)
    AppStatus.objects.update(last_heartbeat=DatabaseNow() - timedelta(hours=1))
