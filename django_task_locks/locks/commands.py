"""Plain commands: what is sent and how the replies are read, for sync and async."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from django_task_locks.locks.keys import Keys
from django_task_locks.locks.protocol import Argument, text
from django_task_locks.locks.requests import Grant, Lane

R = TypeVar("R")

_CONTROL_KEPT_SECONDS = 3600
_CONTROL_MOST = 10_000
_SHORTEST_WAIT = 0.01  # 0 would wait for ever, and Redis 6.2 takes 0.001 for 0


class Commands(NamedTuple, Generic[R]):
    """Plain commands that go together in one round trip, and the reader of their replies."""

    operation: str
    keys: Sequence[str]
    commands: Sequence[tuple[Argument, ...]]
    parse: Callable[[list[Any]], R]


def _mapping(reply: Any) -> dict[str, str]:
    """A hash, which comes as a map by RESP3 or of a client, else as a flat list."""
    pairs = reply.items() if isinstance(reply, dict) else zip(*[iter(reply)] * 2, strict=True)
    return {text(name): text(value) for name, value in pairs}


def wait_for_ready(keys: Keys, lanes: Iterable[str], timeout: float) -> Commands[bool]:
    wakes = (keys.wake(""), *(keys.wake(lane) for lane in lanes))
    return Commands(
        "wait_for_ready",
        wakes,
        [("BZPOPMIN", *wakes, str(max(timeout, _SHORTEST_WAIT)))],
        lambda replies: bool(replies[0]),
    )


def wait_for_grant(keys: Keys, id: str, timeout: float) -> Commands[Grant | None]:
    return Commands(
        "wait_for_grant",
        [keys.grant(id)],
        [("BLPOP", keys.grant(id), str(max(timeout, _SHORTEST_WAIT)))],
        lambda replies: Grant(id, int(replies[0][1])) if replies[0] else None,
    )


def wait_for_end(keys: Keys, id: str, timeout: float) -> Commands[bool]:
    key = keys.ended(id)
    return Commands(
        "wait_for_end",
        [key],
        [("BLMOVE", key, key, "LEFT", "RIGHT", str(max(timeout, _SHORTEST_WAIT)))],
        lambda replies: bool(replies[0]),
    )


def owners(keys: Keys) -> Commands[dict[str, float]]:
    return Commands(
        "owners",
        [keys.owners],
        [("HGETALL", keys.owners)],
        lambda replies: {owner: abs(float(ttl)) for owner, ttl in _mapping(replies[0]).items()},
    )


def lanes(keys: Keys) -> Commands[dict[str, Lane]]:
    return Commands(
        "lanes",
        [keys.lanes],
        [("HGETALL", keys.lanes)],
        lambda replies: {
            name: Lane.from_description(description)
            for name, description in _mapping(replies[0]).items()
            if name
        },
    )


def registries(keys: Keys, owners: Sequence[str]) -> Commands[dict[str, set[str]]]:
    names = [keys.owner(owner) for owner in owners]
    return Commands(
        "registries",
        names,
        [("SMEMBERS", name) for name in names],
        lambda replies: {
            owner: {text(id) for id in ids} for owner, ids in zip(owners, replies, strict=True)
        },
    )


def slots(keys: Keys, owner: str) -> Commands[dict[str, str]]:
    return Commands(
        "slots",
        [keys.slot(owner)],
        [("HGETALL", keys.slot(owner))],
        lambda replies: {slot: id for slot, id in _mapping(replies[0]).items() if slot.isdecimal()},
    )


def suspected(keys: Keys, owner: str) -> Commands[float]:
    def parse(replies: list[Any]) -> float:
        (seconds, microseconds), since = replies
        if since is None:
            return 0.0
        return max(0.0, int(seconds) + int(microseconds) / 1e6 - float(since) / 1000)

    return Commands(
        "suspected",
        [keys.suspects],
        [("TIME",), ("ZSCORE", keys.suspects, owner)],
        parse,
    )


def lead(keys: Keys, job: str, candidate: str, seconds: float) -> Commands[bool]:
    return Commands(
        "lead",
        [keys.leader(job)],
        [("SET", keys.leader(job), candidate, "NX", "PX", str(max(1, int(seconds * 1000))))],
        lambda replies: bool(replies[0]),
    )


def lead_ends_in(keys: Keys, job: str) -> Commands[float]:
    return Commands(
        "lead_ends_in",
        [keys.leader(job)],
        [("PTTL", keys.leader(job))],
        lambda replies: max(0, replies[0]) / 1000,
    )


def end_lead(keys: Keys, job: str) -> Commands[None]:
    return Commands(
        "end_lead", [keys.leader(job)], [("DEL", keys.leader(job))], lambda replies: None
    )


def send(keys: Keys, owner: str, message: str) -> Commands[None]:
    key = keys.control(owner)
    return Commands(
        "send",
        [key],
        [
            ("RPUSH", key, message),
            ("LTRIM", key, str(-_CONTROL_MOST), "-1"),
            ("EXPIRE", key, str(_CONTROL_KEPT_SECONDS)),
        ],
        lambda replies: None,
    )


def known(keys: Keys, ids: Sequence[str]) -> Commands[set[str]]:
    return Commands(
        "known",
        [keys.request(id) for id in ids],
        [("EXISTS", keys.request(id)) for id in ids],
        lambda replies: {id for id, found in zip(ids, replies, strict=True) if found},
    )
