"""The record of the locks, and what is found wrong by it."""

import time
from collections.abc import Iterator

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from tests.crash.lock_record import LockRecord, Span
from tests.crash.tenure import Need, faults
from tests.support.servers import ValkeyServer

ME = Claimant(owner="me@1", ttl=10)


@pytest.fixture
def locks(redis_client: Redis) -> LockManager:
    return LockManager(redis_client, "crash")


@pytest.fixture
def record(valkey: ValkeyServer, locks: LockManager) -> Iterator[LockRecord]:
    with LockRecord(valkey.socket_path, locks.keys) as record:
        yield record


def hold(id: str, exclusive: tuple[str, ...] = (), shared: tuple[str, ...] = ()) -> LockRequest:
    return LockRequest(id=id, exclusive=exclusive, shared=shared, claimant=ME)


def seen(record: LockRecord) -> list[tuple[str, str, bool]]:
    return [(span.id, span.resource, span.is_shared) for span in record.spans()]


def test_it_knows_who_had_which_lock_in_which_mode(locks: LockManager, record: LockRecord) -> None:
    locks.request(hold("one", ('a "name"', "ü"), ("s",)))
    locks.request(hold("other", (), ("s",)))
    locks.release("one")

    assert sorted(seen(record)) == [
        ("one", 'a "name"', False),
        ("one", "s", True),
        ("one", "ü", False),
        ("other", "s", True),
    ]


def test_who_waits_has_nothing_until_it_is_granted(locks: LockManager, record: LockRecord) -> None:
    locks.request(hold("first", ("r",)))
    for id in ("second", "third"):
        locks.request(hold(id, ("r",)))
    locks.try_request(hold("fourth", ("r",)))
    locks.release("first")

    first, second = record.spans()
    assert (first.id, second.id) == ("first", "second")
    assert first.ended <= second.began
    assert second.ended == float("inf")


def test_times_are_those_of_the_clock_of_the_bodies(locks: LockManager, record: LockRecord) -> None:
    before = time.time()
    locks.request(hold("one", ("r",)))
    between = time.time()
    locks.release("one")

    [span] = record.spans()
    assert before <= span.began <= between <= span.ended <= time.time()


def test_what_is_lost_is_not_what_is_released(
    locks: LockManager, record: LockRecord, redis_client: Redis
) -> None:
    locks.request(hold("lost", ("r",)))
    redis_client.flushall()
    locks.request(hold("lost", ("r",)))
    locks.release("lost")

    assert [span.is_lost for span in record.spans()] == [True, False]


# -- what is wrong ---------------------------------------------------------------------------------


def need(began: float, ended: float, *, id: str = "me", **modes: list[str]) -> Need:
    exclusive, shared = modes.get("exclusive", []), modes.get("shared", [])
    return Need(what=id, id=id, exclusive=exclusive, shared=shared, began=began, ended=ended)


BODY = need(1.0, 2.0, exclusive=["r"])
READER = need(1.0, 2.0, shared=["r"])


def had(began: float, ended: float, id: str = "me", *, shared: bool = False) -> Span:
    return Span("r", id, shared, began, ended)


def lost(began: float, ended: float, id: str = "me") -> Span:
    return Span("r", id, False, began, ended, is_lost=True)


@pytest.mark.parametrize(
    ("body", "spans"),
    [
        (BODY, [had(0.9, 2.1)]),
        (BODY, [had(0.5, 1.0, "earlier"), had(1.0, 2.0), had(2.0, 3.0, "later")]),
        (READER, [had(0.9, 2.1, shared=True), had(1.5, 2.5, "another reader", shared=True)]),
        (BODY, [lost(0.9, 1.5), had(1.7, 2.1)]),
        (BODY, [lost(0.7, 0.9), had(1.2, 2.1)]),
    ],
)
def test_a_lock_may_last_longer_than_it_is_needed_and_be_restored(
    body: Need, spans: list[Span]
) -> None:
    assert list(faults([body], spans)) == []


@pytest.mark.parametrize(
    ("body", "spans", "wrong"),
    [
        (BODY, [], "no lock on r"),
        (BODY, [had(1.000001, 2.1)], "no lock on r"),
        (BODY, [lost(0.5, 0.6), had(0.7, 0.9)], "no lock on r"),
        (BODY, [had(0.9, 1.999999)], "released at 1.999999, 0.000001 s early"),
        (BODY, [had(0.9, 1.5), had(1.6, 2.1)], "0.500000 s early"),
        (BODY, [had(0.9, 2.1), had(1.9, 3.0, "rival")], "rival had the lock on r"),
        (BODY, [lost(0.9, 1.2), had(1.3, 1.6, "rival"), had(1.7, 2.1)], "rival had the lock"),
        (READER, [had(0.9, 2.1, shared=True), had(1.5, 2.5, "writer")], "writer had the lock"),
    ],
)
def test_a_lock_that_is_missing_or_somebody_elses_for_a_microsecond_is_a_fault(
    body: Need, spans: list[Span], wrong: str
) -> None:
    [found] = faults([body], spans)
    assert wrong in found
