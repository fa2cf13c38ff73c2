"""A look at every key of the server, with pauses, for what nothing else leads to: the last resort
of clean-up, for keys that were lost, and never a part of a usual round.
"""

import time
from collections import defaultdict
from collections.abc import Iterator

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import emit

_KEYS_A_STEP = 200
_SHORTEST_PAUSE = 0.002


class Survey:
    """What scans of one round have found. Each comes once, when it is first asked for.

    is_wanted  whether the round is to act on all that is found, and not only where it has to
    of_dead    ids that belonged to processes which the round has found dead
    """

    def __init__(self, *, is_wanted: bool = False) -> None:
        self.is_wanted = is_wanted
        self.of_dead: set[str] = set()
        self._unregistered: dict[str, set[str]] | None = None

    def unregistered(self) -> dict[str, set[str]]:
        """The ids of requests that their owner's registry lacks, by owner."""
        if self._unregistered is None:
            self._unregistered = defaultdict(set)
            for id, owner, _ in _scanned("requests"):
                self._unregistered[owner].add(id)
        return self._unregistered

    def of(self, owner: str) -> set[str]:
        return self.unregistered().get(owner, set())

    def strays(self) -> list[tuple[str, str, str]]:
        """(resource, "holder" or "waiter", id) of those that have no request."""
        return sorted(set(_scanned("locks")))


def _scanned(what: str) -> Iterator[tuple[str, str, str]]:
    manager = get_lock_manager()
    began, steps, cursor = time.monotonic(), 0, "0"
    while steps == 0 or cursor != "0":
        asked_at = time.monotonic()
        cursor, found = manager.scan(what, cursor, _KEYS_A_STEP)
        yield from found
        steps += 1
        # The server is this scan's for half of the time at most.
        time.sleep(max(_SHORTEST_PAUSE, time.monotonic() - asked_at))
    emit("recovery.scanned", what=what, steps=steps, seconds=time.monotonic() - began)
