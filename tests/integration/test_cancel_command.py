"""manage.py cancel_task: a line for each id, and what the exit status says."""

from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import call_command

from django_task_locks import dispatch
from django_task_locks.locks import LockManager
from django_task_locks.models import State
from tests.factories import TaskFactory
from tests.integration.by_hand import HandWorker, info
from tests.support.processes import refreshed
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks


def cancel(*ids: object) -> tuple[list[str], list[str], int]:
    """Lines of output and of errors, and the exit status."""
    output, errors, status = StringIO(), StringIO(), 0
    try:
        call_command("cancel_task", *map(str, ids), stdout=output, stderr=errors)
    except SystemExit as end:
        status = int(str(end.code))
    return output.getvalue().splitlines(), errors.getvalue().splitlines(), status


def test_a_waiting_task_is_canceled_and_leaves_the_queue(locks: LockManager) -> None:
    task, other = (dispatch(tasks.record, exclusive=["r"]) for _ in range(2))
    assert cancel(task.pk) == ([f"{task.pk}  canceled (tests.testapp.tasks.record)"], [], 0)
    assert refreshed(task).state == State.CANCELED
    assert info(locks, other).state == "granted"


def test_a_running_task_is_canceling_until_its_worker_has_stopped_it(
    alive: HandWorker, locks: LockManager
) -> None:
    dispatch(tasks.record, exclusive=["r"])
    task = alive.run()
    lines, errors, status = cancel(task.pk)
    assert lines == [f"{task.pk}  canceling: {alive.status.name} stops it ({task.name})"]
    assert (errors, status) == ([], 0)
    assert alive.messages() == [f"cancel {task.pk}"]


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_a_task_that_has_ended_stays_as_it_is(state: State, locks: LockManager) -> None:
    task = TaskFactory.create(state=state)
    assert cancel(task.pk) == ([f"{task.pk}  has ended: {state.value} ({task.name})"], [], 0)
    assert refreshed(task).state == state


def test_wrong_and_unknown_ids_are_told_and_the_others_canceled_all_the_same(
    locks: LockManager,
) -> None:
    task, unknown = dispatch(tasks.record, exclusive=["r"]), uuid4()
    lines, errors, status = cancel("nonsense", unknown, task.pk)
    assert lines == [f"{task.pk}  canceled (tests.testapp.tasks.record)"]
    assert errors == [
        "nonsense  no id of a task: a UUID is accepted",
        f"{unknown}  unknown: no task has this id",
    ]
    assert status == 1
    assert_nothing_is_left(locks)
