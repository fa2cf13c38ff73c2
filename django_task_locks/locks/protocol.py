"""Arguments and replies of every operation, built and read in one place for sync and async."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from django_task_locks.exceptions import (
    EpochLost,
    InvalidTask,
    OwnerClosed,
    StaleSlot,
    TaskLocksError,
)
from django_task_locks.locks.failures import raise_foreign
from django_task_locks.locks.requests import (
    Blocked,
    Blocker,
    Claimant,
    Claimed,
    Due,
    Ended,
    Grant,
    Holding,
    Idle,
    Lane,
    Lanes,
    LockRequest,
    RequestInfo,
    ResourceInfo,
    Waiting,
)

R = TypeVar("R")

# Text only: hiredis crashes where a signal handler raises while it makes text of a number.
Argument = str | bytes
MAX_REPORTED = 10
_CLOSED_KEPT_MS = str(30 * 24 * 3600 * 1000)


class EpochSource(Protocol):
    """Who knows which state of the server's data is the right one; see `rebuild`.

    value             what must stand under the key `epoch` for an operation to be carried out
    is_out_of_date    told that the server has something else than this value: whether the value
                      was an old one, and the operation may be tried again with the present one
    avalue, ais_...   the same without blocking the event loop
    """

    def value(self) -> str: ...

    def is_out_of_date(self, value: str) -> bool: ...

    async def avalue(self) -> str: ...

    async def ais_out_of_date(self, value: str) -> bool: ...


class Call(NamedTuple, Generic[R]):
    """One script call: its file's name, its ARGV, and the reader of its reply."""

    script: str
    arguments: Sequence[Argument]
    parse: Callable[[list[str]], R]


