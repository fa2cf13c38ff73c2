"""Redis has lost the locks, or some of them, or has what is no longer true: they are rebuilt."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest
from redis import Redis
from redis.connection import ConnectionPool

from django_task_locks.exceptions import EpochLost, ForeignValue
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.rebuild import Epoch, Known, Rebuild, arrival
from django_task_locks.locks.requests import Claimant, Claimed, Ended, Grant, Idle, Lane, Waiting
from django_task_locks.locks.transport import OwnConnections
from tests.locks.conftest import PREFIX
from tests.locks.scene import OPERATIONS, prepare
from tests.locks.snapshot import Value
from tests.locks.support import OTHER_WORKER, WORKER, Executor, hold, task
from tests.support.servers import ValkeyServer

FIRST = Epoch(1)
SECOND = Epoch(2)
TODAY = 1_790_000_000_000


def running(request: LockRequest, token: int, by: Claimant = WORKER) -> Known:
    """A task whose row says that this executor runs it."""
    assert request.claimant is None
    return Known(request._replace(claimant=by), request.lane, token, arrival(TODAY))


def waiting(request: LockRequest, number: int = 0) -> Known:
    """A task whose row says that it waits; they were dispatched in the order of the numbers."""
    return Known(request, request.lane, None, arrival(TODAY + number))


def held(request: LockRequest, token: int) -> Known:
    """A hold whose process says that it has it."""
    return Known(request, None, token, arrival(TODAY))


class Fixed:
    """An epoch that does not change."""

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch

    def value(self) -> str:
        return str(self.epoch)

    def is_out_of_date(self, value: str) -> bool:
        return False

    async def avalue(self) -> str:
        return self.value()

    async def ais_out_of_date(self, value: str) -> bool:
        return False


@pytest.fixture
def rebuild(manager: LockManager) -> Rebuild:
    return Rebuild(manager)


def rebuilt(rebuild: Rebuild, epoch: Epoch, known: Iterable[Known]) -> int:
    """Returns how many requests nobody had confirmed."""
    assert rebuild.begin(epoch)
    assert rebuild.restore(epoch, known) == []
    manager = rebuild._manager
    queues = [f"queue/{lane.queue}" for lane in manager.lanes().values()]
    swept = rebuild.sweep(epoch, [*manager.owners(), *queues])
    rebuild.open(epoch)
    return swept


def order(manager: LockManager, resource: str) -> list[str]:
    return [waiter.id for waiter in manager.inspect_resource(resource).waiters]


def without_times(stored: dict[str, Value], keys: Keys) -> dict[str, Value]:
    """What a rebuild may change: the epoch, and the counter, which follows the time."""
    passing = (keys.epoch, keys.seq, keys.wake(""))
    return {key: value for key, value in stored.items() if not key.startswith(passing)}


class TestAfterTheLossOfEverything:
    def test_what_ran_holds_its_locks_with_its_token(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [running(task("a", "r", shared=["s"]), 7)])

        found = manager.inspect_request("a")
        assert found is not None
        assert (found.state, found.owner, found.token) == ("held", WORKER.owner, 7)
        assert manager.registry(WORKER.owner) == {"a"}
        assert isinstance(manager.request(hold("b", "r")), Waiting)
        assert isinstance(manager.request(hold("c", "s")), Waiting)
        assert isinstance(manager.request(hold("d", shared=["s"])), Waiting), "behind c"

    def test_its_executor_goes_on_to_the_next_in_one_step(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [running(task("a", "r"), 7), waiting(task("b", "r"))])
        executor = Executor(manager)
        assert executor.claim() == Claimed("a", 7), "its slot still has it"
        following = executor.advance(Claimed("a", 7))
        assert isinstance(following, Claimed)
        assert following.id == "b"
        assert following.token > 7

    def test_what_its_code_holds_besides_does_not_take_its_slot(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [running(task("a", "r"), 7), held(hold("h", "s", by=WORKER), 8)])
        executor = Executor(manager)
        assert executor.claim() == Claimed("a", 7)
        assert executor.advance(Claimed("a", 7)) == Idle(None)
        assert manager.retire(WORKER) == ("h",), "it is settled with the slot all the same"

    def test_what_none_of_a_workers_executors_confirms_is_settled_with_a_dead_one(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        unknown = replace(WORKER, slot="")
        rows = [running(task("a", "r"), 7, unknown), running(task("b", "s"), 8, unknown)]
        confirmed = running(task("b", "s"), 8, replace(WORKER, slot="1.1"))
        rebuilt(rebuild, FIRST, [*rows, confirmed])
        assert manager.retire(WORKER) == ("a",)

    def test_order_is_that_of_priority_and_time_whatever_comes_back_first(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        known = [
            waiting(task("third", "r"), 2),
            waiting(task("first", "r", priority=1), 3),
            running(task("holder", "r"), 1),
            waiting(task("second", "r"), 1),
        ]
        rebuilt(rebuild, FIRST, known)
        assert order(manager, "r") == ["first", "second", "third"]

    def test_who_comes_afterwards_comes_last(self, manager: LockManager, rebuild: Rebuild) -> None:
        rebuilt(rebuild, FIRST, [running(task("a", "r"), 7), waiting(task("b", "r"))])
        manager.request(task("c", "r"))
        assert order(manager, "r") == ["b", "c"]

    def test_what_is_free_is_granted_when_it_opens_and_not_before(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        assert rebuild.begin(FIRST)
        rebuild.restore(FIRST, [waiting(task("a", "r")), waiting(task("b", shared=["s"]))])
        states = [manager.inspect_request(id).state for id in "ab"]  # type: ignore[union-attr]
        assert states == ["waiting", "waiting"]

        rebuild.open(FIRST)

        executor = Executor(manager)
        assert executor.take().id == "a"
        assert Executor(manager, OTHER_WORKER).take().id == "b"

    def test_thousands_are_granted_in_batches(self, redis_client: Redis, rebuild: Rebuild) -> None:
        small = LockManager(redis_client, PREFIX, batch=10)
        known = [waiting(task(f"t{number}", shared=["s"]), number) for number in range(95)]
        rebuilt(Rebuild(small), FIRST, known)
        assert small.inspect_resource("s").holder_count == 95
        assert small.inspect_resource("s").shared_waiter_count == 0

    def test_a_hold_that_waits_is_told_of_its_grant(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [Known(hold("h", "r"), None, None, arrival(TODAY))])
        granted = manager.wait_for_grant("h", 1)
        assert granted is not None
        assert manager.request(hold("h", "r")) == granted

    def test_a_task_whose_time_lies_ahead_takes_no_place(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [waiting(task("later", "r", run_after=4_000_000_000))])
        assert manager.inspect_request("later").state == "due"  # type: ignore[union-attr]
        assert isinstance(manager.request(hold("h", "r")), Grant)

    def test_tokens_go_on_above_those_of_a_server_whose_clock_was_ahead(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        ahead = arrival(4_000_000_000_000)
        rebuilt(rebuild, FIRST, [running(task("a", "r"), ahead)])
        after = manager.request(hold("h", "s"))
        assert isinstance(after, Grant)
        assert (after.token or 0) > ahead

    def test_tokens_go_on_above_those_that_others_know_of(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        ahead = arrival(4_000_000_000_000)
        assert rebuild.begin(FIRST)
        rebuild.open(FIRST, ahead)
        after = manager.request(hold("h", "s"))
        assert isinstance(after, Grant)
        assert (after.token or 0) > ahead

    def test_tokens_go_on_above_all_that_were_given(
        self, manager: LockManager, redis_client: Redis, rebuild: Rebuild
    ) -> None:
        rebuilt(rebuild, FIRST, [])
        before = manager.request(hold("a", "r"))
        redis_client.flushall()
        time.sleep(0.005)  # no loss is noticed and mended within a millisecond
        rebuilt(rebuild, SECOND, [])
        after = manager.request(hold("a", "r"))
        assert isinstance(before, Grant)
        assert isinstance(after, Grant)
        assert (after.token or 0) > (before.token or 0)


class TestWhatIsRightAlready:
    def test_it_stays_as_it_is(
        self,
        manager: LockManager,
        keys: Keys,
        rebuild: Rebuild,
        stored: Callable[[], dict[str, Value]],
    ) -> None:
        a = Executor(manager)
        for request in (task("a", "r", shared=["s"]), task("b", "r"), task("c", shared=["s"])):
            manager.request(request)
        claimed = a.take()
        manager.request(task("later", run_after=4_000_000_000))
        h = manager.request(hold("h", "x", shared=["s"]))
        manager.request(hold("w", "x"))
        before = stored()
        assert isinstance(h, Grant)
        assert h.token

        swept = rebuilt(
            rebuild,
            FIRST,
            [
                running(task("a", "r", shared=["s"]), claimed.token),
                waiting(task("b", "r")),
                waiting(task("c", shared=["s"])),
                waiting(task("later", run_after=4_000_000_000)),
                held(hold("h", "x", shared=["s"]), h.token),
                Known(hold("w", "x"), None, None, arrival(TODAY)),
            ],
        )

        assert swept == 0
        assert without_times(stored(), keys) == without_times(before, keys)

    def test_restoring_it_twice_changes_nothing_more(
        self, rebuild: Rebuild, stored: Callable[[], dict[str, Value]], keys: Keys
    ) -> None:
        known = [running(task("a", "r"), 7), waiting(task("b", "r")), held(hold("h", "x"), 8)]
        rebuild.begin(FIRST)
        rebuild.restore(FIRST, known)
        before = stored()
        rebuild.restore(FIRST, known)
        assert without_times(stored(), keys) == without_times(before, keys)


class TestOlderData:
    """A replica that lacks the last writes, or a dump of some time ago."""

    def test_what_has_ended_is_not_held_any_more(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        manager.request(hold("ended", "r", shared=["s"]))
        manager.request(task("next", "r"))
        assert rebuilt(rebuild, FIRST, [waiting(task("next", "r"))]) == 1
        assert manager.inspect_request("ended") is None
        assert Executor(manager).take().id == "next"
        assert isinstance(manager.request(hold("h", "s")), Grant)

    def test_its_successor_holds_what_it_left(self, manager: LockManager, rebuild: Rebuild) -> None:
        manager.request(hold("ended", "r", shared=["s"]))
        manager.request(hold("too", "t"))
        rebuilt(rebuild, FIRST, [running(task("now", "r", "s", shared=["t"]), 9)])
        for name in "rst":
            info = manager.inspect_resource(name)
            assert [holder.id for holder in info.holders] == ["now"]

    def test_a_grant_that_nobody_had_claimed_goes_back(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        manager.request(task("granted", "r"))
        rebuilt(rebuild, FIRST, [waiting(task("granted", "r")), running(task("now", "r"), 9)])
        assert manager.inspect_request("granted").state == "waiting"  # type: ignore[union-attr]
        manager.release("now", token=9)
        assert Executor(manager).take().id == "granted"

    def test_a_claim_that_never_started_goes_back_to_its_place(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        manager.request(task("a", "r"))
        manager.request(task("b", "r"))
        executor = Executor(manager)
        executor.take()
        rebuilt(rebuild, FIRST, [waiting(task("b", "r"), 1), waiting(task("a", "r"), 2)])
        assert manager.registry(WORKER.owner) == set()
        assert executor.take().id == "a"

    def test_a_newer_claim_counts(self, manager: LockManager, rebuild: Rebuild) -> None:
        manager.request(task("a", "r"))
        Executor(manager).take()
        rebuilt(rebuild, FIRST, [running(task("a", "r"), 1_000, OTHER_WORKER)])
        found = manager.inspect_request("a")
        assert found is not None
        assert (found.owner, found.token) == (OTHER_WORKER.owner, 1_000)
        assert manager.registry(WORKER.owner) == set()
        assert Executor(manager).claim() == Idle(None)

    def test_a_lock_without_a_request_is_overwritten(
        self, manager: LockManager, redis_client: Redis, keys: Keys, rebuild: Rebuild
    ) -> None:
        redis_client.set(keys.lock("r"), "-nobody")
        redis_client.sadd(keys.lock("s"), "nobody")
        rebuilt(rebuild, FIRST, [running(task("a", "r", "s"), 7)])
        assert redis_client.mget(keys.lock("r"), keys.lock("s")) == [b"-a", b"-a"]


class TestWhileItIsClosed:
    @pytest.fixture
    def closed(self, manager: LockManager, rebuild: Rebuild, redis_client: Redis) -> LockManager:
        """Of a process that has learned of the epoch which is being built."""
        prepare(manager)
        assert rebuild.begin(FIRST)
        return LockManager(redis_client, PREFIX, epoch=Fixed(FIRST))

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_every_operation_that_writes_is_refused_and_changes_nothing(
        self, closed: LockManager, name: str, stored: Callable[[], dict[str, Value]]
    ) -> None:
        before = stored()
        with pytest.raises(EpochLost, match="are rebuilt"):
            OPERATIONS[name](closed)
        assert stored() == before

    def test_another_epoch_is_refused_when_it_is_open(
        self, rebuild: Rebuild, redis_client: Redis
    ) -> None:
        rebuilt(rebuild, SECOND, [])
        with pytest.raises(EpochLost, match=r"found: 2:"):
            LockManager(redis_client, PREFIX, epoch=Fixed(FIRST)).request(task("a"))
        present = LockManager(redis_client, PREFIX, epoch=Fixed(SECOND))
        assert isinstance(present.request(task("a")), Grant)

    def test_a_flush_is_noticed_by_the_next_operation(
        self, rebuild: Rebuild, redis_client: Redis
    ) -> None:
        rebuilt(rebuild, FIRST, [])
        present = LockManager(redis_client, PREFIX, epoch=Fixed(FIRST))
        assert isinstance(present.request(hold("a", "r")), Grant)
        redis_client.flushall()
        with pytest.raises(EpochLost, match=r"found: 0:"):
            present.request(hold("b", "r"))
        assert redis_client.dbsize() == 0


class TestTwoRebuilds:
    def test_the_one_with_the_lower_number_is_shut_out_at_each_step(
        self, rebuild: Rebuild, stored: Callable[[], dict[str, Value]]
    ) -> None:
        assert rebuild.begin(FIRST)
        assert rebuild.begin(SECOND)
        before = stored()
        assert not rebuild.begin(FIRST)
        with pytest.raises(EpochLost):
            rebuild.restore(FIRST, [waiting(task("a", "r"))])
        with pytest.raises(EpochLost):
            rebuild.open(FIRST)
        assert stored() == before

    def test_the_one_that_finds_its_work_lost_stops(
        self, rebuild: Rebuild, redis_client: Redis
    ) -> None:
        assert rebuild.begin(FIRST)
        redis_client.flushall()
        with pytest.raises(EpochLost):
            rebuild.restore(FIRST, [waiting(task("a", "r"))])
        with pytest.raises(EpochLost):
            rebuild.open(FIRST)
        assert redis_client.dbsize() == 0

    def test_two_that_were_both_granted_the_same_are_told(self, rebuild: Rebuild) -> None:
        rebuild.begin(FIRST)
        first, second = running(task("a", "r"), 1), running(task("b", "r"), 2, OTHER_WORKER)
        assert rebuild.restore(FIRST, [first, second]) == [("b", "a of worker@1 excludes it")]

    def test_a_begin_that_is_repeated_keeps_what_was_restored(
        self, manager: LockManager, rebuild: Rebuild
    ) -> None:
        rebuild.begin(FIRST)
        rebuild.restore(FIRST, [running(task("a", "r"), 1)])
        assert rebuilt(rebuild, FIRST, []) == 0
        assert manager.inspect_request("a") is not None


class TestServer:
    """Own connections are made to the server alone that the epoch names; other clients have the
    server look."""

    @pytest.fixture
    def epoch(self, rebuild: Rebuild) -> Epoch:
        epoch = Epoch(1, rebuild.look().server)
        rebuilt(rebuild, epoch, [])
        return epoch

    @pytest.fixture
    def own(self, valkey: ValkeyServer) -> Iterator[OwnConnections]:
        transport = OwnConnections(ConnectionPool.from_url(valkey.url))
        yield transport
        transport.drop_connections()

    def test_it_is_recognized_by_its_run_id(
        self, redis_client: Redis, epoch: Epoch, own: OwnConnections
    ) -> None:
        assert epoch.server == redis_client.info("server")["run_id"]
        for client in (redis_client, own):
            manager = LockManager(client, PREFIX, epoch=Fixed(epoch))
            assert isinstance(manager.request(hold("a", "r")), Grant)
            assert manager.release("a") == Ended("done")

    def test_another_one_with_the_same_data_is_refused(
        self, redis_client: Redis, keys: Keys, epoch: Epoch, own: OwnConnections
    ) -> None:
        moved = Epoch(1, "0" * 40)
        redis_client.set(keys.epoch, str(moved))
        for client in (redis_client, own):
            manager = LockManager(client, PREFIX, epoch=Fixed(moved))
            with pytest.raises(EpochLost):
                manager.request(hold("a", "r"))
        with pytest.raises(EpochLost, match="has the run id"):
            LockManager(own, PREFIX, epoch=Fixed(moved)).owners()

    def test_a_connection_of_an_older_epoch_is_not_used_again(
        self, own: OwnConnections, redis_client: Redis, keys: Keys, epoch: Epoch
    ) -> None:
        LockManager(own, PREFIX, epoch=Fixed(epoch)).owners()
        (before,) = own._idle
        following = Epoch(2, epoch.server)
        redis_client.set(keys.epoch, str(following))
        LockManager(own, PREFIX, epoch=Fixed(following)).request(hold("a", "r"))
        (after,) = own._idle
        assert after is not before
        assert not before.connection.is_connected

    def test_a_server_that_hides_its_run_id_is_taken_for_the_right_one(
        self, redis_client: Redis, rebuild: Rebuild, own: OwnConnections
    ) -> None:
        rebuilt(rebuild, FIRST, [])
        for client in (redis_client, own):
            manager = LockManager(client, PREFIX, epoch=Fixed(FIRST))
            assert isinstance(manager.request(task("a", "r")), Grant)


@pytest.mark.parametrize(
    "key",
    [
        "epoch", "confirmed", "lanes", "owners", "seq", "due", "unsettled", "lock:r", "wait:all:r",
        "wait:x:r", "ready:default", "owner:worker@1", "slot:worker@1", "request:a", "lock:s",
    ],
)  # fmt: skip
def test_a_foreign_value_is_named_and_nothing_is_half_done(
    redis_client: Redis, rebuild: Rebuild, key: str, stored: Callable[[], dict[str, Value]]
) -> None:
    rebuild.begin(FIRST)
    name = Keys(PREFIX).base + key
    redis_client.delete(name)
    redis_client.rpush(name, "not ours")
    before = stored()
    with pytest.raises(ForeignValue, match=key):
        rebuild.restore(FIRST, [running(task("a", "r", shared=["s"]), 1)])
    assert stored() == before
    assert Lane().name == "default"
