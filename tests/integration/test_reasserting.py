"""Redis loses one key while the epoch stands: the process whose request it was finds out, and
restores it, or is told that it cannot. What ends meanwhile stays ended.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.utils import timezone
from pytest_django import Settings

from django_task_locks import ahold, dispatch, epochs, hold, presence
from django_task_locks.exceptions import LockServiceUnavailable, TaskLocksError
from django_task_locks.execution import Outcome, record
from django_task_locks.lock_files import LockFile
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.protocol import Call
from django_task_locks.locks.requests import Claimant, Grant, Waiting
from django_task_locks.models import AppStatus, State, Task
from django_task_locks.presence import Presence
from django_task_locks.reasserting import OwnHoldings, Watch
from django_task_locks.recovery import clean_up
from django_task_locks.signals import hold_lost
from django_task_locks.worker.guard import Board
from django_task_locks.worker.running import RunningTasks
from tests.factories import AppStatusFactory
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import rolled_back
from tests.locks.snapshot import snapshot
from tests.support.processes import refreshed, wait_until
from tests.support.redis_state import assert_nothing_is_left, leftovers
from tests.testapp import tasks

LOST = {
    "record": lambda keys, id, resource: [keys.request(id)],
    "lock": lambda keys, id, resource: [keys.lock(resource)],
    "record and lock": lambda keys, id, resource: [keys.request(id), keys.lock(resource)],
}


def lose(locks: LockManager, id: str, resource: str, what: str = "record and lock") -> None:
    assert locks.client.delete(*LOST[what](locks.keys, id, resource))


def is_whole(locks: LockManager, id: str, resource: str) -> bool:
    found = locks.inspect_request(id)
    holders = [holder.id for holder in locks.inspect_resource(resource).holders]
    return found is not None and found.state == "held" and holders == [id]


@pytest.fixture
def told() -> Iterator[list[tuple[Any, str]]]:
    """Each hold that was told to be lost, and why."""
    told: list[tuple[Any, str]] = []

    def note(held: Any, reason: str, **_: Any) -> None:
        told.append((held, reason))

    hold_lost.connect(note)
    yield told
    hold_lost.disconnect(note)


class TestAProcess:
    """With its heartbeat."""

    @pytest.mark.parametrize("what", LOST)
    def test_a_hold_is_held_again(
        self, what: str, locks: LockManager, told: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with hold("r") as held:
            lose(locks, held.id, "r", what)
            wait_until(lambda: is_whole(locks, held.id, "r"))
            assert held.is_held()
            assert isinstance(locks.request(rival("r")), Waiting)
        assert locks.inspect_request("rival").state == "held"  # type: ignore[union-attr]
        assert told == []
        assert f"request={held.id}" in caplog.text
        locks.release("rival")

    def test_an_immediate_task_in_a_transaction_has_its_locks_again(
        self, locks: LockManager
    ) -> None:
        def lose_and_wait() -> None:
            [id] = OwnHoldings().still_held([])
            lose(locks, id, "r")
            wait_until(lambda: is_whole(locks, id, "r"))

        if connection.vendor == "sqlite":
            pytest.skip("its one writer would keep the heartbeat waiting")
        _body.append(lose_and_wait)
        with transaction.atomic():
            task = dispatch(call, exclusive=["r"], immediate=True, deferred=False)
            assert is_whole(locks, str(task.pk), "r"), "until the transaction ends"
        assert refreshed(task).state == State.COMPLETED, refreshed(task).error
        assert leftovers(locks) == set()

    def test_an_immediate_task_whose_rival_holds_it_is_named_and_goes_on(
        self, locks: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        def lose_and_wait() -> None:
            [id] = OwnHoldings().still_held([])
            lose(locks, id, "r")
            assert isinstance(locks.request(rival("r")), Grant)
            wait_until(lambda: "runs without all" in caplog.text)
            locks.release("rival")
            wait_until(lambda: is_whole(locks, id, "r"))

        _body.append(lose_and_wait)
        task = dispatch(call, exclusive=["r"], immediate=True, deferred=False)
        assert task.state == State.COMPLETED, task.error
        [told] = [record for record in caplog.records if "runs without all" in record.message]
        assert str(task.pk) in told.message
        assert "rival of another@1" in told.message
        assert leftovers(locks) == set()

    def test_one_that_somebody_else_has_meanwhile_is_told_lost_once(
        self, locks: LockManager, told: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with hold(["r", "other"]) as held:
            lose(locks, held.id, "r", "lock")
            assert isinstance(locks.request(rival("r")), Grant)
            wait_until(lambda: told)
            assert not held.is_held()
            assert told == [(held, "rival of another@1 excludes it")]
            assert [holder.id for holder in locks.inspect_resource("other").holders] == [held.id], (
                "what it has it keeps: its code goes on"
            )
            beat_again()
            assert len(told) == 1
        assert [
            record.levelno for record in caplog.records if "hold has lost" in record.message
        ] == [logging.ERROR]
        assert is_whole(locks, "rival", "r")
        locks.release("rival")
        assert_nothing_is_left(locks)

    def test_what_waits_asks_again_by_itself(self, locks: LockManager) -> None:
        locks.request(rival("r"))
        held = threading.Event()

        def wait() -> None:
            with hold("r", timeout=20):
                held.set()
            connections.close_all()

        thread = threading.Thread(target=wait)
        thread.start()
        [waiter] = wait_until(lambda: locks.inspect_resource("r").waiters)
        locks.client.delete(locks.keys.request(waiter.id))
        wait_until(lambda: locks.inspect_request(waiter.id))
        locks.release("rival")
        assert held.wait(10)
        thread.join()


def rival(resource: str) -> LockRequest:
    return LockRequest(
        id="rival", exclusive=(resource,), claimant=Claimant(owner="another@1", ttl=60)
    )


def beat_again() -> None:
    """Returns after another heartbeat."""
    me = AppStatus.objects.get(pk=presence.present().status.pk)
    for _ in range(2):
        wait_until(lambda: AppStatus.objects.get(pk=me.pk).last_heartbeat > me.last_heartbeat)
        me.refresh_from_db()


_body: list[Callable[[], None]] = []


def call() -> None:
    _body.pop()()


# -- step by step ----------------------------------------------------------------------------------


class Meddled(LockManager):
    """Something happens just before or just after a restore is sent."""

    def __init__(self, locks: LockManager) -> None:
        super().__init__(locks.client, locks.keys.prefix, epoch=epochs.Keeper())
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None
        self.sent: list[Call[Any]] = []

    def run_many(self, calls: Any) -> list[Any | TaskLocksError]:
        if calls[0].script != "restore":
            return super().run_many(calls)
        self.sent += calls
        if self.before is not None:
            self.before()
        replies = super().run_many(calls)
        if self.after is not None:
            self.after()
        return replies


@pytest.fixture
def quick(settings: Settings, locks: LockManager) -> None:
    """Each call of `look` is a look."""
    settings.TASK_LOCKS = {
        **settings.TASK_LOCKS, "cleanup_interval": 0.1, "heartbeat_interval": 0.05, "ttl": 60
    }  # fmt: skip


class Scene:
    """A worker's heartbeat and its one executor, which runs a task."""

    def __init__(self, locks: LockManager, directory: Path, **options: Any) -> None:
        self.locks = Meddled(locks)
        self.worker = HandWorker(locks, AppStatusFactory.create())
        dispatch(tasks.fail, ["x"], exclusive=["r"], **options)
        self.task = self.worker.run()
        self.board = Board(1)
        self.board.set_task(0, self.task.pk.bytes, Board.BODY)
        status = self.worker.status
        self._present = Presence(status, LockFile(str(directory), status.owner))
        self.watch = Watch(RunningTasks(self._present, self.board, {0: 1}))

    @property
    def id(self) -> str:
        return str(self.task.pk)

    def lose(self) -> None:
        lose(self.locks, self.id, "r")

    def look(self) -> None:
        self.watch._next = 0.0
        self.watch.look(self.locks)

    def finish(self) -> None:
        """The outcome is committed; its release, too, as by the receiver."""
        record(self.task, Outcome.returned(None))

    def pass_the_time(self) -> None:
        """No copy of what was sent changes anything any more."""
        until = max(until for _, until in self.watch._restored.values())
        wait_until(lambda: server_ms(self.locks) > until)

    def close(self) -> None:
        self._present.lock_file.remove()