def text(value: Any) -> str:
    """A reply's element as text, whether or not the client decodes responses."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def read_reply(call: Call[R], reply: Sequence[Any]) -> R:
    """The parsed reply; raises what the script refused with."""
    words = [value if type(value) is str else text(value) for value in reply]
    if words[0] in _REFUSALS:
        _raise_refusal(call, *words)
    return call.parse(words)


def read_outcomes(
    calls: Iterable[Call[R]], replies: Sequence[Sequence[Any]]
) -> list[R | TaskLocksError]:
    """As `read_reply` for each, with what it raises in its place; but EpochLost, which concerns all
    of them, is raised.
    """
    outcomes: list[R | TaskLocksError] = []
    for call, reply in zip(calls, replies, strict=True):
        try:
            outcomes.append(read_reply(call, reply))
        except EpochLost:
            raise
        except TaskLocksError as error:
            outcomes.append(error)
    return outcomes


_REFUSALS = frozenset({"foreign", "epoch", "closed", "stale_slot"})


def _raise_refusal(call: Call[Any], word: str, *rest: str) -> NoReturn:
    if word == "foreign":
        raise_foreign(repr(rest[0]), call.script)
    if word == "epoch":
        raise EpochLost(
            f"{call.script}: the locks in Redis are not those of the present epoch (found: "
            f"{rest[0]}), so it was refused and did nothing; they are rebuilt by a process with a "
            "heartbeat, or by manage.py cleanup_locks"
        )
    if word == "closed":
        raise OwnerClosed(
            f"owner {rest[0]!r} was declared missing; {call.script} was refused and did nothing"
        )
    raise StaleSlot(
        f"slot {rest[0]} was given to a successor; {call.script} was refused and did nothing"
    )


@lru_cache(maxsize=64)
def ttl_text(seconds: float) -> str:
    """In one spelling: the request script compares it."""
    return str(float(seconds))


def request(request: LockRequest) -> Call[Grant | Waiting | Due]:
    return Call(
        "request",
        _request_arguments(request, "wait"),
        lambda reply: _present_state(request, reply),
    )


def try_request(request: LockRequest) -> Call[Grant | Waiting | Due | Blocked]:
    if request.run_after is not None:
        raise InvalidTask(f"run_after {request.run_after!r}: what is tried is tried now: None")

    def parse(reply: list[str]) -> Grant | Waiting | Due | Blocked:
        if reply[0] != "blocked":
            return _present_state(request, reply)
        return Blocked(request.id, _blockers(reply[1:]))

    return Call("request", _request_arguments(request, "try"), parse)


def _request_arguments(request: LockRequest, mode: str) -> list[Argument]:
    claimant, lane = request.claimant, request.lane
    return [
        request.id,
        mode,
        request.owner,
        claimant.slot if claimant else "",
        "" if claimant else lane.name,
        ttl_text(claimant.ttl) if claimant else lane.description,
        str(request.priority),
        request.label,
        milliseconds(request.run_after),
        str(len(request.exclusive)),
        *request.exclusive,
        *request.shared,
    ]


_GIVEN = frozenset({"held", "granted"})


def milliseconds(moment: float | None) -> Argument:
    """A Unix time, or "" for none; rather late than early."""
    return "" if moment is None else str(math.ceil(moment * 1000))


def _present_state(request: LockRequest, reply: list[str]) -> Grant | Waiting | Due:
    state, token = reply[0], reply[1]
    if state in _GIVEN:
        return Grant(request.id, int(token) if token else None)
    if state == "waiting":
        return Waiting(request.id)
    if state == "due":
        return Due(request.id)
    raise InvalidTask(
        f"request id {request.id!r} is that of {token!r}: take a new one for each hold"
    )


_ENDED = Ended("done")  # and nobody waited for it, as mostly


def _ended(reply: list[str]) -> Ended:
    if reply == ["released", "0"]:
        return _ENDED
    if reply[0] in ("unknown", "refused"):
        return Ended(reply[0])
    return Ended("done", tuple(reply[2:]), has_more=reply[1] == "1")


def release(id: str, owner: str, token: int | None) -> Call[Ended]:
    return Call("release", [id, owner, "" if token is None else str(token)], _ended)


def requeue(id: str, owner: str, token: int | None, run_after: float | None) -> Call[Ended]:
    arguments = [id, owner, "" if token is None else str(token), milliseconds(run_after)]
    return Call("requeue", arguments, _ended)


def _claim_reply(reply: list[str]) -> tuple[Claimed | Idle | Lanes, bool]:
    if reply[0] == "claimed":
        return Claimed(reply[1], int(reply[2])), reply[3] == "1"
    if reply[0] == "empty":
        return Idle(_seconds(reply[1])), reply[2] == "1"
    listed = dict(zip(reply[2::2], reply[3::2], strict=True))
    lanes = {name: Lane.from_description(value) for name, value in listed.items() if name}
    return Lanes(reply[1], lanes), False  # a claim follows


def claim(
    claimant: Claimant, version: str, lanes: Iterable[str]
) -> Call[tuple[Claimed | Idle | Lanes, bool]]:
    """The reply, and whether there is more to settle."""
    return Call(
        "claim",
        [claimant.owner, claimant.slot, ttl_text(claimant.ttl), version, *lanes],
        _claim_reply,
    )


def advance(
    claimant: Claimant, version: str, lanes: Iterable[str], id: str, token: int
) -> Call[tuple[Claimed | Idle | Lanes, bool]]:
    """As `claim`."""
    return Call(
        "advance",
        [claimant.owner, claimant.slot, ttl_text(claimant.ttl), version, id, str(token), *lanes],
        _claim_reply,
    )


def settle() -> Call[Ended]:
    return Call("settle", [], _ended)


def release_owner(owner: str, most: int) -> Call[tuple[int, int, bool]]:
    """Number ended, number left, whether there is more to settle."""
    return Call(
        "release_owner",
        [owner, str(most)],
        lambda reply: (int(reply[1]), int(reply[2]), reply[3] == "1"),
    )


def retire(claimant: Claimant) -> Call[tuple[str, ...]]:
    return Call("retire", [claimant.owner, claimant.slot], lambda reply: tuple(reply[1:]))


def beat(owner: str, ttl: float) -> Call[None]:
    return Call("beat", [owner, ttl_text(ttl)], lambda reply: None)


def extend_lead(job: str, leader: str, seconds: float) -> Call[bool]:
    ms = str(max(0, int(seconds * 1000)))
    return Call("extend_lead", [job, leader, ms], lambda reply: reply[0] == "extended")


def close_owner(owner: str) -> Call[tuple[str, ...]]:
    return Call("close_owner", [owner, _CLOSED_KEPT_MS], lambda reply: tuple(reply[1:]))


def forget_owner(owner: str) -> Call[int]:
    return Call(
        "forget_owner", [owner], lambda reply: int(reply[1]) if reply[0] == "holding" else 0
    )


def forget_entry(id: str, owner: str) -> Call[bool]:
    return Call("forget_entry", [id, owner], lambda reply: reply[0] == "forgotten")


def watch(id: str) -> Call[bool]:
    return Call("watch", [id], lambda reply: reply[0] == "watched")


def suspect(owner: str) -> Call[tuple[float, float | None]]:
    return Call(
        "suspect",
        [owner],
        lambda reply: (int(reply[1]) / 1000, abs(float(reply[2])) if reply[2] else None),
    )


def scan(what: str, cursor: str, count: int) -> Call[tuple[str, list[tuple[str, str, str]]]]:
    """Where to go on, and what was found."""

    def parse(reply: list[str]) -> tuple[str, list[tuple[str, str, str]]]:
        return reply[1], list(zip(reply[2::3], reply[3::3], reply[4::3], strict=True))

    return Call("scan", [what, cursor, str(count)], parse)


def free(resource: str, id: str) -> Call[Ended]:
    return Call("free", [resource, id], _ended)


def _seconds(milliseconds: str) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None


def _blockers(values: list[str]) -> tuple[Blocker, ...]:
    return tuple(
        Blocker(resource, mode, id, state, owner, _seconds(since), label)
        for resource, mode, id, state, owner, since, label in (
            values[first : first + 7] for first in range(0, len(values), 7)
        )
    )


def inspect_request(id: str) -> Call[RequestInfo | None]:
    def parse(reply: list[str]) -> RequestInfo | None:
        if reply[0] == "unknown":
            return None
        state, owner, queue, lane, slot, score, token, since, label = reply[1:10]
        exclusive, shared, due = reply[10:13]
        return RequestInfo(
            id=id,
            state=state,
            owner=owner,
            queue=queue,
            lane=lane,
            slot=slot,
            score=int(score),
            token=int(token) if token else None,
            since=int(since) / 1000,
            label=label,
            exclusive=tuple(json.loads(exclusive or "[]")),
            shared=tuple(json.loads(shared or "[]")),
            run_after=_seconds(due),
            blockers=_blockers(reply[13:]),
        )

    return Call("inspect", [id, str(MAX_REPORTED)], parse)


def inspect_resource(name: str) -> Call[ResourceInfo]:
    def parse(reply: list[str]) -> ResourceInfo:
        mode, holders, exclusive_waiters, shared_waiters = reply[1:5]
        rest = reply[5:]
        found: dict[str, list[Holding]] = {"holder": [], "waiter": []}
        for first in range(0, len(rest), 8):
            kind, its_mode, id, state, owner, since, label, score = rest[first : first + 8]
            found[kind].append(
                Holding(
                    id,
                    its_mode,
                    state,
                    owner,
                    _seconds(since),
                    label,
                    int(score) if score else None,
                )
            )
        return ResourceInfo(
            name=name,
            mode=mode,
            holder_count=int(holders),
            exclusive_waiter_count=int(exclusive_waiters),
            shared_waiter_count=int(shared_waiters),
            holders=tuple(found["holder"]),
            waiters=tuple(sorted(found["waiter"], key=lambda waiter: waiter.score or 0)),
        )

    return Call("inspect_resource", [name, str(MAX_REPORTED)], parse)
