"""Clean-up of a dead owner with 5 locks, in databases that hold more and more locks of others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.test.utils import override_settings
from redis import Redis

from benchmarks.locks.contestants import TTL, Refused, ids
from benchmarks.rounds import Contestant, paired_rounds
from django_task_locks.connections import rebuilding_lock_manager
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant, Grant

LOCKS = 5
_FOREIGN_REQUEST = 20  # locks of each foreign request, a quarter of them shared
_FOREIGN_OWNER = 10  # requests of each foreign owner


def measure(rounds: int, seed: int, foreign: Sequence[int], **unused: object) -> dict[str, Any]:
    """Microseconds and numbers of commands, by number of foreign locks.

    Each number has a database of its own on the server, so that all take part in each round.
    """
    contestants, commands = [], {}
    for database, count in enumerate(foreign, start=1):
        with _database(database):
            manager = rebuilding_lock_manager()  # each database has locks of its own
        _fill(manager, count)
        contestants.append(Contestant(str(count), _cleanups(manager)))
        _cleanups(manager)(1)()  # which loads the scripts
        commands[str(count)] = _commands(manager)
    took = paired_rounds(contestants, rounds=rounds, repetitions=1, seed=seed)
    return {"microseconds": took, "commands": commands}


@contextmanager
def _database(number: int) -> Iterator[None]:
    url = settings.TASK_LOCKS["redis"]
    url += f"?db={number}" if url.startswith("unix:") else f"/{number}"
    with override_settings(TASK_LOCKS=settings.TASK_LOCKS | {"redis": url}):
        yield


def _fill(manager: LockManager, count: int) -> None:
    for first in range(0, count, _FOREIGN_REQUEST):
        names = [
            f"foreign:{number}" for number in range(first, min(first + _FOREIGN_REQUEST, count))
        ]
        owner = f"foreign@{first // _FOREIGN_REQUEST // _FOREIGN_OWNER}"
        grant = manager.request(
            LockRequest(
                id=f"foreign-{first}",
                exclusive=tuple(names[len(names) // 4 :]),
                shared=tuple(names[: len(names) // 4]),
                claimant=Claimant(owner=owner, ttl=TTL),
            )
        )
        if not isinstance(grant, Grant):
            raise Refused(f"foreign lock: {grant}")


def _cleanups(manager: LockManager) -> Callable[[int], Callable[[], None]]:
    def prepare(count: int) -> Callable[[], None]:
        owners = [f"dead@{id}" for id in ids(count)]
        for owner in owners:
            for number, id in enumerate(ids(LOCKS)):
                grant = manager.request(
                    LockRequest(
                        id=id,
                        exclusive=(f"{owner}:{number}",),
                        claimant=Claimant(owner=owner, ttl=TTL),
                    )
                )
                if not isinstance(grant, Grant):
                    raise Refused(f"lock of {owner}: {grant}")

        def run() -> None:
            for owner in owners:
                manager.close_owner(owner)
                if (ended := manager.release_owner(owner)) != LOCKS:
                    raise Refused(f"clean-up of {owner}: {ended} were released")
                if left := manager.forget_owner(owner):
                    raise Refused(f"clean-up of {owner}: {left} are left")

        return run

    return prepare


def _commands(manager: LockManager) -> dict[str, int]:
    """What one clean-up has the server do, including what its scripts call."""
    run = _cleanups(manager)(1)
    client: Redis = manager.client
    client.config_resetstat()
    run()
    statistics = client.info("commandstats")
    found = {
        name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in statistics.items()
    }
    for own in ("config|resetstat", "info"):
        found.pop(own, None)
    return found
