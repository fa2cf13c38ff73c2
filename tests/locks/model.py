"""What the lock manager must do, in the plainest way.

Nothing is handed over and no queue is kept: who is granted is worked out anew after each step, from
the definition. Slow, and simple enough to be right by reading.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Requests that one call promotes; a time (in ms) that has come; later than all known arrivals.
MOST = 100
OVERDUE = 1_000_000
LATEST = 2**40


class Refused(Exception):
    """The operation belongs to a process or an executor that may do nothing any more."""


class Closed(Refused):
    pass


class Stale(Refused):
    pass


class OfAnother(Refused):
    """A hold asked for by the id of a request that another has."""


@dataclass(frozen=True)
class Process:
    """Who asks: a process, and where given, one of its executors as slot number and generation."""

    owner: str
    ttl: float
    slot: tuple[int, int] | None = None


@dataclass
class Request:
    """One demand. A task has a queue as its owner until a worker claims it; a hold has its process
    from the start, and is held from its grant on."""

    id: str
    exclusive: frozenset[str]
    shared: frozenset[str]
    priority: int
    queue: str
    lane: str
    lane_description: str
    process: Process | None = None
    label: str = ""
    arrival: int = 0
    due: int | None = None
    owner: str = ""
    slot: tuple[int, int] | None = None
    state: str = "waiting"
    token: int | None = None
    was_handed_over: bool = False

    @property
    def is_hold(self) -> bool:
        return self.process is not None

    @property
    def home(self) -> str:
        """The owner while no worker has claimed it."""
        return self.process.owner if self.process else f"queue/{self.queue}"

    @property
    def rank(self) -> tuple[int, int]:
        """The one global order: a higher priority first, then first come first served."""
        return (-self.priority, self.arrival)

    def conflicts_with(self, other: "Request") -> bool:
        return bool(
            self.exclusive & (other.exclusive | other.shared)
            or other.exclusive & (self.exclusive | self.shared)
        )


@dataclass
class Model:
    requests: dict[str, Request] = field(default_factory=dict)
    owners: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    suspects: set[str] = field(default_factory=set)
    messages: dict[str, list[str]] = field(default_factory=dict)
    # Per owner: slot number to the one request in it, and slot number to its generation.
    slots: dict[str, dict[int, str]] = field(default_factory=dict)
    generations: dict[str, dict[int, int]] = field(default_factory=dict)
    lanes: dict[str, str] = field(default_factory=dict)
    lanes_version: int = 0
    # Requests that have arrived without the caller knowing by which number.
    promoted: list[Request] = field(default_factory=list)

    # -- who is granted ------------------------------------------------------------------------

    def in_order(self, *states: str) -> list[Request]:
        found = [request for request in self.requests.values() if request.state in states]
        return sorted(found, key=lambda request: request.rank)

    def in_the_way_of(self, request: Request) -> Iterator[Request]:
        """All that is held, and all earlier that is not, granted or waiting; but not due."""
        for other in self.requests.values():
            if other.state == "due":
                continue
            is_first = other.state == "held" or other.rank < request.rank
            if other.id != request.id and is_first and request.conflicts_with(other):
                yield other

    def settle(self) -> list[str]:
        """Works out who is granted. Returns the ids of those that were waiting, in order."""
        newly_granted = []
        for request in self.in_order("waiting", "granted"):
            if any(self.in_the_way_of(request)):
                request.state = "waiting"
                continue
            if request.process and request.process.owner in self.closed:
                continue  # it waits for its release, and so do those behind it
            if request.state == "waiting":
                newly_granted.append(request.id)
            request.state = "held" if request.is_hold else "granted"
        return newly_granted

    # -- requests ------------------------------------------------------------------------------

    def request(self, request: Request, arrival: int, *, wait: bool) -> str:
        """Returns the state of the request: "held", "granted", "waiting", "due" or "blocked"."""
        if request.process:
            self.refuse(request.process)
        if known := self.requests.get(request.id):
            if request.process and known.owner != request.process.owner:
                raise OfAnother
            return known.state
        request.arrival = 0 if request.due else arrival
        request.owner = request.home
        request.slot = request.process.slot if request.process else None
        if not wait and any(self.in_the_way_of(request)):
            return "blocked"
        self.requests[request.id] = request
        if request.process:
            self.owners[request.process.owner] = request.process.ttl
        elif request.lane not in self.lanes:
            self.lanes[request.lane] = request.lane_description
            self.lanes_version += 1
        if request.due:
            request.state = "due"
        self.settle()
        return request.state

    def promote(self, most: int) -> None:
        """Those whose time has come are requested now, in its order."""
        waiting = [request for request in self.requests.values() if request.state == "due"]
        due = sorted((request.due or 0, request.id) for request in waiting)
        for moment, id in due[:most]:
            if moment > OVERDUE:
                return
            request = self.requests[id]
            request.state, request.due = "waiting", None
            request.arrival = LATEST + len(self.promoted)
            self.promoted.append(request)
            self.settle()

    def release(
        self, id: str, owner: str = "", token: int | None = None
    ) -> tuple[str, tuple[str, ...]]:
        request = self.requests.get(id)
        if request is None:
            return ("unknown", ())
        is_claimed_task = request.state == "held" and not request.is_hold
        if not is_of(request, owner, token) or (is_claimed_task and owner and token is None):
            return ("refused", ())
        return ("done", self.end(request))

    def requeue(
        self, id: str, owner: str, token: int | None, due: int | None = None
    ) -> tuple[str, tuple[str, ...]]:
        request = self.requests.get(id)
        if request is None:
            return ("unknown", ())
        if request.is_hold or request.state != "held" or not is_of(request, owner, token):
            return ("refused", ())
        self.empty_slot(request)
        request.owner, request.slot, request.token = request.home, None, None
        request.state = "waiting"
        if due:
            request.state, request.due, request.arrival = "due", due, 0
        return ("done", self.hand_over())

    def end(self, request: Request) -> tuple[str, ...]:
        self.empty_slot(request)
        del self.requests[request.id]
        return self.hand_over()

    def hand_over(self) -> tuple[str, ...]:
        ids = self.settle()
        for id in ids:
            self.requests[id].was_handed_over = True
        return tuple(ids)

    def empty_slot(self, request: Request) -> None:
        slots = self.slots.get(request.owner, {})
        if request.slot and slots.get(request.slot[0]) == request.id:
            del slots[request.slot[0]]

    # -- executors -----------------------------------------------------------------------------

    def claim(
        self, process: Process, version: int | None, lanes: Iterable[str], most: int = MOST
    ) -> str:
        """Returns the id that the slot holds now, or "idle", or "lanes" if these have changed.

        most  requests that may be promoted by one call
        """
        assert process.slot
        self.refuse(process)
        number = process.slot[0]
        slots = self.slots.setdefault(process.owner, {})
        if number in slots:
            if self.requests[slots[number]].slot == process.slot:
                return slots[number]
            del slots[number]  # its predecessor's, which the supervisor ends
        if version != self.lanes_version:
            return "lanes"
        self.promote(most)
        ready = [request for request in self.in_order("granted") if request.lane in lanes]
        if not ready:
            return "idle"
        request = ready[0]
        request.state, request.owner, request.slot = "held", process.owner, process.slot
        slots[number] = request.id
        self.owners[process.owner] = process.ttl
        return request.id

    def advance(
        self, process: Process, version: int | None, lanes: Iterable[str], id: str, token: int
    ) -> str:
        self.refuse(process)
        request = self.requests.get(id)
        if request and is_of(request, process.owner, token):
            self.end(request)
        return self.claim(process, version, lanes)

    def retire(self, process: Process) -> set[str]:
        assert process.slot
        number, generation = process.slot
        generations = self.generations.setdefault(process.owner, {})
        generations[number] = max(generations.get(number, 0), generation + 1)
        return {
            request.id
            for request in self.requests.values()
            if request.owner == process.owner
            and request.slot
            and request.slot[0] == number
            and request.slot[1] <= generation
        }

    # -- processes -----------------------------------------------------------------------------

    def refuse(self, process: Process) -> None:
        if process.owner in self.closed:
            raise Closed
        if process.slot:
            number, generation = process.slot
            if self.generations.get(process.owner, {}).get(number, 0) > generation:
                raise Stale

    def registry(self, owner: str) -> set[str]:
        return {request.id for request in self.requests.values() if request.owner == owner}

    def beat(self, owner: str, ttl: float, most: int = MOST) -> None:
        self.refuse(Process(owner, ttl))
        self.owners[owner] = ttl
        self.suspects.discard(owner)
        self.promote(most)

    def close_owner(self, owner: str) -> set[str]:
        self.closed.add(owner)
        return self.registry(owner)

    def release_owner(self, owner: str) -> int:
        ids = self.registry(owner)
        for id in ids:
            self.end(self.requests[id])
        return len(ids)

    def forget_owner(self, owner: str) -> int:
        if left := len(self.registry(owner)):
            return left
        self.owners.pop(owner, None)
        self.suspects.discard(owner)
        self.slots.pop(owner, None)
        self.generations.pop(owner, None)
        self.messages.pop(owner, None)
        return 0

    def forget_entry(self, id: str, owner: str) -> bool:
        return id not in self.registry(owner)

    def suspect(self, owner: str) -> float | None:
        self.suspects.add(owner)
        return self.owners.get(owner)

    def send(self, owner: str, message: str) -> None:
        self.messages.setdefault(owner, []).append(message)


def is_of(request: Request, owner: str, token: int | None) -> bool:
    """Whether the request is this owner's, by this token; where nothing is given, anybody's."""
    return owner in ("", request.owner) and token in (None, request.token)
