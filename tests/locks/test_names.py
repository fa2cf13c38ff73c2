"""Names of resources may hold any characters, and different names never meet."""

from collections.abc import Callable
from itertools import permutations

import pytest
from redis import Redis

from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.requests import Claimant, Ended, Grant, Lane, Waiting
from tests.locks.snapshot import snapshot
from tests.locks.support import Executor, hold, task

Remaining = Callable[[], set[str]]

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"

NAMES = [
    " ",
    "a b",
    ":",
    "a:b",
    "x:r",
    "s:r",
    "x",
    "wait:x:r",
    "lock:r",
    "request:a",
    "queues/default",
    "{other}",
    "a{b}c",
    "}{",
    "*",
    "r?[a-z]\\",
    "'",
    '"',
    "\\",
    "%s %d",
    "line\nbreak",
    "\r\n",
    "\0",
    "a\0b",
    "\x7f",
    "\x01\x1f",
    "null",
    "0",
    "-inf",
    "(1",
    COMPOSED,
    DECOMPOSED,
    "\N{SNOWMAN}",
    "\N{PILE OF POO}",
    "\ufeff",
    "\u202e",
    "n" * 1024,
    "\N{PILE OF POO}" * 256,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
class TestAnyName:
    def test_it_is_locked_and_waited_for_in_both_modes(
        self, manager: LockManager, remaining: Remaining, name: str
    ) -> None:
        assert manager.request(task("a", name)) == Grant("a", None)
        assert manager.request(task("b", shared=[name])) == Waiting("b")
        assert manager.request(task("c", name)) == Waiting("c")
        assert manager.release("a") == Ended("done", ("b",))
        assert manager.release("b") == Ended("done", ("c",))
        manager.release("c")
        assert not remaining()

    def test_it_comes_back_as_it_went_in(self, manager: LockManager, name: str) -> None:
        manager.request(hold("a", name))
        manager.request(task("b", shared=[name]))
        holder, waiter = manager.inspect_request("a"), manager.inspect_request("b")
        assert holder is not None
        assert waiter is not None
        assert holder.exclusive == (name,)
        assert waiter.shared == (name,)
        assert waiter.blockers[0].resource == name
        assert manager.inspect_resource(name).holders[0].id == "a"

    def test_it_survives_a_requeue(self, manager: LockManager, name: str) -> None:
        """Then it was read back from what the server keeps."""
        manager.request(task("a", name, shared=["s"]))
        executor = Executor(manager)
        claimed = executor.take()
        manager.requeue("a", owner=executor.claimant.owner, token=claimed.token)
        assert manager.inspect_resource(name).holders[0].id == "a"

    def test_ids_labels_and_owners_are_any_text_as_well(
        self, manager: LockManager, remaining: Remaining, name: str
    ) -> None:
        by = Claimant(owner=name, ttl=30)
        manager.request(LockRequest(id=name, exclusive=("r",), claimant=by, label=name))
        manager.request(hold("b", "r", by=by))
        assert manager.registry(name) == {name, "b"}
        found = manager.inspect_request(name)
        assert found is not None
        assert (found.id, found.owner, found.label) == (name, name, name)
        assert manager.close_owner(name)
        assert manager.release_owner(name) == 2
        assert not remaining()


def test_different_names_never_meet(manager: LockManager) -> None:
    for number, name in enumerate(NAMES):
        assert manager.request(task(f"a{number}", name)) == Grant(f"a{number}", None)


@pytest.mark.parametrize(("first", "second"), list(permutations(["r", "x:r", "s:r", "x:x:r"], 2)))
def test_a_name_that_looks_like_a_marker_is_another_resource(
    manager: LockManager, first: str, second: str
) -> None:
    manager.request(task("a", first))
    manager.request(task("b", shared=[first]))
    assert manager.request(task("c", shared=[second])) == Grant("c", None)
    manager.release("c")
    assert manager.request(task("d", second)) == Grant("d", None)


def test_different_unicode_forms_are_different_names(manager: LockManager) -> None:
    """The database, too, tells them apart."""
    manager.request(task("a", COMPOSED))
    assert manager.request(task("b", DECOMPOSED)) == Grant("b", None)


def test_upper_and_lower_case_are_different_names(manager: LockManager) -> None:
    manager.request(task("a", "Repository"))
    assert manager.request(task("b", "repository")) == Grant("b", None)


def test_no_name_moves_a_key_to_another_cluster_slot(
    manager: LockManager, redis_client: Redis, keys: Keys
) -> None:
    for number, name in enumerate(NAMES):
        manager.request(task(f"held{number}", name))
        manager.request(task(f"{name}", name, shared=["s"], lane=Lane(queue=f"q{number}")))
    tags = {key.partition("{")[2].partition("}")[0] for key in snapshot(redis_client, keys.prefix)}
    assert tags == {keys.prefix}
    assert len(snapshot(redis_client, keys.prefix)) == redis_client.dbsize()


class TestManyResources:
    COUNT = 10_000

    @pytest.mark.parametrize("mode", ["exclusive", "shared", "both"])
    def test_ten_thousand_are_granted_and_freed_at_once(
        self, manager: LockManager, redis_client: Redis, keys: Keys, remaining: Remaining, mode: str
    ) -> None:
        names = [f"r{number}" for number in range(self.COUNT)]
        exclusive = {"exclusive": names, "shared": [], "both": names[::2]}[mode]
        shared = {"exclusive": [], "shared": names, "both": names[1::2]}[mode]
        assert manager.request(task("a", *exclusive, shared=shared)) == Grant("a", None)
        assert len(redis_client.keys(f"{keys.base}lock:*")) == self.COUNT
        assert manager.release("a") == Ended("done")
        assert not remaining()

    @pytest.mark.parametrize("mode", ["exclusive", "shared"])
    def test_ten_thousand_are_waited_for_and_handed_over(
        self, manager: LockManager, remaining: Remaining, mode: str
    ) -> None:
        names = [f"r{number}" for number in range(self.COUNT)]
        many = task("many", *names) if mode == "exclusive" else task("many", shared=names)
        manager.request(hold("a", names[-1]))
        assert manager.request(many) == Waiting("many")
        assert manager.release("a") == Ended("done", ("many",))
        claimed = Executor(manager).take()
        manager.requeue("many", owner="worker@1", token=claimed.token)
        manager.request(task("high", names[0], priority=1))  # sends it back
        assert manager.release("high") == Ended("done", ("many",))
        assert manager.release("many") == Ended("done")
        assert not remaining()

    def test_ten_thousand_waiters_of_one_resource_are_granted_together(
        self, manager: LockManager, remaining: Remaining
    ) -> None:
        manager.request(hold("a", "r"))
        for number in range(self.COUNT):
            manager.request(task(f"b{number}", shared=["r"]))
        assert len(manager.release("a").granted) == self.COUNT
        assert manager.release_owner("queue/default", 1000) == self.COUNT
        assert not remaining()
