"""What is in Redis under our prefix beyond what may stay for ever."""

from django_task_locks.locks import LockManager
from django_task_locks.locks.protocol import text

BOOKKEEPING = ("seq", "token", "lanes", "closed", "owners", "leader:", "wake:")


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
