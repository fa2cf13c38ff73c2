"""What nothing leads to any more, since keys were lost: found by a scan, and only by it."""

from collections.abc import Callable

from redis import Redis

from django_task_locks.locks import LockManager
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Ended
from tests.locks.snapshot import Value
from tests.locks.support import WEB, WORKER, Executor, hold, task

Picture = Callable[[], dict[str, Value]]
Remaining = Callable[[], set[str]]


def scanned(manager: LockManager, what: str) -> set[tuple[str, str, str]]:
    found: set[tuple[str, str, str]] = set()
    cursor, steps = "0", 0
    while steps == 0 or cursor != "0":
        cursor, page = manager.scan(what, cursor, 10)
        found.update(page)
        steps += 1
    return found


class TestRequests:
    def test_those_that_a_registry_has_are_not_told(self, manager: LockManager) -> None:
        manager.request(hold("a", "r"))
        manager.request(hold("b", "r"))
        manager.request(task("c", "r"))
        assert scanned(manager, "requests") == set()

    def test_those_that_none_has_are_told_with_owner_and_state(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(task("a", "r"))
        Executor(manager).take()
        manager.request(hold("b", "r"))
        manager.request(task("c", "s"))
        for owner in (WORKER.owner, WEB.owner, "queue/default"):
            redis_client.delete(keys.owner(owner))
        assert scanned(manager, "requests") == {
            ("a", WORKER.owner, "held"),
            ("b", WEB.owner, "waiting"),
            ("c", "queue/default", "granted"),
        }

    def test_all_of_many_are_found_in_steps(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        for number in range(300):
            manager.request(hold(f"h{number}", f"r{number}"))
        redis_client.delete(keys.owner(WEB.owner))
        assert len(scanned(manager, "requests")) == 300

    def test_other_prefixes_are_not_looked_at(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        other = LockManager(redis_client, "other")
        other.request(hold("a", "r"))
        redis_client.delete(other.keys.owner(WEB.owner))
        assert scanned(manager, "requests") == set()

    def test_nothing_is_changed(
        self, manager: LockManager, redis_client: Redis, keys: Keys, stored: Picture
    ) -> None:
        manager.request(hold("a", "r"))
        redis_client.set(keys.request("odd"), "not ours")
        before = stored()
        scanned(manager, "requests")
        scanned(manager, "locks")
        assert stored() == before


class TestLocks:
    def test_holders_and_first_waiters_without_a_request_are_told(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        manager.request(hold("a", "x", shared=["s"]))
        manager.request(hold("b", "x", shared=["s"]))
        manager.request(hold("c", "x"))
        manager.request(hold("d", "y"))
        assert scanned(manager, "locks") == set()
        redis_client.delete(keys.request("a"), keys.request("b"))
        assert scanned(manager, "locks") == {
            ("x", "holder", "a"),
            ("x", "waiter", "b"),
            ("s", "holder", "a"),
            ("s", "waiter", "b"),
        }

    def test_values_of_somebody_else_are_passed_over(
        self, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.rpush(keys.lock("r"), "not ours")
        redis_client.set(keys.lock("s"), "+")
        redis_client.set(keys.wait("s"), "not ours")
        assert scanned(manager, "locks") == set()


class TestFree:
    def test_next_in_line_is_granted(
        self, manager: LockManager, redis_client: Redis, keys: Keys, remaining: Remaining
    ) -> None:
        manager.request(hold("gone", "x", shared=["s"]))
        manager.request(task("a", "x"))
        manager.request(task("b", "s"))
        redis_client.delete(keys.request("gone"))
        redis_client.srem(keys.owner(WEB.owner), "gone")
        assert manager.free("x", "gone") == Ended("done", ("a",))
        assert manager.free("s", "gone") == Ended("done", ("b",))
        manager.release("a")
        manager.release("b")
        assert not remaining()

    def test_a_waiter_that_is_gone_holds_up_nobody_any_more(
        self, manager: LockManager, redis_client: Redis, keys: Keys, remaining: Remaining
    ) -> None:
        manager.request(hold("a", "x"))
        manager.request(hold("gone", "x"))
        manager.request(task("b", "x"))
        redis_client.delete(keys.request("gone"))
        redis_client.srem(keys.owner(WEB.owner), "gone")
        assert manager.release("a") == Ended("done")
        assert manager.free("x", "gone") == Ended("done", ("b",))
        manager.release("b")
        assert not remaining()

    def test_who_has_a_request_is_not_touched(self, manager: LockManager, stored: Picture) -> None:
        manager.request(hold("a", "x"))
        before = stored()
        assert manager.free("x", "a") == Ended("refused")
        assert stored() == before

    def test_repeated_or_of_somebody_who_is_not_there_it_changes_nothing(
        self, manager: LockManager, redis_client: Redis, keys: Keys, stored: Picture
    ) -> None:
        manager.request(hold("a", "x"))
        manager.request(task("b", "x"))
        before = stored()
        assert manager.free("x", "nobody") == Ended("done")
        after = stored()
        assert after.pop(keys.seq) != before.pop(keys.seq)
        assert after == before


def test_what_the_slots_of_an_owner_hold(manager: LockManager) -> None:
    manager.request(task("a", "r"))
    Executor(manager).take()
    assert manager.slots(WORKER.owner) == {"0": "a"}
    manager.retire(WORKER)
    assert manager.slots(WORKER.owner) == {"0": "a"}
    manager.release_owner(WORKER.owner)
    assert manager.slots(WORKER.owner) == {}


def test_a_look_at_a_suspect_makes_nobody_one(
    manager: LockManager, redis_client: Redis, keys: Keys
) -> None:
    assert manager.suspected(WEB.owner) == 0
    assert not redis_client.exists(keys.suspects)
    manager.suspect(WEB.owner)
    assert 0 <= manager.suspected(WEB.owner) < 10
