"""A rebuild of the locks between database, Redis and the processes, step by step."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from django.db import connection, connections
from django.db.models import F
from django.db.models.signals import post_save
from django.utils import timezone
from pytest_django import Settings

from django_task_locks import dispatch, epochs, hold, own_requests, presence, rebuilding
from django_task_locks.connections import get_lock_manager, rebuilding_lock_manager
from django_task_locks.exceptions import LockServiceUnavailable, OwnerClosed
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.rebuild import Epoch, Rebuild
from django_task_locks.locks.requests import Claimant
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus, LockEpoch, State
from django_task_locks.own_requests import OwnRequest
from django_task_locks.signals import hold_lost
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import answered
from tests.testapp import tasks

T = TypeVar("T")

TTL = timedelta(seconds=1)


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Runs something in another thread."""
    with ThreadPoolExecutor(4) as pool:

        def start(do: Callable[[], T]) -> Future[T]:
            def run() -> T:
                try:
                    return do()
                finally:
                    connections.close_all()

            return pool.submit(run)

        yield start


def rows(status: AppStatus) -> Any:
    return AppStatus.objects.filter(pk=status.pk)


def is_closed() -> bool:
    """Whether a rebuild is under way."""
    found = Rebuild(rebuilding_lock_manager()).look()
    return bool(found.epoch.number) and not found.is_open


def beat_until(stop: threading.Event, status: AppStatus) -> None:
    """As a process that reaches the database alone."""
    while not stop.wait(0.1):
        rows(status).filter(missing_at=None).update(last_heartbeat=DatabaseNow())


class TestProcessesThatDoNotRestore:
    def test_one_that_beats_is_given_up_after_its_ttl_and_shut_out(
        self, locks: LockManager, elsewhere: Callable[..., Future[Any]]
    ) -> None:
        cut_off, stop = AppStatusFactory.create(ttl=TTL), threading.Event()
        beating = elsewhere(lambda: beat_until(stop, cut_off))
        locks.client.flushall()

        assert rebuilding.rebuild()

        stop.set()
        beating.result()
        last = rows(cut_off).annotate(silent=DatabaseNow() - F("last_heartbeat")).get()
        assert last.missing_at is not None
        assert last.missing_at - cut_off.started_at >= TTL
        assert timezone.now() - last.last_heartbeat >= TTL, "its guard has acted by now"
        claimant = Claimant(owner=cut_off.owner, ttl=1)
        with pytest.raises(OwnerClosed):
            get_lock_manager().request(LockRequest(id="h", exclusive=("r",), claimant=claimant))

    def test_one_that_is_silent_gets_the_time_for_a_heartbeat_after_an_outage(
        self, locks: LockManager, elsewhere: Callable[..., Future[Any]]
    ) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("there the lock file tells who lives")
        silent = AppStatusFactory.create(stale=True, ttl=timedelta(seconds=20))
        locks.client.flushall()
        rebuilt = elsewhere(rebuilding.rebuild)
        wait_until(is_closed)
        rows(silent).update(last_heartbeat=DatabaseNow())
        with pytest.raises(TimeoutError):
            rebuilt.result(5)
        rows(silent).update(epoch=LockEpoch.present().number)
        assert rebuilt.result(5)
        assert rows(silent).get().missing_at is None

    def test_a_dead_one_does_not_hold_it_up_for_long(self, locks: LockManager) -> None:
        AppStatusFactory.create(stale=True, ttl=TTL)
        AppStatusFactory.create(stale=True, declared=True, ttl=timedelta(hours=1))
        locks.client.flushall()
        assert rebuilding.rebuild()

    def test_another_loss_meanwhile_is_nobodys_fault(
        self, locks: LockManager, elsewhere: Callable[..., Future[Any]]
    ) -> None:
        behind = AppStatusFactory.create(ttl=timedelta(seconds=20))
        locks.client.flushall()
        rebuilt = elsewhere(rebuilding.rebuild)
        wait_until(is_closed)
        locks.client.flushall()
        assert rebuilt.result(5) is False
        assert rows(behind).get().missing_at is None
        rows(behind).delete()
        assert rebuilding.rebuild_if_wanted("next")


