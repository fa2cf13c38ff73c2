"""hold and ahold: the same locks around ordinary code, in any process."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from django_task_locks import own_requests, presence, releasing
from django_task_locks.conf import get_settings
from django_task_locks.connections import (
    get_async_lock_manager,
    get_lock_manager,
    get_waiting_lock_manager,
)
from django_task_locks.context import running_tasks
from django_task_locks.exceptions import (
    EpochLost,
    LockServiceUnavailable,
    LockTimeout,
    OwnerClosed,
    WouldDeadlock,
)
from django_task_locks.execution import ended
from django_task_locks.ids import uuid7
from django_task_locks.locks.requests import (
    Blocked,
    Blocker,
    Grant,
    LockRequest,
    RequestInfo,
    Waiting,
)
from django_task_locks.own_requests import OwnRequest
from django_task_locks.presence import Presence

_REBUILD_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Held:
    """Locks that this code holds.

    token      grows with every grant: whoever checks it can refuse a stale holder
    exclusive, the names, sorted; one that was asked for in both modes is exclusive
    shared
    """

    id: str
    token: int
    owner: str
    exclusive: tuple[str, ...]
    shared: tuple[str, ...]

    @property
    def resources(self) -> tuple[str, ...]:
        return self.exclusive + self.shared

    def is_held(self) -> bool:
        """Whether the lock manager says so now; False after the end, after this process was
        declared missing, or after `hold_lost`. Raises LockServiceUnavailable.
        """
        return self._is_that(get_lock_manager().inspect_request(self.id))

    async def ais_held(self) -> bool:
        """As `is_held`."""
        return self._is_that(await (await get_async_lock_manager()).inspect_request(self.id))

    def _is_that(self, info: RequestInfo | None) -> bool:
        if own_requests.is_lost(self.id):
            return False  # though a part of it may be there
        return info is not None and (info.owner, info.token) == (self.owner, self.token)


# What the present code holds already, outermost first. Code that it starts and waits for inherits
# it, and would wait for it as well.
_held: ContextVar[tuple[Held, ...]] = ContextVar("django_task_locks_held", default=())


@contextmanager
def hold(
    exclusive: Any = (),
    shared: Any = (),
    timeout: float | None = None,
    *,
    priority: int = 0,
    label: str = "",
) -> Iterator[Held]:
    """Holds all of the resources, or none, around a block of code.

    exclusive, shared  as in `dispatch`
    timeout            seconds to wait; 0 tries once, None waits as long as it takes
    priority           -100 to 100; a higher one goes first among those that wait
    label              tells operators what this is

    Inside a transaction the locks are released at its end, so that nobody reads what is not yet
    committed. Code that waits costs a connection to Redis and no polling.

    Raises LockTimeout (with `blockers`), WouldDeadlock where it would wait for what its caller
    holds, InvalidResource and InvalidTask for bad arguments, LockServiceUnavailable, OwnerClosed.
    """
    arguments = (exclusive, shared, timeout, priority, label)
    demand = _Demand(presence.present(), *arguments)
    try:
        try:
            held = _acquire(demand)
        except OwnerClosed:
            own_requests.forget(demand.request.id)
            if not presence.renounce(demand.present):
                raise
            demand = _Demand(presence.present(), *arguments)  # as who it is from now on
            held = _acquire(demand)
        _held.set((*_held.get(), held))
        yield held
    finally:
        # Whatever happened, a grant that nobody uses (any more) must not stay, nor a place in a
        # queue: so from the first moment on. First of all, since others wait for it.
        try:
            demand.end()
        finally:
            _held.set(demand.others(_held.get()))


@asynccontextmanager
async def ahold(
    exclusive: Any = (),
    shared: Any = (),
    timeout: float | None = None,
    *,
    priority: int = 0,
    label: str = "",
) -> AsyncIterator[Held]:
    """As `hold`, without blocking the event loop. Canceled at any point, it leaves nothing."""
    arguments = (exclusive, shared, timeout, priority, label)
    demand = _Demand(await sync_to_async(presence.present)(), *arguments)
    try:
        try:
            held = await _aacquire(demand)
        except OwnerClosed:
            own_requests.forget(demand.request.id)
            if not presence.renounce(demand.present):
                raise
            demand = _Demand(await sync_to_async(presence.present)(), *arguments)
            held = await _aacquire(demand)
        _held.set((*_held.get(), held))
        yield held
    finally:
        try:
            await _arelease(demand.release)
        finally:
            _held.set(demand.others(_held.get()))


class _Demand:
    """One request of this process for itself, with what is common to both ways of waiting."""

    def __init__(
        self,
        present: Presence,
        exclusive: Any,
        shared: Any,
        timeout: float | None,
        priority: int,
        label: str,
    ) -> None:
        check_timeout(timeout)
        self.present = present
        self.request = LockRequest(
            id=f"hold-{uuid7()}",
            exclusive=exclusive,
            shared=shared,
            priority=priority,
            claimant=present.claimant,
            label=label or f"hold by {present.status.name} (pid {present.status.pid})",
        )
        self.release = releasing.Release(self.request.id, owner=present.owner)
        self.is_granted = False
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._ancestors = _ancestors()
        self.own = OwnRequest(self.request, waits=not self.must_not_wait, made_at=time.time())
        self._refuse_own_conflict()

    def _refuse_own_conflict(self) -> None:
        if found := conflict_around(self.request.exclusive, self.request.shared):
            raise WouldDeadlock(
                f"{found}, around this code: it would wait for itself; take what both need in the "
                "outer one"
            )

    @property
    def must_not_wait(self) -> bool:
        """A demand that may not queue: it tries once."""
        return self._timeout == 0 or bool(self._ancestors and self._timeout is None)

    def next_wait(self) -> float:
        """Seconds to wait for a sign before asking again; 0 when the time is over."""
        longest = get_settings().heartbeat_interval
        if self._deadline is None:
            return longest
        return max(0.0, min(longest, self._deadline - time.monotonic()))

    def granted(self, outcome: Grant) -> Held:
        """Raises EpochLost for a grant that counts no more."""
        self.own.held = held = Held(
            self.request.id,
            outcome.token or 0,
            self.present.owner,
            self.request.exclusive,
            self.request.shared,
        )
        if not self.own.is_granted(outcome.token):
            raise EpochLost("the locks were lost while they were being taken")
        self.is_granted = True
        return held

    def pause(self, error: EpochLost) -> float:
        """Seconds to wait for the locks to be rebuilt; raises the error if there is no time."""
        seconds = min(_REBUILD_PAUSE, self.next_wait())
        if self.must_not_wait or not seconds:
            raise error
        return seconds

    def last_look(self, info: RequestInfo | None) -> Held:
        """When the time is over: it may just have been granted."""
        if info is not None and info.state == "held":
            return self.granted(Grant(info.id, info.token))
        raise self.refusal(info.blockers if info is not None else ())

    def others(self, held: tuple[Held, ...]) -> tuple[Held, ...]:
        return tuple(other for other in held if other.id != self.request.id)

    def end(self) -> None:
        """Releases what was granted or waits. Inside a transaction what was held stays so until its
        end.
        """
        # A database that this thread has not used may not even have its driver here.
        aliases = [
            connection.alias
            for connection in connections.all(initialized_only=True)
            if connection.in_atomic_block
        ]
        if aliases and self.is_granted:
            releasing.release_at_transaction_end(aliases, self.release)
        else:
            releasing.release(self.release)

    def refusal(self, blockers: tuple[Blocker, ...]) -> Exception:
        named = "; ".join(map(described, blockers)) or "unknown"
        if self._timeout is None:
            return WouldDeadlock(
                f"{self._ancestors[0][0]} is held around this code, which would have to wait for: "
                f"{named}. Two such holders can wait for each other: give a timeout, or take what "
                "both need in the outer one"
            )
        wanted = [
            f"{mode} {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            for mode, names in (
                ("exclusive", self.request.exclusive),
                ("shared", self.request.shared),
            )
            if names
        ]
        return LockTimeout(
            f"not granted within {self._timeout:g} s: {' and '.join(wanted)}. In the way: {named}",
            blockers,
        )


def check_timeout(timeout: float | None) -> None:
    """Raises ValueError unless it is seconds from 0, or None."""
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):
        raise ValueError(f"timeout {timeout!r}: seconds from 0, or None to wait, are accepted")


def conflict_around(exclusive: Iterable[str], shared: Iterable[str]) -> str:
    """What is held around this code that a request for these would have to wait for; "" if it is
    nothing.
    """
    for what, held_exclusive, held_shared in _ancestors():
        conflicts = (
            {*exclusive} & {*held_exclusive, *held_shared} or {*shared} & {*held_exclusive}
        )  # fmt: skip
        if conflicts:
            return f"{sorted(conflicts)} is held by {what}"
    return ""


def _ancestors() -> list[tuple[str, Iterable[str], Iterable[str]]]:
    found: list[tuple[str, Iterable[str], Iterable[str]]] = [
        (f"hold {held.id}", held.exclusive, held.shared) for held in _held.get()
    ]
    found += [
        (f"task {task.pk}", task.exclusive, task.shared)
        for task in running_tasks()
        if task.exclusive + task.shared
    ]
    return found


def described(blocker: Blocker) -> str:
    """A blocker in one line."""
    since = ""
    if blocker.since is not None:
        since = f" since {datetime.fromtimestamp(blocker.since, UTC).isoformat(timespec='seconds')}"
    state, who = blocker.state or "taken", blocker.label or blocker.id
    return (
        f"{blocker.resource!r} is {state} ({blocker.mode}) by {who} "
        f"[{blocker.id}, {blocker.owner}]{since}"
    )


def _acquire(demand: _Demand) -> Held:
    own_requests.add(demand.own)
    while True:
        try:
            return _ask(demand)
        except EpochLost as error:
            time.sleep(demand.pause(error))


def _ask(demand: _Demand) -> Held:
    locks = get_waiting_lock_manager()
    ask = locks.try_request if demand.must_not_wait else locks.request
    demand.own.sending()
    outcome = ask(demand.request)
    while isinstance(outcome, Waiting) and (seconds := demand.next_wait()):
        granted = locks.wait_for_grant(demand.request.id, seconds)
        outcome = granted or locks.request(demand.request)
    if isinstance(outcome, Grant):
        return demand.granted(outcome)
    if isinstance(outcome, Blocked):
        raise demand.refusal(outcome.blockers)
    return demand.last_look(locks.inspect_request(demand.request.id))


async def _aacquire(demand: _Demand) -> Held:
    own_requests.add(demand.own)
    while True:
        try:
            return await _aask(demand)
        except EpochLost as error:
            await asyncio.sleep(demand.pause(error))


async def _aask(demand: _Demand) -> Held:
    locks = await get_async_lock_manager()
    ask = locks.try_request if demand.must_not_wait else locks.request
    await demand.own.asending()
    outcome = await ask(demand.request)
    while isinstance(outcome, Waiting) and (seconds := demand.next_wait()):
        granted = await locks.wait_for_grant(demand.request.id, seconds)
        outcome = granted or await locks.request(demand.request)
    if isinstance(outcome, Grant):
        return demand.granted(outcome)
    if isinstance(outcome, Blocked):
        raise demand.refusal(outcome.blockers)
    return demand.last_look(await locks.inspect_request(demand.request.id))


async def _arelease(release: releasing.Release) -> None:
    """Releases even if the caller is canceled meanwhile; what cannot be sent is sent later."""

    held = own_requests.forget(release.id)

    async def send() -> None:
        try:
            locks = await get_async_lock_manager()
            ended = await locks.release(release.id, owner=release.owner, token=release.token)
            if ended.status == "unknown" and held is not None:
                await sync_to_async(releasing.free_what_names)(held)
        except LockServiceUnavailable:
            releasing.postpone(release)

    sending = asyncio.ensure_future(send())
    was_canceled = await ended(sending)
    sending.result()
    if was_canceled:
        raise asyncio.CancelledError
