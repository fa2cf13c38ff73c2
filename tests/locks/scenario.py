"""What a lock manager does, once through: the same on every server and with every client.

Each step begins and ends with nothing but the bookkeeping on the server.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from django_task_locks.exceptions import ForeignValue, OwnerClosed, StaleSlot
from django_task_locks.locks import AsyncLockManager, LockManager
from django_task_locks.locks.protocol import text
from django_task_locks.locks.requests import (
    Blocked,
    Claimed,
    Due,
    Ended,
    Grant,
    Idle,
    Lane,
    Waiting,
)
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task
from tests.support.redis_state import leftovers
from tests.support.services import AnyClient, Way

# Small, so that a release of more waiters takes more than one call.
BATCH = 2

ODD_NAMES = ["a b", "{other}", "}{", "a\nb\r\n", "\0", "'\"\\", "*?[a]", "\N{PILE OF POO}"]


def make_manager(client: Any, prefix: str) -> LockManager:
    return LockManager(client, prefix, "the-endpoint", batch=BATCH)


class _InLoop:
    """Runs each method of an asynchronous manager to its end."""

    def __init__(self, manager: AsyncLockManager, loop: asyncio.Runner) -> None:
        self.keys = manager.keys
        self._manager = manager
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._manager, name)
        return lambda *args, **options: self._loop.run(method(*args, **options))


@contextmanager
def asynchronous(way: Way, prefix: str, **options: Any) -> Iterator[LockManager]:
    """An asynchronous manager that can be used as if it were a LockManager."""
    with asyncio.Runner() as loop:
        client: Any = way.async_client(**options)
        try:
            manager = AsyncLockManager(client, prefix, "the-endpoint", batch=BATCH)
            yield cast(LockManager, _InLoop(manager, loop))
        finally:
            loop.run(way.aclose(client))


def play(locks: LockManager, control: AnyClient) -> None:
    """All steps. `control` is another client of the same server, which may do anything there."""
    for step in STEPS:
        step(locks, control)
        assert remaining(locks, control) == set(), step.__name__


def remaining(locks: LockManager, control: AnyClient) -> set[str]:
    return leftovers(make_manager(control, locks.keys.prefix))


def tasks_are_claimed_in_order(locks: LockManager, control: AnyClient) -> None:
    assert locks.request(task("writer", "r", shared=["s"])) == Grant("writer", None)
    assert locks.request(task("reader", shared=["r"])) == Waiting("reader")
    assert locks.request(task("last", "r", "s")) == Waiting("last")
    assert locks.request(task("other reader", shared=["s"])) == Waiting("other reader")
    assert locks.request(task("first", "t", priority=1)) == Grant("first", None)
    assert locks.known(["writer", "unknown", "last"]) == {"writer", "last"}

    executor = Executor(locks)
    claimed = executor.take()
    assert claimed.id == "first"
    claimed = advance(executor, claimed, "writer")
    claimed = advance(executor, claimed, "reader")
    claimed = advance(executor, claimed, "last")
    claimed = advance(executor, claimed, "other reader")
    assert executor.advance(claimed) == Idle()


def advance(executor: Executor, done: Claimed, next: str) -> Claimed:
    claimed = executor.advance(done)
    assert isinstance(claimed, Claimed)
    assert claimed.id == next
    assert claimed.token > done.token
    return claimed


def whoever_is_in_the_way_is_named(locks: LockManager, control: AnyClient) -> None:
    locks.request(task("a", "r", shared=["s"]))
    claimed = Executor(locks).take()
    locks.request(hold("b", "r"))

    refused = locks.try_request(hold("c", "s", shared=["r"]))

    assert isinstance(refused, Blocked)
    assert [(its.resource, its.mode, its.id, its.state) for its in refused.blockers] == [
        ("s", "shared", "a", "held"),
        ("r", "exclusive", "a", "held"),
        ("r", "exclusive", "b", "waiting"),
    ]
    waiter, holder = locks.inspect_request("b"), locks.inspect_request("a")
    assert holder is not None
    assert waiter is not None
    assert (holder.exclusive, holder.shared, holder.token) == (("r",), ("s",), claimed.token)
    assert (waiter.state, [its.owner for its in waiter.blockers]) == ("waiting", [WORKER.owner])
    found = locks.inspect_resource("r")
    assert (found.mode, found.holder_count, found.exclusive_waiter_count) == ("exclusive", 1, 1)
    assert [its.id for its in (*found.holders, *found.waiters)] == ["a", "b"]
    assert locks.inspect_request("c") is None

    assert locks.release("a", owner=WEB.owner) == Ended("refused")
    assert locks.release("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("b",))
    assert locks.release("a") == Ended("unknown")
    assert locks.release("b", owner=WEB.owner) == Ended("done")


def a_hold_is_woken_by_the_release(locks: LockManager, control: AnyClient) -> None:
    first = locks.request(hold("a", "r"))
    assert isinstance(first, Grant)
    assert first.token
    assert locks.request(hold("b", "r")) == Waiting("b")
    assert not locks.wait_for_grant("b", 0.01)

    assert locks.release("a", owner=WEB.owner, token=first.token) == Ended("done", ("b",))

    assert locks.wait_for_grant("b", 5)
    second = locks.request(hold("b", "r"))
    assert isinstance(second, Grant)
    assert second.token
    assert second.token > first.token
    locks.release("b")


def a_wait_of_no_time_ends_at_once(locks: LockManager, control: AnyClient) -> None:
    began = time.monotonic()
    assert not locks.wait_for_grant("unknown", 0)
    while locks.wait_for_ready([], 0):
        pass
    assert time.monotonic() - began < 2


def an_executor_is_woken_by_a_grant(locks: LockManager, control: AnyClient) -> None:
    lane = Lane(queue="mail", versions={"app": "2"})
    executor = Executor(locks, queues=["mail"])
    executor.claim()
    while executor.is_woken():
        pass

    locks.request(task("a", "r", lane=lane))

    assert locks.lanes()[lane.name] == lane
    assert locks.wait_for_ready(executor.lanes, 5)
    assert executor.take().id == "a"
    locks.release("a")


def a_request_waits_for_its_time(locks: LockManager, control: AnyClient) -> None:
    lane = Lane(queue="later")
    executor = Executor(locks, queues=["later"])
    assert locks.request(task("a", "r", lane=lane, run_after=time.time() + 0.3)) == Due("a")
    found = locks.inspect_request("a")
    assert found is not None
    assert found.run_after == pytest.approx(time.time() + 0.3, abs=0.3)
    assert locks.request(task("b", "r", lane=lane, run_after=1)) == Grant("b", None)
    claimed = executor.take()
    assert claimed.id == "b"
    assert locks.release("b") == Ended("done")

    while isinstance(reply := executor.claim(), Idle):
        locks.wait_for_ready(executor.lanes, reply.next_due_in or 0)

    assert reply.id == "a"
    later = time.time() + 60
    assert locks.requeue("a", owner=WORKER.owner, token=reply.token, run_after=later).is_done
    assert locks.release("a") == Ended("done")


def all_who_wait_for_an_end_see_the_sign(locks: LockManager, control: AnyClient) -> None:
    locks.request(task("a", "r"))
    assert locks.watch("a")
    assert not locks.wait_for_end("a", 0.01)

    locks.release("a")

    assert locks.wait_for_end("a", 5)
    assert locks.wait_for_end("a", 5)
    assert not locks.watch("a")
    control.delete(locks.keys.ended("a"))


def a_requeued_task_keeps_its_place(locks: LockManager, control: AnyClient) -> None:
    locks.request(task("a", "r"))
    locks.request(task("b", "r"))
    executor = Executor(locks)
    claimed = executor.take()

    assert locks.requeue("a", owner=WORKER.owner, token=claimed.token) == Ended("done", ("a",))

    assert executor.take().id == "a"
    assert locks.release("b") == Ended("done")
    assert locks.release("a") == Ended("done")


def more_waiters_than_one_call_examines_are_all_granted(
    locks: LockManager, control: AnyClient
) -> None:
    readers = [f"reader {number}" for number in range(2 * BATCH + 1)]
    locks.request(hold("writer", "r"))
    for id in readers:
        locks.request(task(id, shared=["r"]))

    assert locks.release("writer") == Ended("done", tuple(readers))

    assert locks.settle() == Ended("done")
    assert locks.release_owner("queue/default", BATCH) == len(readers)


def a_process_comes_and_goes(locks: LockManager, control: AnyClient) -> None:
    locks.beat(WEB.owner, 12.5)
    assert locks.owners()[WEB.owner] == 12.5
    assert locks.suspect(WEB.owner)[1] == 12.5
    locks.request(hold("a", "r"))
    assert locks.registry(WEB.owner) == {"a"}
    assert not locks.forget_entry("a", WEB.owner)
    assert locks.forget_owner(WEB.owner) == 1
    locks.send(WEB.owner, "cancel a")
    assert list(map(text, control.lrange(locks.keys.control(WEB.owner), 0, -1))) == ["cancel a"]

    assert locks.close_owner(WEB.owner) == ("a",)

    try:
        with pytest.raises(OwnerClosed, match=WEB.owner):
            locks.request(hold("b", "s"))
        assert locks.release_owner(WEB.owner) == 1
        assert locks.forget_owner(WEB.owner) == 0
        assert WEB.owner not in locks.owners()
    finally:
        control.delete(locks.keys.closed)  # the other steps are its too


def a_slot_is_given_to_a_successor(locks: LockManager, control: AnyClient) -> None:
    locks.request(task("a", "r"))
    executor = Executor(locks, OTHER_WORKER)
    executor.take()

    assert locks.retire(OTHER_WORKER) == ("a",)

    with pytest.raises(StaleSlot, match=OTHER_WORKER.slot):
        executor.claim()
    assert locks.release_owner(OTHER_WORKER.owner) == 1
    assert locks.forget_owner(OTHER_WORKER.owner) == 0


def one_process_leads(locks: LockManager, control: AnyClient) -> None:
    assert locks.lead("job", WORKER.owner, 60)
    assert not locks.lead("job", WEB.owner, 60)
    assert 50 < locks.lead_ends_in("job") <= 60
    assert locks.extend_lead("job", WORKER.owner, 600)
    assert locks.lead_ends_in("job") > 500
    locks.end_lead("job")
    assert locks.lead_ends_in("job") == 0
    assert not locks.extend_lead("job", WORKER.owner, 600)
    assert locks.lead("job", WEB.owner, 60)
    control.delete(locks.keys.leader("job"))


def a_value_of_somebody_else_is_named(locks: LockManager, control: AnyClient) -> None:
    lock, registry = locks.keys.lock("r"), locks.keys.owner(WEB.owner)
    for key in (lock, registry):
        control.rpush(key, "not ours")

    with pytest.raises(ForeignValue, match="lock:r"):
        locks.request(task("a", "r"))
    with pytest.raises(ForeignValue, match=f"owner:{WEB.owner}"):
        locks.registry(WEB.owner)

    control.delete(lock)
    control.delete(registry)
    assert locks.request(task("a", "r")) == Grant("a", None)
    locks.release("a")


def what_lost_its_registry_or_its_request_is_found(locks: LockManager, control: AnyClient) -> None:
    locks.request(hold("a", "r"))
    control.delete(locks.keys.owner(WEB.owner))
    assert locks.slots(WEB.owner) == {}
    assert locks.suspected(WEB.owner) == 0
    assert scanned(locks, "requests") == [("a", WEB.owner, "held")]
    assert scanned(locks, "locks") == []

    control.delete(locks.keys.request("a"))

    assert scanned(locks, "locks") == [("r", "holder", "a")]
    assert locks.free("r", "a") == Ended("done")


def scanned(locks: LockManager, what: str) -> list[tuple[str, str, str]]:
    cursor, found = locks.scan(what, "0", 100)
    while cursor != "0":
        cursor, more = locks.scan(what, cursor, 100)
        found += more
    return sorted(set(found))


def many_are_requested_at_once(locks: LockManager, control: AnyClient) -> None:
    lock = locks.keys.lock("s")
    control.rpush(lock, "not ours")

    outcomes = locks.request_many(
        [task("a", "r"), task("b", "s"), task("c", "r"), hold("d", "t"), task("a", "r")]
    )

    assert isinstance(outcomes[1], ForeignValue)
    assert isinstance(outcomes[3], Grant)
    assert [outcomes[place] for place in (0, 2, 4)] == [
        Grant("a", None),
        Waiting("c"),
        Grant("a", None),
    ]
    assert locks.request_many([]) == []
    control.delete(lock)
    assert locks.release("a") == Ended("done", ("c",))
    for id in "cd":
        assert locks.release(id) == Ended("done")


def any_name_will_do(locks: LockManager, control: AnyClient) -> None:
    for name in ODD_NAMES:
        assert locks.request(task("a", name)) == Grant("a", None)
        assert locks.request(task(name, shared=[name, "s"])) == Waiting(name)
        found = locks.inspect_request(name)
        assert found is not None
        assert found.blockers[0].resource == name
        assert locks.release("a") == Ended("done", (name,))
        assert locks.inspect_resource(name).holders[0].id == name
        assert locks.release(name) == Ended("done")


STEPS: list[Callable[[LockManager, AnyClient], None]] = [
    tasks_are_claimed_in_order,
    whoever_is_in_the_way_is_named,
    a_hold_is_woken_by_the_release,
    a_wait_of_no_time_ends_at_once,
    an_executor_is_woken_by_a_grant,
    a_request_waits_for_its_time,
    all_who_wait_for_an_end_see_the_sign,
    a_requeued_task_keeps_its_place,
    more_waiters_than_one_call_examines_are_all_granted,
    a_process_comes_and_goes,
    a_slot_is_given_to_a_successor,
    one_process_leads,
    a_value_of_somebody_else_is_named,
    what_lost_its_registry_or_its_request_is_found,
    many_are_requested_at_once,
    any_name_will_do,
]
