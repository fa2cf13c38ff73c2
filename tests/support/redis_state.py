"""What is in Redis under our prefix beyond what may stay for ever."""

import time
from collections.abc import Callable
from typing import Any

from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.locks.protocol import text
from django_task_locks.models import Task

BOOKKEEPING = ("seq", "epoch", "lanes", "closed", "owners", "suspects", "leader:", "wake:")


def leftovers(locks: LockManager) -> set[str]:
    """Keys of requests, locks, queues, registries, messages and grants that are there, and of slots
    that hold something. The generations of a live worker's slots may stay."""
    found = set()
    for key in locks.client.scan_iter(locks.keys.base + "*"):
        name = text(key).removeprefix(locks.keys.base)
        if name.startswith("slot:"):
            fields = map(text, locks.client.hkeys(key))
            if all(field.startswith("generation:") for field in fields):
                continue
        if not name.startswith(BOOKKEEPING):
            found.add(name)
    return found


def assert_nothing_is_left(locks: LockManager) -> None:
    """A state that a test has seen committed is followed by its release, a moment later."""
    deadline = time.monotonic() + 5
    while (found := leftovers(locks)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == set(), found


def answered(ask: Callable[[], Any]) -> Any:
    """What it returns; None while the lock service cannot answer."""
    try:
        return ask()
    except LockServiceUnavailable:
        return None


def state_in_redis(locks: LockManager, task: Task) -> str | None:
    """The state of a task's request; None if it has none."""
    found = locks.inspect_request(str(task.pk))
    return found.state if found else None
