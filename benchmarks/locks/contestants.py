"""Who takes and gives back locks: we, in the ways there are, and others.

A repetition is one pair: all locks of a case are taken, then given back. Everything that a user
does for it is in it, but for the id, which comes with the task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from redis import Redis

from benchmarks.locks import FLOOR, HOLD, POTTERY, PULPCORE, PYTHON_REDIS_LOCK, REDIS_PY, TASK
from benchmarks.rounds import Contestant
from django_task_locks import hold
from django_task_locks.ids import uuid7
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant, Claimed, Grant, Idle, Lanes

OWNER = "benchmark@1"
TTL = 30


@dataclass(frozen=True, slots=True)
class Case:
    """What is locked together."""

    name: str
    exclusive: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def case_of(exclusive: int, shared: int, name: str = "") -> Case:
    return Case(
        name or f"{exclusive:,} exclusive" + (f" + {shared:,} shared" if shared else ""),
        tuple(f"repository:{number:04}" for number in range(exclusive)),
        tuple(f"remote:{number:04}" for number in range(shared)),
    )


class Refused(Exception):
    """A lock that is free was not given, or not taken back: there is nothing to measure."""


def ids(count: int) -> list[str]:
    return [str(uuid7()) for _ in range(count)]


def floor(client: Redis) -> Contestant:
    sha = client.script_load("return 1")

    def prepare(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                client.evalsha(sha, 0)
                client.evalsha(sha, 0)

        return run

    return Contestant(FLOOR, prepare)


def ours(name: str, manager: LockManager, case: Case) -> Contestant:
    exclusive, shared = case.exclusive, case.shared
    claimant = Claimant(owner=OWNER, ttl=TTL)  # a process is the same one all its life

    def prepare(count: int) -> Callable[[], None]:
        fresh = ids(count)

        def run() -> None:
            for id in fresh:
                grant = manager.request(
                    LockRequest(id=id, exclusive=exclusive, shared=shared, claimant=claimant)
                )
                if not isinstance(grant, Grant):
                    raise Refused(f"{name}: {grant}")
                ended = manager.release(id, owner=OWNER, token=grant.token)
                if not ended.is_done:
                    raise Refused(f"{name}: {ended}")

        return run

    return Contestant(name, prepare)


def tasks(manager: LockManager, case: Case) -> Contestant:
    """As a busy worker does it: a task is requested; an executor ends the one before it, which has
    other resources, and takes this one, in one step.
    """
    executor = _Executor(manager)
    resources = [
        (
            tuple(f"{turn}:{name}" for name in case.exclusive),
            tuple(f"{turn}:{name}" for name in case.shared),
        )
        for turn in ("even", "odd")
    ]

    def prepare(count: int) -> Callable[[], None]:
        first, *fresh = ids(1 + count)
        executor.start(LockRequest(id=first, exclusive=("first",)))

        def run() -> None:
            for turn, id in enumerate(fresh):
                exclusive, shared = resources[turn % 2]
                grant = manager.request(LockRequest(id=id, exclusive=exclusive, shared=shared))
                if not isinstance(grant, Grant):
                    raise Refused(f"{TASK}: {grant}")
                executor.advance()

        return run

    return Contestant(TASK, prepare)


class _Executor:
    def __init__(self, manager: LockManager) -> None:
        self._manager = manager
        self._claimant = Claimant(owner="worker@1", slot="0.1", ttl=TTL)
        self._version = ""
        self._lanes: Sequence[str] = ()
        self._id, self._token = "", 0

    def start(self, request: LockRequest) -> None:
        """Takes this one and gives back what it had, or what it had for another case."""
        self._manager.release_owner(self._claimant.owner)
        self._manager.request(request)
        reply = self._manager.claim(self._claimant, self._version, self._lanes)
        if isinstance(reply, Lanes):
            self._version, self._lanes = reply.version, tuple(reply.lanes)
            reply = self._manager.claim(self._claimant, self._version, self._lanes)
        self._take(reply)

    def advance(self) -> None:
        self._take(
            self._manager.advance(
                self._claimant, self._version, self._lanes, id=self._id, token=self._token
            )
        )

    def _take(self, reply: Claimed | Idle | Lanes) -> None:
        if not isinstance(reply, Claimed):
            raise Refused(f"{TASK}: {reply}")
        self._id, self._token = reply.id, reply.token


def holding(case: Case) -> Contestant:
    exclusive, shared = case.exclusive, case.shared

    def prepare(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                with hold(exclusive=exclusive, shared=shared):
                    pass

        return run

    return Contestant(HOLD, prepare)


# -- others ----------------------------------------------------------------------------------------

# Imported when they are measured: they are there in the environment that is made for them alone.


def others(peers: Sequence[str], client: Redis, case: Case) -> list[Contestant]:
    """Those of the peers that can do what the case asks for."""
    found = []
    if (len(case.exclusive), len(case.shared)) == (1, 0):
        for peer, (name, new_lock) in _SINGLE_LOCKS.items():
            if peer in peers:
                found.append(_single_lock(name, new_lock(client), case.exclusive[0]))
    if "pulpcore" in peers:
        found.append(pulpcore(client, case))
    return found


def _redis_py(client: Redis) -> Callable[[str], Any]:
    lock = import_module("redis.lock").Lock
    return lambda name: lock(client, name)


def _python_redis_lock(client: Redis) -> Callable[[str], Any]:
    lock = import_module("redis_lock").Lock
    return lambda name: lock(client, name)


def _pottery(client: Redis) -> Callable[[str], Any]:
    lock = import_module("pottery").Redlock
    return lambda name: lock(key=name, masters={client})


_SINGLE_LOCKS: dict[str, tuple[str, Callable[[Redis], Callable[[str], Any]]]] = {
    "redis-py": (REDIS_PY, _redis_py),
    "python-redis-lock": (PYTHON_REDIS_LOCK, _python_redis_lock),
    "pottery": (POTTERY, _pottery),
}


def _single_lock(name: str, new_lock: Callable[[str], Any], resource: str) -> Contestant:
    """A lock object for each pair, with the options that it has by default."""

    def prepare(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                lock = new_lock(resource)
                if not lock.acquire():
                    raise Refused(name)
                lock.release()

        return run

    return Contestant(name, prepare)


def pulpcore(client: Redis, case: Case) -> Contestant:
    """With the lock of the task itself, which its workers take by the same call."""
    locks = import_module("pulpcore.tasking.redis_locks")
    exclusive, shared = list(case.exclusive), list(case.shared)

    def prepare(count: int) -> Callable[[], None]:
        fresh = ids(count)

        def run() -> None:
            for id in fresh:
                task_lock = locks.get_task_lock_key(id)
                blocked = locks.acquire_locks(client, OWNER, task_lock, exclusive, shared)
                if blocked:
                    raise Refused(f"pulpcore: {blocked}")
                locks.release_resource_locks(client, OWNER, task_lock, exclusive, shared)

        return run

    return Contestant(PULPCORE, prepare)
