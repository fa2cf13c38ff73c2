"""What is in Redis under our prefix beyond what may stay for ever."""

from django_task_locks.locks import LockManager

BOOKKEEPING = ("seq", "token", "lanes", "closed", "owners", "leader:", "wake:")


def leftovers(locks: LockManager) -> set[str]:
    """Keys of requests, locks, queues, registries, slots, messages and grants that are there."""
    keys = (
        key.decode().removeprefix(locks.keys.base)
        for key in locks.client.scan_iter(locks.keys.base + "*")
    )
    return {key for key in keys if not key.startswith(BOOKKEEPING)}
