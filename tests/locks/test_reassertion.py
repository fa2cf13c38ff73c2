"""Redis has lost something alone, in the epoch that stands: who holds it restores it."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from redis import Redis

from django_task_locks.exceptions import (
    EpochLost,
    ForeignValue,
    OwnerClosed,
    StaleSlot,
    TaskLocksError,
)
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import SOLE, Keys
from django_task_locks.locks.reassertion import Reassertion
from django_task_locks.locks.rebuild import Epoch, Known, Rebuild, arrival
from django_task_locks.locks.requests import Claimant, Grant, Idle, Restored, Waiting
from tests.locks.conftest import PREFIX
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WEB, WORKER, Executor, hold, task
from tests.locks.test_rebuild import Fixed

Try = Callable[..., Restored | TaskLocksError]

RESTORED = [Restored("restored")]
TODAY = arrival(1_790_000_000_000)
FAR_AWAY = 9_000_000_000_000

# What may be lost of the task, of the hold.
TASK_KEYS = {
    "record": lambda keys: keys.request("t"),
    "exclusive lock": lambda keys: keys.lock("r"),
    "shared lock": lambda keys: keys.lock("s"),
    "registry": lambda keys: keys.owner(WORKER.owner),
    "slot": lambda keys: keys.slot(WORKER.owner),
}
HOLD_KEYS = {
    "record": lambda keys: keys.request("h"),
    "exclusive lock": lambda keys: keys.lock("x"),
    "shared lock": lambda keys: keys.lock("s"),
    "registry": lambda keys: keys.owner(WEB.owner),
}


@pytest.fixture
def reassertion(manager: LockManager) -> Reassertion:
    return Reassertion(manager)


@pytest.fixture
def running(manager: LockManager) -> Known:
    """A task that a worker runs, exclusive r and shared s."""
    return run(manager, task("t", "r", shared=["s"]))


@pytest.fixture
def holding(manager: LockManager) -> Known:
    """A hold, exclusive x and shared s."""
    return take(manager, hold("h", "x", shared=["s"]))


def run(manager: LockManager, request: LockRequest, by: Claimant = WORKER) -> Known:
    manager.request(request)
    claimed = Executor(manager, by).take()
    assert claimed.id == request.id
    return Known(request._replace(claimant=by), request.lane, claimed.token, TODAY)


def take(manager: LockManager, request: LockRequest) -> Known:
    granted = manager.request(request)
    assert isinstance(granted, Grant)
    return Known(request, None, granted.token, TODAY)


def lose(client: Redis, keys: Keys, known: Known, *names: str) -> None:
    """Its record and these locks."""
    client.delete(keys.request(known.request.id), *map(keys.lock, names))


def missing(reassertion: Reassertion, *known: Known) -> set[str]:
    return reassertion.verify(known).missing


def without_times(stored: dict[str, Value], keys: Keys, id: str) -> dict[str, Value]:
    """But for the counter, and the record, whose time and place are others afterwards."""
    return {key: value for key, value in stored.items() if key not in (keys.seq, keys.request(id))}


class TestLooking:
    def test_what_is_whole_is_not_missing(
        self, reassertion: Reassertion, running: Known, holding: Known
    ) -> None:
        assert missing(reassertion, running, holding) == set()

    def test_a_lock_shared_with_nobody_is_whole_lost_and_restored(
        self, reassertion: Reassertion, manager: LockManager, redis_client: Redis, keys: Keys
    ) -> None:
        """It is a plain value, where one shared with others is a set."""
        take(manager, hold("before", "x"))
        alone = take(manager, hold("h", "y", shared=["s"]))
        assert redis_client.get(keys.lock("s")) == f"{SOLE}h".encode()

        assert missing(reassertion, alone) == set()
        redis_client.delete(keys.lock("s"))
        assert missing(reassertion, alone) == {"h"}
        assert reassertion.restore([alone], FAR_AWAY) == RESTORED
        assert missing(reassertion, alone) == set()

    @pytest.mark.parametrize("lost", TASK_KEYS)
    def test_whatever_a_task_has_lost_is_seen(
        self, lost: str, reassertion: Reassertion, running: Known, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.delete(TASK_KEYS[lost](keys))
        assert missing(reassertion, running) == {"t"}

    @pytest.mark.parametrize("lost", HOLD_KEYS)
    def test_whatever_a_hold_has_lost_is_seen(
        self, lost: str, reassertion: Reassertion, holding: Known, redis_client: Redis, keys: Keys
    ) -> None:
        redis_client.delete(HOLD_KEYS[lost](keys))
        assert missing(reassertion, holding) == {"h"}

    def test_a_lock_that_somebody_else_has_is_seen(
        self, reassertion: Reassertion, manager: LockManager, holding: Known, keys: Keys
    ) -> None:
        manager.client.delete(keys.lock("x"))
        take(manager, hold("rival", "x"))
        assert missing(reassertion, holding) == {"h"}

    def test_another_claim_is_another_request(
        self, reassertion: Reassertion, running: Known
    ) -> None:
        assert missing(reassertion, replace(running, token=(running.token or 0) + 1)) == {"t"}

    def test_it_changes_nothing_and_tells_the_servers_time(
        self, reassertion: Reassertion, running: Known, stored: Callable[[], dict[str, Value]]
    ) -> None:
        before = stored()
        assert abs(reassertion.verify([]).at - time.time() * 1000) < 5_000
        reassertion.verify([running])
        assert stored() == before

    def test_thousands_take_one_round_trip(
        self, reassertion: Reassertion, manager: LockManager
    ) -> None:
        known = [take(manager, hold(f"h{number}", f"r{number}")) for number in range(1_000)]
        others = [take(manager, hold("w", shared=["s"], by=OTHER_WORKER))]
        manager.client.delete(manager.keys.request("h777"))
        assert missing(reassertion, *known, *others) == {"h777"}


class TestRestoring:
    @pytest.mark.parametrize("lost", TASK_KEYS)
    def test_a_task_has_everything_again(
        self,
        lost: str,
        reassertion: Reassertion,
        manager: LockManager,
        running: Known,
        keys: Keys,
        stored: Callable[[], dict[str, Value]],
    ) -> None:
        before, info = without_times(stored(), keys, "t"), manager.inspect_request("t")
        manager.client.delete(TASK_KEYS[lost](keys))

        assert reassertion.restore([running], FAR_AWAY) == RESTORED

        assert without_times(stored(), keys, "t") == before
        found = manager.inspect_request("t")
        assert found is not None
        assert info is not None
        assert replace(found, since=info.since, score=info.score) == info
        assert missing(reassertion, running) == set()

    @pytest.mark.parametrize("lost", HOLD_KEYS)
    def test_a_hold_has_everything_again(
        self,
        lost: str,
        reassertion: Reassertion,
        manager: LockManager,
        holding: Known,
        keys: Keys,
        stored: Callable[[], dict[str, Value]],
    ) -> None:
        before = without_times(stored(), keys, "h")
        manager.client.delete(HOLD_KEYS[lost](keys))

        assert reassertion.restore([holding], FAR_AWAY) == RESTORED

        assert without_times(stored(), keys, "h") == before
        assert missing(reassertion, holding) == set()
        assert manager.release("h", owner=WEB.owner).is_done

    def test_what_is_whole_stays_as_it_is(
        self,
        reassertion: Reassertion,
        running: Known,
        holding: Known,
        keys: Keys,
        stored: Callable[[], dict[str, Value]],
    ) -> None:
        before = stored()
        assert reassertion.restore([running, holding], FAR_AWAY) == 2 * RESTORED
        assert stored() | {keys.seq: ""} == before | {keys.seq: ""}

    def test_its_release_hands_over_to_who_waits(
        self, reassertion: Reassertion, manager: LockManager, running: Known, keys: Keys
    ) -> None:
        manager.request(hold("next", "r"))
        lose(manager.client, keys, running, "r", "s")
        assert reassertion.restore([running], FAR_AWAY) == RESTORED
        assert isinstance(manager.request(hold("next", "r")), Waiting)
        assert isinstance(manager.request(hold("last", "s")), Waiting)
        assert manager.release("t", token=running.token).granted == ("next", "last")

    def test_a_grant_that_nobody_has_claimed_is_sent_back(
        self, reassertion: Reassertion, manager: LockManager, running: Known, keys: Keys
    ) -> None:
        lose(manager.client, keys, running, "r", "s")
        manager.request(task("rival", "r", "other"))
        manager.request(task("reader", shared=["s"]))

        assert reassertion.restore([running], FAR_AWAY) == RESTORED

        assert manager.inspect_request("rival").state == "waiting"  # type: ignore[union-attr]
        assert manager.inspect_request("reader").state == "granted"  # type: ignore[union-attr]
        assert manager.release("t", token=running.token).granted == ("rival",)

    def test_tokens_go_on_above_its_own(
        self, reassertion: Reassertion, manager: LockManager, holding: Known, keys: Keys
    ) -> None:
        lose(manager.client, keys, holding, "x")
        manager.client.delete(keys.seq)
        known = replace(holding, token=1_000)
        assert reassertion.restore([known], FAR_AWAY) == RESTORED
        after = take(manager, hold("after", "y"))
        assert (after.token or 0) > 1_000


class TestNotRestoring:
    """Nothing is changed then."""

    @pytest.fixture
    def refused(self, reassertion: Reassertion, stored: Callable[[], dict[str, Value]]) -> Try:
        def refused(known: Known, until: int = FAR_AWAY) -> Restored | TaskLocksError:
            before = stored()
            [outcome] = reassertion.restore([known], until)
            assert stored() == before
            return outcome

        return refused

    def test_another_holder_excludes_it(
        self,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, running, "r")
        take(manager, hold("rival", "r"))
        assert refused(running) == Restored("conflict", "rival of web@3 excludes it")

    def test_shared_holders_exclude_an_exclusive_one(
        self,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        manager.client.delete(keys.lock("r"))
        take(manager, hold("reader", shared=["r"]))
        assert refused(running) == Restored("conflict", "reader of web@3 excludes it")

    def test_so_does_a_claimed_task(
        self,
        manager: LockManager,
        holding: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, holding, "x", "s")
        run(manager, task("t", "s"))
        assert refused(holding) == Restored("conflict", f"t of {WORKER.owner} excludes it")

    def test_so_does_one_that_has_lost_its_record_as_well(
        self,
        manager: LockManager,
        holding: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        """Its code may run, and its process has not restored it yet."""
        lose(manager.client, keys, holding, "x")
        lose(manager.client, keys, take(manager, hold("rival", "x")))
        assert refused(holding) == Restored("conflict", "rival of an unknown process excludes it")

    def test_it_was_handed_back(
        self,
        manager: LockManager,
        running: Known,
        refused: Try,
    ) -> None:
        manager.requeue("t", owner=WORKER.owner, token=running.token)
        assert refused(running) == Restored("ended")

    def test_it_was_claimed_again(
        self,
        manager: LockManager,
        running: Known,
        refused: Try,
    ) -> None:
        manager.requeue("t", owner=WORKER.owner, token=running.token)
        Executor(manager, OTHER_WORKER).take()
        assert refused(running) == Restored("ended")

    def test_its_slot_has_gone_on_to_the_next(
        self,
        manager: LockManager,
        running: Known,
        refused: Try,
    ) -> None:
        manager.release("t", token=running.token)
        run(manager, task("next"))
        assert refused(running) == Restored("ended")

    def test_the_call_comes_too_late(
        self,
        reassertion: Reassertion,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, running, "r", "s")
        assert refused(running, reassertion.verify([]).at - 1) == Restored("late")

    def test_its_slot_has_a_successor(
        self,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, running, "r", "s")
        manager.retire(WORKER)
        assert isinstance(refused(running), StaleSlot)

    def test_something_foreign_is_in_its_place(
        self,
        reassertion: Reassertion,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, running, "r")
        manager.client.hset(keys.lock("r"), "foreign", "1")
        assert missing(reassertion, running) == {"t"}
        assert isinstance(refused(running), ForeignValue)

    def test_a_grant_in_the_way_cannot_be_sent_back(
        self,
        manager: LockManager,
        running: Known,
        keys: Keys,
        refused: Try,
    ) -> None:
        lose(manager.client, keys, running, "r")
        manager.request(task("rival", "r", "other"))
        manager.client.set(keys.wait("other"), "foreign")
        assert refused(running) == Restored("conflict", "rival of queue/default excludes it")

    def test_its_process_was_declared_missing(
        self,
        reassertion: Reassertion,
        manager: LockManager,
        holding: Known,
        keys: Keys,
        stored: Callable[[], dict[str, Value]],
    ) -> None:
        lose(manager.client, keys, holding, "x")
        manager.close_owner(WEB.owner)
        before = stored()
        with pytest.raises(OwnerClosed):
            reassertion.restore([holding], FAR_AWAY)
        assert stored() == before

    def test_the_locks_are_being_rebuilt(
        self, redis_client: Redis, manager: LockManager, holding: Known
    ) -> None:
        assert Rebuild(manager).begin(Epoch(1))
        closed = Reassertion(LockManager(redis_client, PREFIX, epoch=Fixed(Epoch(1))))
        with pytest.raises(EpochLost):
            closed.verify([holding])
        with pytest.raises(EpochLost):
            closed.restore([holding], FAR_AWAY)


def test_a_release_of_what_is_not_restored_takes_nothing_from_others(
    manager: LockManager, holding: Known, keys: Keys
) -> None:
    manager.client.delete(keys.lock("x"))
    rival = take(manager, hold("rival", "x"))
    manager.release("h", owner=WEB.owner, token=holding.token)
    assert missing(Reassertion(manager), rival) == set()
    assert isinstance(manager.request(hold("next", "x")), Waiting)


def test_an_idle_executor_that_is_given_an_ended_task_again_releases_it(
    reassertion: Reassertion, manager: LockManager, running: Known, keys: Keys
) -> None:
    """Restored in the moment after its end: its token tells that it is an old claim."""
    manager.release("t", token=running.token)
    assert reassertion.restore([running], FAR_AWAY) == RESTORED
    executor = Executor(manager)
    again = executor.take()
    assert (again.id, again.token) == ("t", running.token)
    assert executor.advance(again) == Idle(None)
    assert manager.inspect_request("t") is None
