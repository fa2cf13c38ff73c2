"""The calls of a rebuild, and those by which a process has its own requests looked after."""

from collections.abc import Sequence

from django_task_locks.locks.protocol import Argument, Call, milliseconds, ttl_text
from django_task_locks.locks.requests import Lane, LockRequest, Restored


def look() -> Call[tuple[str, str]]:
    """The epoch of the data, and the run id of the server."""
    return Call("look", [], lambda reply: (reply[1], reply[2]))


def begin_rebuild(number: int, closed: str) -> Call[bool]:
    return Call("begin_rebuild", [str(number), closed], lambda reply: reply[0] == "begun")


def restore(request: LockRequest, lane: Lane | None, token: int | None, arrival: int) -> Call[str]:
    """During a rebuild. Why it could not be restored; "" if it is there."""
    return Call(
        "restore",
        _restore_arguments(request, lane, token, arrival, None),
        lambda reply: _conflict(reply) if reply[0] == "conflict" else "",
    )


def restore_held(
    request: LockRequest, lane: Lane | None, token: int, arrival: int, until: int
) -> Call[Restored]:
    """In an open epoch, until that time in ms by the server's clock."""
    return Call(
        "restore",
        _restore_arguments(request, lane, token, arrival, until),
        lambda reply: Restored(reply[0], _conflict(reply) if reply[0] == "conflict" else ""),
    )


def _restore_arguments(
    request: LockRequest, lane: Lane | None, token: int | None, arrival: int, until: int | None
) -> list[Argument]:
    claimant = request.claimant
    return [
        request.id,
        "waiting" if token is None else "held",
        request.owner,
        claimant.slot if claimant else "",
        lane.name if lane else "",
        lane.description if lane else "",
        ttl_text(claimant.ttl) if claimant else "",
        "" if token is None else str(token),
        str(arrival),
        str(request.priority),
        request.label,
        milliseconds(request.run_after),
        "" if until is None else str(until),
        str(len(request.exclusive)),
        *request.exclusive,
        *request.shared,
    ]


def _conflict(reply: list[str]) -> str:
    return f"{reply[1]} of {reply[2] or 'an unknown process'} excludes it"


def verify(owner: str, held: Sequence[tuple[str, int]]) -> Call[tuple[int, list[str]]]:
    """The server's time in ms, and the ids of those that are not whole."""
    pairs = [part for id, token in held for part in (id, str(token))]
    return Call("verify", [owner, *pairs], lambda reply: (int(reply[1]), reply[2:]))


def sweep(owner: str, ids: Sequence[str]) -> Call[int]:
    return Call("sweep", [owner, *ids], lambda reply: int(reply[1]))


def open_epoch(epoch: str, floor: int) -> Call[bool]:
    """Whether there is more to settle."""
    return Call("open_epoch", [epoch, str(floor)], lambda reply: reply[1] == "1")
