"""A scene with something of every kind, and every operation: to see what trouble does to them."""

from collections.abc import Callable

from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimant, Lane
from tests.locks import layout
from tests.locks.conftest import PREFIX
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task

KEYS = Keys(PREFIX)
OTHER_LANE = Lane(queue="other")
HELD_TOKEN = 2  # after the arrival
FAR_AWAY = 250_000_000_000  # the year 9892
SECOND_SLOT = Claimant(owner=WORKER.owner, slot="1.1", ttl=30)

OPERATIONS: dict[str, Callable[[LockManager], object]] = {
    "request of something free": lambda locks: locks.request(task("new", "free")),
    "request of something shared": lambda locks: locks.request(task("new", shared=["s1", "free"])),
    "request of something held": lambda locks: locks.request(task("new", "r1", "free")),
    "request that sends back": lambda locks: locks.request(task("new", "r2", priority=1)),
    "request in another queue": lambda locks: locks.request(task("new", "free", lane=OTHER_LANE)),
    "request that is known": lambda locks: locks.request(task("queued", "r1")),
    "try of something held": lambda locks: locks.try_request(task("new", "r1", "free")),
    "try that sends back": lambda locks: locks.try_request(hold("new", "r2", priority=1)),
    "hold of something free": lambda locks: locks.request(hold("new", "free", shared=["s1"])),
    "hold of something held": lambda locks: locks.request(hold("new", "r1", "free")),
    "release of a task": lambda locks: locks.release("held"),
    "release of a grant": lambda locks: locks.release("ready"),
    "release of a waiter": lambda locks: locks.release("queued"),
    "release of one that is not due": lambda locks: locks.release("later"),
    "request of something later": lambda locks: locks.request(
        task("new", "free", run_after=FAR_AWAY - 1)
    ),
    "release of a hold": lambda locks: locks.release("hold"),
    "settle": lambda locks: locks.settle(),
    "requeue": lambda locks: locks.requeue("held", owner=WORKER.owner, token=HELD_TOKEN),
    "requeue for later": lambda locks: locks.requeue(
        "held", owner=WORKER.owner, token=HELD_TOKEN, run_after=FAR_AWAY - 1
    ),
    "claim": lambda locks: locks.claim(SECOND_SLOT, "2", ["default", "other"]),
    "claim by another": lambda locks: locks.claim(OTHER_WORKER, "2", ["default", "other"]),
    "claim without lanes": lambda locks: locks.claim(OTHER_WORKER, "", []),
    "claim again": lambda locks: locks.claim(WORKER, "2", ["default", "other"]),
    "advance": lambda locks: locks.advance(
        WORKER, "2", ["default", "other"], id="held", token=HELD_TOKEN
    ),
    "retire": lambda locks: locks.retire(WORKER),
    "beat": lambda locks: locks.beat(WEB.owner, 20),
    "close_owner": lambda locks: locks.close_owner(WEB.owner),
    "release_owner of a worker": lambda locks: locks.release_owner(WORKER.owner),
    "release_owner of a process": lambda locks: locks.release_owner(WEB.owner, 1),
    "forget_owner": lambda locks: locks.forget_owner("lost@8"),
    "forget_entry": lambda locks: locks.forget_entry("held", WEB.owner),
    "watch": lambda locks: locks.watch("queued"),
    "suspect": lambda locks: locks.suspect(WEB.owner),
    "inspect_request": lambda locks: locks.inspect_request("queued"),
    "inspect_resource": lambda locks: locks.inspect_resource("r1"),
}


def prepare(manager: LockManager) -> None:
    """Something of every kind; the version of the lanes is 2."""
    manager.request(task("held", "r1", shared=["s1"]))
    assert Executor(manager, WORKER).take().token == HELD_TOKEN
    manager.request(task("ready", "r2"))
    manager.request(task("other ready", "r5", lane=OTHER_LANE))
    manager.request(hold("hold", "r3", shared=["s1"]))
    manager.request(hold("waits", "r3"))
    manager.request(task("queued", "r1"))
    manager.request(task("queued in between", shared=["r1", "r2"], lane=OTHER_LANE))
    manager.request(task("queued last", "r2", shared=["r3"]))
    manager.request(hold("queued hold", "r1"))
    manager.request(task("later", "r1", shared=["s1"], run_after=FAR_AWAY))
    manager.request(task("overdue", "r2", run_after=FAR_AWAY))
    manager.request(task("overdue and free", "free", run_after=FAR_AWAY))
    manager.watch("held")
    manager.close_owner("gone@9")
    manager.suspect("lost@8")
    manager.send(WORKER.owner, "cancel held")
    manager.lead("job", WORKER.owner, 60)


def let_time_pass(client: Redis) -> None:
    """Until the first requests of the scene are due."""
    client.zadd(KEYS.due, {"overdue": 1, "overdue and free": 2})


FAMILIES_OF_REQUESTS = (
    KEYS.request(""),
    KEYS.lock(""),
    KEYS.wait(""),
    KEYS.wait_exclusive(""),
    KEYS.owner(""),
    KEYS.slot(""),
    KEYS.ready(""),
    KEYS.due,
)


def is_intact(found: dict[str, Value], lost: str = "") -> bool:
    """Locks, queues, registries and slots are those of the requests, and no key is too many.

    One key may be lost, by its name; with the hash of a request, all that is known of it is lost.
    """
    id = lost.removeprefix(KEYS.request("")) if lost.startswith(KEYS.request("")) else ""
    wanted = layout.of_requests({key: found[key] for key in found if key != lost}, KEYS)
    found = layout.without_marks(found, KEYS)
    present = {key for key in found if key.startswith(FAMILIES_OF_REQUESTS)}
    return all(
        _without(found.get(key), id) == _without(wanted.get(key), id)
        for key in (present | set(wanted)) - {lost}
    )


def _without(value: Value | None, id: str) -> Value | None:
    """What remains of a registry, queue or lock if nothing is known of one request."""
    if isinstance(value, set):
        return value - {id} or None
    if isinstance(value, dict):
        kept = {
            name: its
            for name, its in value.items()
            if name != id and its != id and not name.startswith("generation:")
        }
        return kept or None
    return None if value == id else value
