"""The values that go into the lock manager and come out of it; all frozen and validated."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_task_locks.exceptions import InvalidResource, InvalidTask
from django_task_locks.locks.keys import QUEUE_OWNER, queue_owner
from django_task_locks.locks.resources import normalized

_QUEUE = re.compile(r"\S{1,100}")
_VERSION = re.compile(r"[^\s=]{1,100}")
_SLOT = re.compile(r"[0-9]{1,6}\.[0-9]{1,15}")
END_OF_TIME = 253_402_300_800  # Unix time: the year 9999 is over
MIN_PRIORITY, MAX_PRIORITY = -100, 100


def validated_queue(queue: object) -> str:
    """Returns the queue's name; raises InvalidTask unless it is text of 1 to 100 characters."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue) or not queue.isprintable():
        raise InvalidTask(
            f"queue {queue!r}: text of 1 to 100 printable characters without white space is "
            "accepted"
        )
    return str(queue)


def validated_priority(priority: object) -> int:
    """Returns the priority; raises InvalidTask unless it is a whole number from -100 to 100."""
    if type(priority) is int and MIN_PRIORITY <= priority <= MAX_PRIORITY:
        return priority
    if (
        not isinstance(priority, int)
        or isinstance(priority, bool)
        or not MIN_PRIORITY <= priority <= MAX_PRIORITY
    ):
        raise InvalidTask(
            f"priority {priority!r}: a whole number from {MIN_PRIORITY} to {MAX_PRIORITY} is "
            "accepted, where a higher one goes first"
        )
    return int(priority)


def validated_versions(versions: object) -> dict[str, str]:
    """Returns the versions that a task needs, by name; raises InvalidTask unless they are texts of
    1 to 100 printable characters.
    """
    if not isinstance(versions, Mapping) or not all(
        isinstance(text, str) and _VERSION.fullmatch(text) and text.isprintable()
        for item in versions.items()
        for text in item
    ):
        raise InvalidTask(
            f"versions {versions!r}: a dict of names to versions is accepted, both text of 1 to "
            "100 printable characters without white space or '=', as in {'app': '2'}"
        )
    return dict(versions)


def validated_label(label: object) -> str:
    """Returns the label; raises InvalidTask unless it is text that can be encoded in UTF-8."""
    if isinstance(label, str) and label.encode(errors="ignore").decode() == label:
        return str(label)
    raise InvalidTask(f"label {label!r}: text that can be encoded in UTF-8 is accepted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A queue plus the versions that its tasks need: a worker listens to what it can run."""

    queue: str = "default"
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = field(init=False, compare=False)
    description: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        validated_queue(self.queue)
        versions = json.dumps(dict(self.versions), sort_keys=True)
        queue = json.dumps(self.queue)
        object.__setattr__(
            self, "name", f"{self.queue} {versions}" if self.versions else self.queue
        )
        object.__setattr__(self, "description", f'{{"queue": {queue}, "versions": {versions}}}')

    def __hash__(self) -> int:
        return hash(self.name)  # versions may be a dict

    @classmethod
    def from_description(cls, description: str) -> "Lane":
        return cls(**json.loads(description))


_DEFAULT_LANE = Lane()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A process as the lock manager knows it: who holds a request from its grant on."""

    owner: str
    ttl: float
    slot: str = ""

    def __post_init__(self) -> None:
        if not self.owner or self.owner.startswith(QUEUE_OWNER):
            raise ValueError(f"owner {self.owner!r}: a process is named <name>@<id>")
        if not self.ttl > 0:
            raise ValueError(f"ttl {self.ttl!r}: seconds above 0 are accepted")
        if self.slot and not _SLOT.fullmatch(self.slot):
            raise ValueError(f"slot {self.slot!r}: number.generation is accepted, as in 0.1")


class _Demand(NamedTuple):
    id: str
    exclusive: tuple[str, ...]
    shared: tuple[str, ...]
    priority: int
    lane: Lane
    claimant: Claimant | None
    label: str
    run_after: float | None


class LockRequest(_Demand):
    """One demand for all its resources at once.

    id          the task's id; the same id is the same request, however often it is sent
    exclusive,  names, model instances or lists of them; kept as sorted names without duplicates,
    shared      where a name in both modes is exclusive
    lane        where a worker finds it when it is granted
    claimant    the process that holds it from its grant on; None for a task that a worker claims
    label       for operators only
    run_after   Unix time, by the server's clock, before which the request of a task takes no place
                in any queue; None for at once
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        id: str,
        exclusive: tuple[Any, ...] = (),
        shared: tuple[Any, ...] = (),
        priority: int = 0,
        lane: Lane = _DEFAULT_LANE,
        claimant: Claimant | None = None,
        label: str = "",
        run_after: float | None = None,
    ) -> "LockRequest":
        if not id:
            raise InvalidResource("request id '': the task's id is accepted")
        validated_priority(priority)
        if label:
            validated_label(label)
        if run_after is not None:
            _check_run_after(run_after, claimant)
        exclusive, shared = normalized(exclusive, shared)
        # by itself, without the function that a NamedTuple has in between
        values = (id, exclusive, shared, priority, lane, claimant, label, run_after)
        return tuple.__new__(cls, values)

    def __reduce__(self) -> Any:  # what a NamedTuple has for it gives values without names
        return self._make, (tuple(self),)

    @property
    def owner(self) -> str:
        return self.claimant.owner if self.claimant else queue_owner(self.lane.queue)


