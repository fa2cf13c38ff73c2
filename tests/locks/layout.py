"""What the server must hold for a given model: the Redis model of the design, as a function."""

import json
from typing import Any

from django_task_locks.locks.keys import AWAITED, SOLE, Keys
from tests.locks.model import Model, Request
from tests.locks.snapshot import Value


def score(request: Request) -> int:
    return (100 - request.priority) * 2**43 + request.arrival


def _slot(slot: tuple[int, int] | None) -> str:
    return f"{slot[0]}.{slot[1]}" if slot else ""


def expected(model: Model, keys: Keys) -> dict[str, Value]:
    """Every key but the counters and the wake markers."""
    found: dict[str, Any] = {}
    for request in model.in_order("due", "waiting", "granted", "held"):
        fields = {
            "state": request.state,
            "score": str(score(request)),
            "owner": request.owner,
            "queue": "" if request.is_hold else request.queue,
            "lane": "" if request.is_hold else request.lane,
            "slot": _slot(request.slot),
            "label": request.label,
            "token": "" if request.token is None else str(request.token),
            "exclusive": sorted(request.exclusive),
            "shared": sorted(request.shared),
        }
        found[keys.request(request.id)] = {name: value for name, value in fields.items() if value}
        found.setdefault(keys.owner(request.owner), set()).add(request.id)
        if request.state == "due":
            found.setdefault(keys.due, {})[request.id] = request.due
        elif request.state == "waiting":
            for resource in request.exclusive:
                found.setdefault(keys.wait_exclusive(resource), {})[request.id] = score(request)
            for resource in request.exclusive | request.shared:
                found.setdefault(keys.wait(resource), {})[request.id] = score(request)
        else:
            for resource in request.exclusive:
                assert keys.lock(resource) not in found, "the model itself has two holders"
                found[keys.lock(resource)] = request.id
            for resource in request.shared:
                found.setdefault(keys.lock(resource), set()).add(request.id)
        if request.state == "granted":
            found.setdefault(keys.ready(request.lane), {})[request.id] = score(request)
        if request.state == "held" and request.was_handed_over and request.is_hold:
            found[keys.grant(request.id)] = [str(request.token)]
    for owner in {*model.slots, *model.generations}:
        fields = {str(number): id for number, id in model.slots.get(owner, {}).items()}
        for number, generation in model.generations.get(owner, {}).items():
            fields[f"generation:{number}"] = str(generation)
        if fields:
            found[keys.slot(owner)] = fields
    for owner, messages in model.messages.items():
        found[keys.control(owner)] = messages
    if model.owners:
        found[keys.owners] = {
            owner: f"-{float(ttl)}" if owner in model.closed else str(float(ttl))
            for owner, ttl in model.owners.items()
        }
    if model.lanes:
        found[keys.lanes] = {"": str(model.lanes_version), **model.lanes}
    if model.closed:
        found[keys.closed] = set(model.closed)
    if model.suspects:
        found[keys.suspects] = set(model.suspects)
    return found


def observed(snapshot: dict[str, Value], keys: Keys) -> dict[str, Value]:
    """The snapshot in the form of `expected`: without times, counters and wake markers."""
    found: dict[str, Any] = {}
    for key, value in without_marks(snapshot, keys).items():
        if key == keys.seq or key.startswith(keys.wake("")):
            continue
        if key.startswith(keys.request("")):
            fields = json.loads(str(value))
            assert isinstance(fields.pop("since"), int)
            found[key] = fields
        elif key in (keys.closed, keys.suspects):
            found[key] = set(value)
        else:
            found[key] = value
    return found


def without_marks(snapshot: dict[str, Value], keys: Keys) -> dict[str, Value]:
    """With the bare id of an exclusive holder as the value of a lock, or a set of shared ones."""

    def bare(key: str, value: Value) -> Value:
        if not key.startswith(keys.lock("")) or not isinstance(value, str):
            return value
        return {value[1:]} if value[0] == SOLE else value[1:]

    return {key: bare(key, value) for key, value in snapshot.items() if value != AWAITED}


def unmarked(snapshot: dict[str, Value], keys: Keys) -> set[str]:
    """The resources that somebody waits for and whose locks do not tell so, and the free ones whose
    locks tell so though nobody waits. None, if all is well.
    """
    waited = {key.removeprefix(keys.wait("")) for key in snapshot if key.startswith(keys.wait(""))}
    locks = {
        key.removeprefix(keys.lock("")): value
        for key, value in snapshot.items()
        if key.startswith(keys.lock(""))
    }
    marked = {
        name
        for name, value in locks.items()
        if isinstance(value, set) or str(value).startswith(AWAITED)
    }
    free = {name for name, value in locks.items() if value == AWAITED}
    return (waited - marked) | (free - waited)


def lit_lanes(snapshot: dict[str, Value], keys: Keys) -> set[str]:
    """The lanes with a wake marker, of which there is never more than one."""
    family = keys.wake("")
    lit = {
        key.removeprefix(family): value for key, value in snapshot.items() if key.startswith(family)
    }
    assert all(value == {"1": 0} for value in lit.values()), lit
    return set(lit)


def of_requests(snapshot: dict[str, Value], keys: Keys) -> dict[str, Value]:
    """What must stand beside the request hashes of a snapshot: their locks, places in the queues,
    registries, slots and ready entries. Bookkeeping and what only wakes are left out.
    """
    found: dict[str, Any] = {}
    for key, record in snapshot.items():
        if not key.startswith(keys.request("")) or not str(record).startswith("{"):
            continue
        id = key.removeprefix(keys.request(""))
        fields = json.loads(str(record))
        score = int(fields["score"])
        exclusive, shared = fields.get("exclusive", []), fields.get("shared", [])
        found[key] = record
        found.setdefault(keys.owner(fields["owner"]), set()).add(id)
        if fields["state"] == "due":
            if id in (due := snapshot.get(keys.due, {})) and isinstance(due, dict):
                found.setdefault(keys.due, {})[id] = due[id]  # the record does not say when
        elif fields["state"] == "waiting":
            for resource in exclusive:
                found.setdefault(keys.wait_exclusive(resource), {})[id] = score
            for resource in exclusive + shared:
                found.setdefault(keys.wait(resource), {})[id] = score
        else:
            for resource in exclusive:
                found[keys.lock(resource)] = id
            for resource in shared:
                found.setdefault(keys.lock(resource), set()).add(id)
        if fields["state"] == "granted":
            found.setdefault(keys.ready(fields["lane"]), {})[id] = score
        if fields["state"] == "held" and "lane" in fields:
            number = fields["slot"].partition(".")[0]
            found.setdefault(keys.slot(fields["owner"]), {})[number] = id
    return found