def server_ms(locks: LockManager) -> int:
    seconds, microseconds = locks.client.time()
    return int(seconds * 1000 + microseconds // 1000)


@pytest.fixture
def scene(quick: None, locks: LockManager, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(locks, tmp_path)
    yield scene
    scene.close()


def slots(scene: Scene) -> set[str]:
    """What the claims of a slot leave until its next one."""
    return {f"slot:{scene.worker.owner}"}


def stored(scene: Scene) -> dict[str, Any]:
    return snapshot(scene.locks.client, scene.locks.keys.prefix)


class TestARunningTask:
    def test_the_second_look_restores_it_with_its_token_and_slot(self, scene: Scene) -> None:
        before = info(scene.locks, scene.task)
        scene.lose()
        scene.look()
        assert scene.locks.inspect_request(scene.id) is None
        scene.look()
        found = info(scene.locks, scene.task)
        assert (found.owner, found.slot, found.token) == (before.owner, before.slot, before.token)
        assert is_whole(scene.locks, scene.id, "r")

    def test_what_is_there_is_only_looked_at(self, scene: Scene) -> None:
        before = stored(scene)
        for _ in range(3):
            scene.look()
        assert stored(scene) == before

    def test_what_was_claimed_since_the_first_look_is_not_touched(self, scene: Scene) -> None:
        """The same task, by another claim: that one's first look is still to come."""
        scene.lose()
        scene.look()
        Task.objects.filter(pk=scene.task.pk).update(lock_token=scene.task.lock_token + 5)
        scene.look()
        assert scene.locks.sent == []

    def test_one_that_has_not_started_yet_is_not_touched(self, scene: Scene) -> None:
        Task.objects.filter(pk=scene.task.pk).update(state=State.WAITING)
        scene.lose()
        for _ in range(3):
            scene.look()
        assert scene.locks.sent == []

    def test_one_that_has_ended_since_the_first_look_is_not_restored(self, scene: Scene) -> None:
        scene.lose()
        scene.look()
        scene.finish()
        scene.look()
        assert scene.locks.sent == []
        assert leftovers(scene.locks) == slots(scene)

    @pytest.mark.parametrize("what", LOST)
    def test_what_it_has_left_when_it_ends_is_freed(self, what: str, scene: Scene) -> None:
        lose(scene.locks, scene.id, "r", what)
        scene.look()
        scene.finish()
        scene.look()
        assert leftovers(scene.locks) <= slots(scene)

    def test_one_that_the_board_shows_half_written_is_not_freed(self, scene: Scene) -> None:
        lose(scene.locks, scene.id, "r", "record")
        scene.look()
        scene.board.set_task(0, bytes(8) + scene.task.pk.bytes[8:], Board.BODY)
        scene.look()
        assert [holder.id for holder in scene.locks.inspect_resource("r").holders] == [scene.id]

    def test_one_that_ends_before_it_is_restored_is_released(self, scene: Scene) -> None:
        scene.lose()
        scene.look()
        scene.locks.before = scene.finish
        scene.look()
        assert scene.locks.sent
        assert leftovers(scene.locks) == set()

    def test_one_that_ends_when_it_was_restored_is_released(self, scene: Scene) -> None:
        scene.lose()
        scene.look()
        scene.locks.after = scene.finish
        scene.look()
        assert leftovers(scene.locks) == set()

    def test_one_that_ends_later_releases_itself(self, scene: Scene) -> None:
        scene.lose()
        scene.look()
        scene.look()
        scene.finish()
        assert leftovers(scene.locks) == set()

    def test_one_that_ends_while_the_answer_is_lost_is_released_by_a_later_look(
        self, scene: Scene
    ) -> None:
        def cut() -> None:
            raise LockServiceUnavailable("the answer is lost")

        scene.lose()
        scene.look()
        scene.locks.after = cut
        with pytest.raises(LockServiceUnavailable):
            scene.look()
        Task.objects.filter(pk=scene.task.pk).update(state=State.COMPLETED, app_lock=None)
        assert is_whole(scene.locks, scene.id, "r"), "its release came before it was restored"
        scene.look()
        assert leftovers(scene.locks) == set()

    def test_a_copy_of_the_call_that_comes_late_leaves_nothing(self, scene: Scene) -> None:
        scene.lose()
        scene.look()
        scene.look()
        scene.finish()
        assert LockManager.run_many(scene.locks, scene.locks.sent)
        assert is_whole(scene.locks, scene.id, "r"), "in time to do something"
        scene.pass_the_time()
        scene.look()
        assert not scene.watch.is_at_work
        LockManager.run_many(scene.locks, scene.locks.sent)
        assert leftovers(scene.locks) == set()

    def test_the_claim_of_another_task_in_its_slot_stays(
        self, scene: Scene, locks: LockManager
    ) -> None:
        def go_on() -> None:
            scene.finish()
            dispatch(tasks.record, exclusive=["next"])
            scene.worker.run()

        scene.lose()
        scene.look()
        scene.locks.before = go_on
        scene.look()
        following = Task.objects.get(state=State.RUNNING)
        assert locks.slots(scene.worker.owner) == {"0": str(following.pk)}
        assert is_whole(locks, str(following.pk), "next")
        assert locks.inspect_request(scene.id) is None

    def test_one_that_is_put_back_meanwhile_runs_again(
        self, scene: Scene, locks: LockManager
    ) -> None:
        """Its attempt has failed; its request was not there to be handed back."""
        scene.lose()
        scene.look()
        scene.locks.before = lambda: scene.task.put_back(
            token=scene.task.lock_token, error={"message": "no route"}
        )
        scene.look()
        assert locks.registry(scene.worker.owner) == set()
        clean_up()
        assert scene.worker.claim().id == scene.id

    def test_one_whose_rival_runs_goes_on_and_is_told_once(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.lose()
        other = HandWorker(scene.locks, AppStatusFactory.create())
        dispatch(tasks.record, exclusive=["r"])
        running = other.run()
        for _ in range(4):
            scene.look()
        [told] = [record for record in caplog.records if "runs without all" in record.message]
        assert told.levelno == logging.ERROR
        assert scene.id in told.message
        assert str(running.pk) in told.message
        scene.finish()
        assert is_whole(scene.locks, str(running.pk), "r")

    def test_when_the_rival_has_ended_it_has_its_locks_again(self, scene: Scene) -> None:
        scene.lose()
        other = HandWorker(scene.locks, AppStatusFactory.create())
        dispatch(tasks.record, exclusive=["r"])
        running = other.run()
        for _ in range(3):
            scene.look()
        record(running, Outcome.returned(None))
        scene.look()
        assert is_whole(scene.locks, scene.id, "r")


class TestWhatEndsWithoutItsRecord:
    """Before anybody has found out, or could restore it: nothing of it keeps others waiting."""

    @pytest.mark.parametrize("what", LOST)
    def test_a_hold_leaves_nothing(self, what: str, locks: LockManager) -> None:
        with hold("r", shared=["s"]) as held:
            lose(locks, held.id, "r", what)
        assert leftovers(locks) == set()

    @pytest.mark.parametrize("what", LOST)
    def test_a_hold_of_a_coroutine_leaves_nothing(self, what: str, locks: LockManager) -> None:
        async def use() -> None:
            async with ahold("r", shared=["s"]) as held:
                await sync_to_async(lose)(locks, held.id, "r", what)

        async_to_sync(use)()
        assert leftovers(locks) == set()

    def test_who_waits_for_it_goes_on(self, locks: LockManager) -> None:
        with hold("r") as held:
            assert isinstance(locks.request(rival("r")), Waiting)
            lose(locks, held.id, "r", "record")
        assert is_whole(locks, "rival", "r")
        locks.release("rival")

    def test_an_immediate_task_that_is_rolled_back_leaves_nothing(self, locks: LockManager) -> None:
        with rolled_back():
            task = dispatch(tasks.record, exclusive=["r"], immediate=True, deferred=False)
            lose(locks, str(task.pk), "r", "record")
        assert leftovers(locks) == set()

    @pytest.mark.parametrize("what", LOST)
    def test_clean_up_frees_what_a_task_has_left(self, what: str, scene: Scene) -> None:
        lose(scene.locks, scene.id, "r", what)
        scene.finish()
        Task.objects.update(finished_at=timezone.now() - timedelta(minutes=2))
        assert clean_up().failures == []
        scene.locks.forget_owner(scene.worker.owner)  # its slot goes with its next claim, or so
        assert leftovers(scene.locks) == set()

    def test_a_hold_that_was_told_lost_leaves_nothing(
        self, locks: LockManager, told: list[Any]
    ) -> None:
        with hold(["r", "other"]) as held:
            lose(locks, held.id, "r")
            locks.request(rival("r"))
            wait_until(lambda: told)
        assert locks.inspect_resource("other").holder_count == 0
        assert is_whole(locks, "rival", "r")
        locks.release("rival")
        assert_nothing_is_left(locks)


class TestAHold:
    def test_one_that_ends_while_it_is_restored_is_released(
        self, quick: None, locks: LockManager
    ) -> None:
        meddled, watch, ended = Meddled(locks), Watch(OwnHoldings()), ExitStack()
        held = ended.enter_context(hold("r"))
        lose(meddled, held.id, "r")
        meddled.before = ended.close
        for _ in range(2):
            watch._next = 0.0
            watch.look(meddled)
        assert [call.arguments[0] for call in meddled.sent] == [held.id]
        assert leftovers(meddled) == set()

    def test_one_that_ends_between_the_looks_is_not_restored(
        self, quick: None, locks: LockManager
    ) -> None:
        meddled, watch = Meddled(locks), Watch(OwnHoldings())
        with hold("r") as held:
            lose(meddled, held.id, "r")
            watch._next = 0.0
            watch.look(meddled)
        watch._next = 0.0
        watch.look(meddled)
        assert meddled.sent == []
        assert leftovers(meddled) == set()