def _check_run_after(moment: float, claimant: Claimant | None) -> None:
    if claimant is not None:
        raise InvalidTask(f"run_after {moment!r}: a process takes its locks at once: None")
    if not 0 <= moment < END_OF_TIME:
        raise InvalidTask(f"run_after {moment!r}: a Unix time from 0 to the year 9999, or None")


@dataclass(frozen=True, slots=True)
class Blocker:
    """Who is in the way of a request on one resource: a holder, or a waiter that came before.

    mode is "exclusive", "shared", or "foreign" where the key holds a value that is not ours; state,
    owner, since (a Unix time) and label are those of the request in the way.
    """

    resource: str
    mode: str
    id: str
    state: str = ""
    owner: str = ""
    since: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """All resources are given. The token is None until a process has claimed the request."""

    id: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request is queued; the release that makes it grantable hands over to it."""

    id: str


@dataclass(frozen=True, slots=True)
class Due:
    """The request takes no place in any queue before its time; then it does as if it were new."""

    id: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing was taken and nothing is queued."""

    id: str
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A slot holds this request now."""

    id: str
    token: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing is ready in these lanes.

    next_due_in  seconds until the next request is due, in whatever lane; claim again then. None
                 without one
    """

    next_due_in: float | None = None


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes have changed: choose again, and claim with this version."""

    version: str
    lanes: Mapping[str, Lane]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a release or requeue found.

    status   "done"; "unknown": no such request (any more); "refused": another owner or token has
             it; nothing changed in either case
    granted   ids of the waiters that were granted by it, in order
    has_more  whether there are more to examine than one call may
    """

    status: str
    granted: tuple[str, ...] = ()
    has_more: bool = False

    @property
    def is_done(self) -> bool:
        return self.status == "done"


@dataclass(frozen=True, slots=True)
class Restored:
    """What came of restoring a request that its process holds.

    status  "restored"; "conflict": another one has what it needs; "ended": it is not its process's
            any more; "late": the call came after its time
    reason  of a conflict, in words
    """

    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request as it stands: state is "due", "waiting", "granted" or "held"; since and run_after
    (of one that is due) are Unix times.
    """

    id: str
    state: str
    owner: str
    queue: str
    lane: str
    slot: str
    score: int
    token: int | None
    since: float
    label: str
    exclusive: tuple[str, ...]
    shared: tuple[str, ...]
    run_after: float | None
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """A holder or waiter of one resource."""

    id: str
    mode: str
    state: str
    owner: str
    since: float | None
    label: str
    score: int | None


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """Who holds a resource and who waits for it; lists are cut, counts are not."""

    name: str
    mode: str
    holder_count: int
    exclusive_waiter_count: int
    shared_waiter_count: int
    holders: tuple[Holding, ...]
    waiters: tuple[Holding, ...]
