"""The clean ground that the demo starts on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import DatabaseError, connection
from django_task_locks.connections import get_lock_manager
from django_task_locks.models import AppStatus


class Occupied(Exception):
    """Another process works on the demo's database."""


@contextmanager
def sole_use(path: Path) -> Iterator[None]:
    """Keeps a second demo out. Raises Occupied."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Occupied("Another demo runs in this directory.") from None
        yield


def clear() -> None:
    """An empty, migrated database and a lock service without a key. Raises Occupied."""
    others = _others()
    if others:
        raise Occupied(
            "The demo would delete a database that is in use. End these processes first "
            f"(one that was killed counts for some seconds more): {', '.join(others)}."
        )
    name = connection.settings_dict["NAME"]
    connection.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{name}{suffix}").unlink(missing_ok=True)
    manager = get_lock_manager()
    keys = list(_keys())
    if keys:
        manager.client.unlink(*keys)
    call_command("migrate", verbosity=0)


def remaining_keys() -> list[str]:
    """The names of all keys in the lock service, without the prefix."""
    prefix = get_lock_manager().keys.base
    return sorted(key.removeprefix(prefix) for key in _keys())


def ended_owners() -> list[str]:
    """The processes that the lock service or the database lists, apart from this one."""
    manager = get_lock_manager()
    known = {status.owner for status in AppStatus.objects.all()} | set(manager.owners())
    me = AppStatus.objects.current()
    return sorted(known - {me.owner} if me else known)


def _keys() -> Iterator[str]:
    manager = get_lock_manager()
    for key in manager.client.scan_iter(match=f"{manager.keys.base}*", count=1000):
        yield key.decode() if isinstance(key, bytes) else key


def _others() -> list[str]:
    try:
        online = AppStatus.objects.online()
        return [f"{status.name} (pid {status.pid})" for status in online]
    except DatabaseError:
        return []  # No database yet, or one of an older version.
