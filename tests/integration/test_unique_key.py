"""unique_key: one incomplete task with a key at any time, whoever dispatches, however it ends."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_task_locks import adispatch, cancel_task, dispatch, dispatch_many, recovery
from django_task_locks.exceptions import InvalidTask, UniqueKeyTaken
from django_task_locks.inserting import key_claim
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.settling import settle_task
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.by_hand import HandWorker, info
from tests.integration.transactions import at_once, elsewhere, rolled_back
from tests.support.processes import message, refreshed
from tests.support.redis_state import leftovers
from tests.testapp import tasks

Dispatch = Callable[..., Task]


@pytest.fixture(params=["dispatch", "adispatch"])
def dispatched(request: pytest.FixtureRequest) -> Dispatch:
    """Both of them, called in the same way, with the key "k"; the task has resource "r"."""
    function: Dispatch = dispatch if request.param == "dispatch" else async_to_sync(adispatch)

    def run(**kwargs: Any) -> Task:
        return function(tasks.record, **{"unique_key": "k", "exclusive": "r", **kwargs})

    return run


class TestWhileItIsWaiting:
    def test_the_present_task_is_returned(self, locks: LockManager, dispatched: Dispatch) -> None:
        first = dispatched()

        assert dispatched() == first
        assert Task.objects.count() == 1

    def test_raise_names_the_present_task(self, locks: LockManager, dispatched: Dispatch) -> None:
        first = dispatched()

        with pytest.raises(UniqueKeyTaken, match=f"'k' is taken by task {first.pk}") as raised:
            dispatched(on_conflict="raise")

        assert raised.value.task == first
        assert "waiting" in str(raised.value)
        assert Task.objects.count() == 1

    def test_replace_cancels_it_and_dispatches_the_new_one(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        first = dispatched()

        second = dispatched(on_conflict="replace")

        assert refreshed(first).state == State.CANCELED
        assert message(first) == f"Replaced by task {second.pk}."
        assert refreshed(second).state == State.WAITING
        assert locks.inspect_request(str(first.pk)) is None
        assert info(locks, second).state == "granted"

    def test_other_keys_and_tasks_without_one_are_not_concerned(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        found = {dispatched(unique_key=key).pk for key in ("k", "K", "k ", "é", "e\u0301")}
        found |= {dispatched(unique_key=None).pk for _ in range(2)}

        assert len(found) == 7

    def test_another_function_is_concerned(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, unique_key="k")

        assert dispatch(tasks.add, [1], unique_key="k") == first


class TestWhileItRuns:
    @pytest.fixture
    def running(self, locks: LockManager) -> Task:
        dispatch(tasks.record, exclusive="r", unique_key="k")
        return HandWorker(locks).run()

    def test_it_is_returned(self, running: Task, dispatched: Dispatch) -> None:
        assert dispatched() == running

    @pytest.mark.parametrize("on_conflict", ["raise", "replace"])
    def test_it_is_not_replaced(
        self, running: Task, dispatched: Dispatch, on_conflict: str
    ) -> None:
        with pytest.raises(UniqueKeyTaken, match="is running"):
            dispatched(on_conflict=on_conflict)

        assert refreshed(running).state == State.RUNNING
        assert Task.objects.count() == 1

    def test_while_it_is_canceling_the_key_is_taken(
        self, running: Task, dispatched: Dispatch
    ) -> None:
        cancel_task(running)

        with pytest.raises(UniqueKeyTaken, match="is canceling"):
            dispatched(on_conflict="raise")


def complete(task: Task) -> None:
    task.finish(State.COMPLETED, token=task.lock_token)


def fail(task: Task) -> None:
    task.finish(State.FAILED, token=task.lock_token)


def cancel(task: Task) -> None:
    cancel_task(task)
    task.finish(State.CANCELED, token=task.lock_token, sources=[State.CANCELING])


def lose_its_process(task: Task) -> None:
    assert settle_task(task, "gone")


def lose_it_while_canceling(task: Task) -> None:
    cancel_task(task)
    assert settle_task(refreshed(task), "gone")


def past_the_state_machine(task: Task) -> None:
    Task.objects.filter(pk=task.pk).update(state=State.FAILED, app_lock=None)


class TestEnd:
    @pytest.mark.parametrize(
        "end",
        [
            complete,
            fail,
            cancel,
            lose_its_process,
            lose_it_while_canceling,
            past_the_state_machine,
            Task.delete,
        ],
    )
    @pytest.mark.parametrize("on_conflict", ["return", "raise", "replace"])
    def test_whichever_way_it_ends_the_key_is_free(
        self, locks: LockManager, end: Callable[[Task], None], on_conflict: str
    ) -> None:
        first = dispatch(tasks.record, unique_key="k")
        first = HandWorker(locks).run()
        end(first)

        second = dispatch(tasks.record, unique_key="k", on_conflict=on_conflict)

        assert second.pk != first.pk
        assert refreshed(second).key_claim == key_claim("k")
        assert not Task.objects.filter(pk=first.pk, key_claim__isnull=False).exists()

    def test_cancel_of_one_that_waits_frees_it(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, unique_key="k")
        cancel_task(first)

        assert dispatch(tasks.record, unique_key="k") != first

    def test_another_attempt_keeps_it(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, unique_key="k", on_worker_loss="requeue", max_attempts=2)
        worker = HandWorker(locks, AppStatusFactory.create(stale=True))
        worker.run()
        recovery.clean_up()

        assert refreshed(first).state == State.WAITING
        assert dispatch(tasks.record, unique_key="k") == first

    def test_the_key_stays_visible(self, locks: LockManager) -> None:
        dispatch(tasks.record, unique_key="k")
        task = HandWorker(locks).run()
        complete(task)

        assert refreshed(task).unique_key == "k"


class TestTransaction:
    def test_rollback_frees_the_key(self, locks: LockManager) -> None:
        with rolled_back():
            dispatch(tasks.record, unique_key="k")

        assert dispatch(tasks.record, unique_key="k") == Task.objects.get()

    def test_the_conflict_leaves_the_transaction_usable(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, unique_key="k")

        with transaction.atomic():
            assert dispatch(tasks.record, unique_key="k") == first
            with pytest.raises(UniqueKeyTaken):
                dispatch(tasks.record, unique_key="k", on_conflict="raise")
            other = dispatch(tasks.record)

        assert {first, other} == set(Task.objects.all())

    def test_twice_in_one_transaction_is_once(self, locks: LockManager) -> None:
        with transaction.atomic():
            first, second = (dispatch(tasks.record, unique_key="k") for _ in range(2))

        assert first == second == Task.objects.get()
        assert info(locks, first).state == "granted"

    def test_rollback_brings_the_replaced_one_back(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, exclusive="r", unique_key="k")

        with rolled_back():
            dispatch(tasks.record, exclusive="r", unique_key="k", on_conflict="replace")

        assert refreshed(first).state == State.WAITING
        assert info(locks, first).state == "granted"
        assert Task.objects.count() == 1

    def test_replace_in_a_transaction_counts_at_its_commit(self, locks: LockManager) -> None:
        first = dispatch(tasks.record, exclusive="r", unique_key="k")

        with transaction.atomic():
            second = dispatch(tasks.record, exclusive="r", unique_key="k", on_conflict="replace")
            assert elsewhere(lambda: refreshed(first).state) == State.WAITING
            assert info(locks, first).state == "granted"

        assert locks.inspect_request(str(first.pk)) is None
        assert info(locks, second).state == "granted"


def replaced(key: str) -> Task | None:
    try:
        return dispatch(tasks.record, unique_key=key, on_conflict="replace")
    except UniqueKeyTaken:
        return None


class TestAtOnce:
    def test_many_that_come_together_get_one_task(self, locks: LockManager) -> None:
        for number in range(5):
            found = at_once(*[lambda n=number: dispatch(tasks.record, unique_key=f"k{n}")] * 6)

            assert len({task.pk for task in found}) == 1

        assert Task.objects.count() == 5

    def test_of_many_that_raise_one_goes_through(self, locks: LockManager) -> None:
        def attempt() -> Task | None:
            try:
                return dispatch(tasks.record, unique_key="k", on_conflict="raise")
            except UniqueKeyTaken:
                return None

        assert len(list(filter(None, at_once(*[attempt] * 6)))) == 1
        assert Task.objects.count() == 1

    def test_of_many_that_replace_the_last_one_stands(self, locks: LockManager) -> None:
        at_once(*[lambda: dispatch(tasks.record, unique_key="k", on_conflict="replace")] * 6)

        states = list(Task.objects.values_list("state", flat=True))
        assert sorted(states) == [State.CANCELED] * 5 + [State.WAITING]
        left = Task.objects.get(state=State.WAITING)
        assert locks.known([str(task.pk) for task in Task.objects.all()]) == {str(left.pk)}

    @pytest.mark.parametrize("many", [False, True])
    def test_what_is_replaced_before_its_request_is_sent_has_none_afterwards(
        self, locks: LockManager, many: bool
    ) -> None:
        with transaction.atomic():
            # It runs first of all, when the row is there for everybody.
            transaction.on_commit(
                lambda: dispatch(tasks.record, unique_key="k", on_conflict="replace")
            )
            if many:
                dispatch_many([{"func": tasks.record, "unique_key": "k"}])
            else:
                dispatch(tasks.record, unique_key="k")

        left = Task.objects.get(state=State.WAITING)
        assert Task.objects.filter(state=State.CANCELED).count() == 1
        assert locks.known([str(task.pk) for task in Task.objects.all()]) == {str(left.pk)}

    def test_replace_that_races_the_start_does_one_or_the_other(self, locks: LockManager) -> None:
        for number in range(10):
            first = dispatch(tasks.record, unique_key=f"k{number}")
            worker = HandWorker(locks)

            started, second = at_once(
                partial(worker.start, worker.claim()), partial(replaced, f"k{number}")
            )

            assert (started is None) == (second is not None)
            assert refreshed(first).state == (State.CANCELED if second else State.RUNNING)
            if second:
                cancel_task(second)


class TestImmediate:
    def test_it_takes_and_frees_the_key(self, locks: LockManager) -> None:
        seen = []

        def body() -> None:
            seen.append(Task.objects.get().key_claim)

        with doing(body):
            task = dispatch(bodies.run, unique_key="k", immediate=True)

        assert task.state == State.COMPLETED, task.error
        assert seen == [key_claim("k")]
        assert refreshed(task).key_claim is None

    @pytest.mark.parametrize("deferred", [True, False])
    def test_the_present_one_is_returned_and_nothing_is_held(
        self, locks: LockManager, dispatched: Dispatch, deferred: bool
    ) -> None:
        first = dispatched()

        assert dispatched(immediate=True, deferred=deferred, exclusive="other") == first
        assert dispatched(immediate=True, deferred=deferred) == first
        assert locks.inspect_resource("other").holder_count == 0
        assert Task.objects.count() == 1

    def test_the_one_that_waits_for_the_same_resource_is_replaced(
        self, locks: LockManager, dispatched: Dispatch
    ) -> None:
        first = dispatched()

        second = dispatched(immediate=True, on_conflict="replace", deferred=False)

        assert refreshed(first).state == State.CANCELED
        assert refreshed(second).state == State.COMPLETED
        assert leftovers(locks) == set()

    def test_key_that_is_taken_after_the_look_gives_the_locks_back(
        self, locks: LockManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from django_task_locks import immediate

        first = TaskFactory.create(unique_key="k", key_claim=key_claim("k"))
        monkeypatch.setattr(immediate, "make_room", lambda *args: None)

        with pytest.raises(UniqueKeyTaken):
            dispatch(
                tasks.record, unique_key="k", on_conflict="raise", immediate=True, exclusive="r"
            )

        assert refreshed(first).state == State.WAITING
        assert leftovers(locks) == set()

    @pytest.mark.parametrize("on_conflict", ["return", "replace"])
    def test_one_that_lacks_its_versions_here_replaces_nothing(
        self, locks: LockManager, dispatched: Dispatch, on_conflict: str
    ) -> None:
        first = dispatched()

        task = dispatched(
            immediate=True, deferred=False, versions={"app": "2"}, on_conflict=on_conflict
        )

        assert refreshed(first).state == State.WAITING
        assert (task == first) is (on_conflict == "return")
        assert task.state == (State.WAITING if task == first else State.CANCELED)

    def test_one_that_may_not_wait_and_cannot_run_takes_no_key(self, locks: LockManager) -> None:
        dispatch(tasks.record, exclusive="r")

        task = dispatch(tasks.record, exclusive="r", unique_key="k", immediate=True, deferred=False)

        assert task.state == State.CANCELED
        assert task.key_claim is None
        assert dispatch(tasks.record, unique_key="k").state == State.WAITING


def test_redis_that_is_away_changes_nothing(locks: LockManager, no_redis: str) -> None:
    first = dispatch(tasks.record, unique_key="k")

    assert dispatch(tasks.record, unique_key="k") == first
    second = dispatch(tasks.record, unique_key="k", on_conflict="replace")
    assert refreshed(first).state == State.CANCELED
    assert refreshed(second).state == State.WAITING


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"unique_key": ""}, "unique_key ''.*text of 1 to 255 characters"),
        ({"unique_key": "x" * 256}, "unique_key"),
        ({"unique_key": "a\0b"}, "unique_key"),
        ({"unique_key": "\ud800"}, "unique_key"),
        ({"unique_key": 7}, "unique_key 7"),
        ({"on_conflict": "ignore"}, "on_conflict 'ignore'.*'return', 'raise', 'replace'"),
    ],
)
def test_what_cannot_be_a_key_is_refused(
    locks: LockManager, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidTask, match=complaint):
        dispatch(tasks.record, **arguments)

    assert not Task.objects.exists()
    assert leftovers(locks) == set()
