"""The state machine of tasks: what may follow what, decided by one conditional UPDATE."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from django_task_locks.exceptions import InvalidTransition
from django_task_locks.models import AppStatus, Task
from django_task_locks.signals import task_state_changed
from django_task_locks.states import State
from tests.factories import AppStatusFactory, TaskFactory
from tests.integration.transactions import rolled_back
from tests.support.processes import refreshed

TOKEN = 7
FINAL = (State.COMPLETED, State.FAILED, State.CANCELED)

Change = tuple[Task, State, State]


def complete(task: Task) -> None:
    task.finish(State.COMPLETED, token=TOKEN, result=42)


def fail(task: Task) -> None:
    task.finish(State.FAILED, token=TOKEN)


def finish_cancel(task: Task) -> None:
    task.finish(State.CANCELED, token=TOKEN, sources=[State.CANCELING])


def fail_canceling(task: Task) -> None:
    task.finish(State.FAILED, token=TOKEN, sources=[State.CANCELING])


def start(task: Task) -> None:
    task.start(AppStatusFactory.create(), TOKEN + 1)


def put_back(task: Task) -> None:
    task.put_back(token=TOKEN)


OPERATIONS: dict[str, Callable[[Task], None]] = {
    "start": start,
    "complete": complete,
    "fail": fail,
    "request_cancel": Task.request_cancel,
    "finish_cancel": finish_cancel,
    "fail_canceling": fail_canceling,
    "put_back": put_back,
}

ALLOWED = {
    (State.WAITING, "start"): State.RUNNING,
    (State.WAITING, "request_cancel"): State.CANCELED,
    (State.RUNNING, "complete"): State.COMPLETED,
    (State.RUNNING, "fail"): State.FAILED,
    (State.RUNNING, "request_cancel"): State.CANCELING,
    (State.RUNNING, "put_back"): State.WAITING,
    (State.CANCELING, "finish_cancel"): State.CANCELED,
    (State.CANCELING, "fail_canceling"): State.FAILED,
}
REFUSED = [
    (state, operation)
    for state in State
    for operation in OPERATIONS
    if (state, operation) not in ALLOWED
]


def in_state(state: State, **fields: Any) -> Task:
    fields = {"lock_token": TOKEN, "state": state, **fields}
    if state in State.owned():
        return TaskFactory.create(running_by=AppStatusFactory.create(), **fields)
    return TaskFactory.create(**fields)


def row(task: Task) -> dict[str, Any]:
    return dict(Task.objects.filter(pk=task.pk).values().get())


@pytest.fixture
def changes() -> Iterator[list[Change]]:
    """What the signal has told, in order."""
    found: list[Change] = []

    def note(task: Task, old_state: State, new_state: State, **kwargs: Any) -> None:
        found.append((task, old_state, new_state))

    task_state_changed.connect(note)
    yield found
    task_state_changed.disconnect(note)


@pytest.mark.usefixtures("locks")
class TestAllowedChange:
    @pytest.mark.parametrize(("old", "operation"), ALLOWED)
    def test_is_written_and_told(self, old: State, operation: str, changes: list[Change]) -> None:
        task = in_state(old)

        OPERATIONS[operation](task)

        new = ALLOWED[old, operation]
        assert refreshed(task).state == task.state == new
        assert changes == [(task, old, new)]

    def test_start_names_the_process_and_its_claim(self) -> None:
        process = AppStatusFactory.create(name="worker-1")
        task = TaskFactory.create(lock_token=3)

        task.start(process, 4)

        assert (task.app_lock, task.worker_name, task.lock_token) == (process, "worker-1", 4)
        assert task.started_at == refreshed(task).started_at is not None
        assert refreshed(task).app_lock == process

    def test_finish_takes_the_owner_away_and_keeps_its_name(self) -> None:
        process = AppStatusFactory.create(name="worker-1")
        task = TaskFactory.create(running_by=process, lock_token=TOKEN)

        task.finish(State.COMPLETED, token=TOKEN, result={"a": [1]})

        found = refreshed(task)
        assert (found.app_lock, found.worker_name, found.result) == (None, "worker-1", {"a": [1]})
        assert found.finished_at == task.finished_at is not None

    def test_cancel_of_a_waiting_task_says_why_and_when(self) -> None:
        task = TaskFactory.create()

        task.request_cancel()

        found = refreshed(task)
        assert found.finished_at is not None
        assert (found.error or {})["message"] == "Canceled before it started."

    def test_putting_back_begins_another_attempt(self) -> None:
        task = TaskFactory.create(running_by=AppStatusFactory.create(), lock_token=TOKEN, attempt=2)

        task.put_back(token=TOKEN)

        found = refreshed(task)
        assert (found.attempt, task.attempt) == (3, 3)
        assert (found.app_lock, found.started_at) == (None, None)
        assert found.lock_token == TOKEN, "so that the lost claim cannot start it again"

    @pytest.mark.parametrize("look", [State.WAITING, State.RUNNING])
    def test_cancel_decides_by_the_row_and_not_by_an_earlier_look(
        self, look: State, changes: list[Change]
    ) -> None:
        task = in_state(State.RUNNING)
        stale = Task.objects.get(pk=task.pk)
        stale.state = look

        stale.request_cancel()

        assert changes == [(task, State.RUNNING, State.CANCELING)]


@pytest.mark.django_db
class TestRefusedChange:
    @pytest.mark.parametrize(("old", "operation"), REFUSED)
    def test_changes_nothing(self, old: State, operation: str) -> None:
        task = in_state(old)
        before, memory = row(task), dict(vars(task))

        with pytest.raises(InvalidTransition, match=str(task.pk)):
            OPERATIONS[operation](task)

        assert row(task) == before
        assert {**vars(task), "_state": None} == {**memory, "_state": None}
        assert not transaction.get_connection().run_on_commit, "nothing is told"

    @pytest.mark.parametrize("token", [TOKEN - 1, TOKEN])
    def test_claim_that_was_shut_out_cannot_start(self, token: int) -> None:
        task = in_state(State.WAITING)

        with pytest.raises(InvalidTransition, match=f"lock_token__lt={token}"):
            task.start(AppStatusFactory.create(), token)

        assert refreshed(task).state == State.WAITING

    @pytest.mark.parametrize("token", [TOKEN - 1, TOKEN + 1])
    @pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
    def test_another_claim_cannot_finish(self, state: State, token: int) -> None:
        task = in_state(State.RUNNING)

        with pytest.raises(InvalidTransition):
            task.finish(state, token=token)

        assert refreshed(task).state == State.RUNNING

    def test_another_claim_cannot_put_back(self) -> None:
        task = in_state(State.RUNNING)

        with pytest.raises(InvalidTransition):
            task.put_back(token=TOKEN - 1)

    def test_another_attempt_cannot_be_put_back(self) -> None:
        task = in_state(State.RUNNING)
        stale = Task.objects.get(pk=task.pk)
        Task.objects.filter(pk=task.pk).update(attempt=2)

        with pytest.raises(InvalidTransition):
            stale.put_back(token=TOKEN)

        assert refreshed(task).attempt == 2

    def test_row_that_is_gone_cannot_change(self) -> None:
        task = in_state(State.RUNNING)
        Task.objects.all().delete()

        with pytest.raises(InvalidTransition):
            complete(task)

        assert not Task.objects.exists()

    def test_message_tells_task_states_and_conditions(self) -> None:
        task = in_state(State.FAILED)

        with pytest.raises(InvalidTransition) as caught:
            complete(task)

        assert str(caught.value) == (
            f"task {task.pk} cannot become completed: it is not running, lock_token={TOKEN}"
        )


@pytest.mark.django_db
class TestFence:
    def test_token_is_written_once(self) -> None:
        task = in_state(State.WAITING)

        assert task.fence(TOKEN + 1)
        assert not task.fence(TOKEN + 1)
        assert not task.fence(TOKEN)
        assert refreshed(task).lock_token == TOKEN + 1

    @pytest.mark.parametrize("state", [state for state in State if state != State.WAITING])
    def test_task_that_does_not_wait_is_left_alone(self, state: State) -> None:
        task = in_state(state)

        assert not task.fence(TOKEN + 1)
        assert refreshed(task).lock_token == TOKEN


@pytest.mark.usefixtures("locks")
class TestSignal:
    def test_comes_after_the_commit(self, changes: list[Change]) -> None:
        task = in_state(State.RUNNING)

        with transaction.atomic():
            with transaction.atomic():
                complete(task)
            assert changes == []

        assert changes == [(task, State.RUNNING, State.COMPLETED)]

    def test_does_not_come_after_a_rollback(self, changes: list[Change]) -> None:
        task = in_state(State.RUNNING)

        with rolled_back():
            complete(task)

        assert changes == []
        assert refreshed(task).state == State.RUNNING

    def test_does_not_come_for_a_savepoint_that_was_rolled_back(
        self, changes: list[Change]
    ) -> None:
        task, other = in_state(State.RUNNING), in_state(State.RUNNING)

        with transaction.atomic():
            with rolled_back():
                complete(task)
            fail(other)

        assert changes == [(other, State.RUNNING, State.FAILED)]

    def test_tells_each_change_of_one_transaction(self, changes: list[Change]) -> None:
        task = in_state(State.WAITING)

        with transaction.atomic():
            start(task)
            task.finish(State.FAILED, token=TOKEN + 1)

        assert [(old, new) for _, old, new in changes] == [
            (State.WAITING, State.RUNNING),
            (State.RUNNING, State.FAILED),
        ]

    def test_has_the_documented_arguments(self) -> None:
        task = in_state(State.RUNNING)
        told: list[dict[str, Any]] = []

        def receiver(**kwargs: Any) -> None:
            told.append(kwargs)

        task_state_changed.connect(receiver)
        try:
            complete(task)
        finally:
            task_state_changed.disconnect(receiver)

        (arguments,) = told
        assert arguments.pop("signal") is task_state_changed
        assert arguments == {
            "sender": Task,
            "task": task,
            "old_state": State.RUNNING,
            "new_state": State.COMPLETED,
        }

    def test_error_in_a_receiver_stops_nobody(self, caplog: pytest.LogCaptureFixture) -> None:
        task = in_state(State.RUNNING)
        told = []

        def failing(**kwargs: Any) -> None:
            raise ValueError("receiver went wrong")

        def other(**kwargs: Any) -> None:
            told.append(kwargs["task"])

        task_state_changed.connect(failing)
        task_state_changed.connect(other)
        try:
            complete(task)
        finally:
            task_state_changed.disconnect(failing)
            task_state_changed.disconnect(other)

        assert told == [task]
        assert refreshed(task).state == State.COMPLETED
        assert "receiver went wrong" in caplog.text


@pytest.mark.usefixtures("locks")
def test_states_are_found_where_applications_look_for_them() -> None:
    task = in_state(State.RUNNING)
    waiting, ended = in_state(State.WAITING), in_state(State.FAILED)

    assert set(Task.objects.incomplete()) == {task, waiting}
    assert set(Task.objects.owned()) == {task}
    assert [found.is_final for found in (task, waiting, ended)] == [False, False, True]
    assert Task.State is State
    assert {state for state in State if state.is_final} == set(FINAL)
    assert set(AppStatus.objects.all()) == {task.app_lock}
