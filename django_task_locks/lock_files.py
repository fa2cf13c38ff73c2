"""Lock files: proof that a process of this host, executors included, is gone.

The descriptor is inherited by forked children and closed in programs that they start, so the file
is free exactly when the last of them has ended, however it ended. Names and pids prove nothing: a
restarted container has the same ones.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path


class LockFile:
    """A lock file of this process, held from here on until the process and its forks have ended."""

    def __init__(self, directory: str | Path, owner: str) -> None:
        """Raises OSError where the directory cannot be made or written."""
        self.path = path_of(directory, owner)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only now: a reader that finds the owner in the file knows that it was locked before.
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, owner.encode())

    def remove(self) -> None:
        """Ends the proof; for the process itself, after it has nothing left to protect."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self.descriptor)


def path_of(directory: str | Path, owner: str) -> Path:
    """Where an owner's lock file is, if this host has it."""
    name, _, id = owner.rpartition("@")
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:80]
    return Path(directory) / f"{readable}-{id}.lock"


def is_held(path: str, owner: str) -> bool:
    """Whether this host has the owner's file and a process that lives holds it."""
    return _is_free(path, owner) is False


def is_free(path: str, owner: str) -> bool:
    """Whether this host has the owner's file and nobody holds it: the process is gone for certain.
    False proves nothing: the file may be another host's.
    """
    return _is_free(path, owner) is True


def discard(path: str, owner: str) -> None:
    """Removes the file of a process that is gone, if this host has it."""
    if is_free(path, owner):
        with suppress(OSError):
            Path(path).unlink()


def _is_free(path: str, owner: str) -> bool | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.read(descriptor, 4096) != owner.encode():
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