class TestLeaders:
    def test_two_at_once_come_to_one_epoch(
        self, locks: LockManager, elsewhere: Callable[..., Future[Any]]
    ) -> None:
        worker = HandWorker(locks, AppStatusFactory.create(epoch=1_000))
        dispatch(tasks.record, exclusive="r")
        running = worker.run()
        locks.client.flushall()
        leaders = [elsewhere(lambda: rebuilding.rebuild_if_wanted("a")) for _ in range(2)]
        leaders += [elsewhere(rebuilding.rebuild) for _ in range(2)]
        results = [leader.result(20) for leader in leaders]
        assert True in results
        wait_until(lambda: rebuilding.rebuild_if_wanted("b"))
        found = info(get_lock_manager(), running)
        assert (found.state, found.token) == ("held", running.lock_token)

    def test_one_that_is_shut_out_leaves_its_successor_the_lead(
        self, locks: LockManager, elsewhere: Callable[..., Future[Any]]
    ) -> None:
        AppStatusFactory.create(ttl=timedelta(seconds=20))
        locks.client.flushall()
        assert rebuilding.is_wanted("leader")
        rebuilt = elsewhere(lambda: rebuilding.rebuild("leader"))
        wait_until(is_closed)
        manager = rebuilding_lock_manager()
        manager.end_lead("rebuild")
        assert manager.lead("rebuild", "successor", 60)
        present = LockEpoch.present()
        LockEpoch.objects.update(number=present.number + 1)
        assert Rebuild(manager).begin(Epoch(present.number + 1, present.server))
        assert rebuilt.result(5) is False
        assert manager.lead_ends_in("rebuild") > 30

    @pytest.mark.parametrize("check_server", [True, False])
    def test_one_that_died_after_it_had_raised_the_number_is_followed(
        self, locks: LockManager, settings: Settings, check_server: bool
    ) -> None:
        settings.TASK_LOCKS = {**settings.TASK_LOCKS, "check_server": check_server}
        epochs.forget()
        assert rebuilding.rebuild()
        LockEpoch.objects.update(number=F("number") + 1)
        assert rebuilding.rebuild_if_wanted("successor")

    def test_what_starts_while_it_reads_the_rows_is_read_once(self, locks: LockManager) -> None:
        """In either state: waiting or running."""
        worker = HandWorker(locks, AppStatusFactory.create(epoch=1_000))
        claims = []
        for name in "abc":
            dispatch(tasks.record, exclusive=name)
            claims.append(worker.claim())
            worker.next_slot()
        started = []

        def start_another(sql: str, *_: Any) -> Any:
            execute, *rest = _[0], *_[1:]
            result = execute(sql, *rest)
            if claims and 'FROM "django_task_locks_task"' in sql and sql.startswith("SELECT"):
                started.append(worker.start(claims.pop()))
            return result

        with connection.execute_wrapper(
            lambda execute, sql, params, many, context: start_another(
                sql, execute, params, many, context
            )
        ):
            assert rebuilding.rebuild()
        assert started
        manager = get_lock_manager()
        assert all(manager.inspect_request(str(task.pk)) for task in started if task)

    def test_tokens_go_on_above_those_of_waiting_rows(self, locks: LockManager) -> None:
        ahead = 2**42
        handed_back = TaskFactory.create(exclusive=["r"], lock_token=ahead)
        locks.client.flushall()
        assert rebuilding.rebuild()
        claimed = HandWorker(get_lock_manager()).claim()
        assert claimed.id == str(handed_back.pk)
        assert claimed.token > ahead


class TestOwnRequests:
    def test_a_hold_is_restored_by_its_process_alone_and_held_again(
        self, locks: LockManager
    ) -> None:
        """Nobody has a worker here: the heartbeat of the process rebuilds."""
        with hold("r") as held:
            for _ in range(3):
                locks.client.flushall()
                wait_until(lambda: answered(held.is_held), what="that it is held")
            assert own_requests.known() == [held.id]
        wait_until(lambda: not get_lock_manager().inspect_resource("r").holders)

    def test_what_ended_while_the_locks_were_away_is_not_held_for_ever(
        self, locks: LockManager
    ) -> None:
        with hold("r"):
            locks.client.flushall()
        wait_until(rebuilding.are_locks_right)
        wait_until(lambda: not get_lock_manager().inspect_resource("r").holders)

    def test_one_that_was_told_lost_is_not_restored(self, locks: LockManager) -> None:
        told = []

        def note(held: Any, reason: str, **_: Any) -> None:
            told.append((held, reason))

        hold_lost.connect(note)
        try:
            with hold("r") as held:
                own_requests.tell_lost("in a test")
                before = LockEpoch.present()
                locks.client.flushall()
                wait_until(lambda: LockEpoch.present() != before and rebuilding.are_locks_right())
                assert answered(held.is_held) is False
        finally:
            hold_lost.disconnect(note)
        assert told == [(held, "in a test")]

    def test_one_whose_rival_holds_the_resource_is_told(self, locks: LockManager) -> None:
        """Its process comes too late: the locks were opened without it."""
        told = []

        def note(held: Any, reason: str, **_: Any) -> None:
            told.append(held)

        hold_lost.connect(note)
        try:
            with hold("r") as held:
                me = presence.present().status.pk
                locks.client.delete(locks.keys.request(held.id), locks.keys.lock("r"))
                AppStatus.objects.filter(pk=me).update(epoch=0)
                wait_until(lambda: told, what="the signal")
                assert not held.is_held()
        finally:
            hold_lost.disconnect(note)
        assert told == [held]

    def test_a_process_that_asks_before_it_is_registered_restores_first(
        self, locks: LockManager
    ) -> None:
        me = presence.prepare("late", AppStatus.AppType.OTHER)
        request = LockRequest(id="early", exclusive=("r",), claimant=me.claimant)
        own_requests.add(OwnRequest(request, waits=True, made_at=0.0))
        try:
            presence.register(me)
            assert rows(me.status).get().epoch == 0
        finally:
            own_requests.forget("early")
            me.lock_file.remove()

    def test_an_epoch_that_begins_while_a_process_registers_is_not_missed(
        self, locks: LockManager
    ) -> None:
        def begin_another(**_: Any) -> None:
            LockEpoch.objects.update(number=F("number") + 1)

        me = presence.prepare("late", AppStatus.AppType.OTHER)
        post_save.connect(begin_another, sender=AppStatus)
        try:
            presence.register(me)
        finally:
            post_save.disconnect(begin_another, sender=AppStatus)
            me.lock_file.remove()
        assert epochs.current() == str(LockEpoch.present())
        assert rows(me.status).get().epoch < LockEpoch.present().number

    def test_a_try_leaves_nothing_behind(self, locks: LockManager) -> None:
        """It may not wait, so it is not restored as one that waits."""
        with hold("outer"):
            present = presence.present()
            locks.client.flushall()
            with pytest.raises(LockServiceUnavailable), hold("inner", timeout=0):
                raise AssertionError("it was granted")
            wait_until(rebuilding.are_locks_right)
            assert get_lock_manager().registry(present.owner) == set(own_requests.known())


def test_a_process_looks_a_few_times_a_second_while_others_rebuild(locks: LockManager) -> None:
    with hold("r"):
        manager = rebuilding_lock_manager()
        assert manager.lead("rebuild", "another", 60)
        present = LockEpoch.present()
        epoch = Epoch(present.number + 1, present.server)
        LockEpoch.objects.update(number=epoch.number)
        assert Rebuild(manager).begin(epoch)
        me = AppStatus.objects.get()
        wait_until(lambda: rows(me).get().epoch == epoch.number, what="what it restores")
        locks.client.config_resetstat()
        seen = threading.Event()
        seen.wait(1.5)
        calls = locks.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls < 40
        Rebuild(manager).open(epoch)


def test_a_dispatch_without_a_heartbeat_arrives_by_itself(locks: LockManager) -> None:
    before = locks.client.get(locks.keys.epoch)
    assert before
    locks.client.flushall()
    task = dispatch(tasks.record, exclusive=["r"])
    assert AppStatus.objects.count() == 0
    assert rebuilding.rebuild()
    wait_until(lambda: answered(lambda: get_lock_manager().inspect_request(str(task.pk))))
    assert refreshed(task).state == State.WAITING
