"""How bodies end, and that their outcome is stored whatever happens to the database meanwhile."""

from pathlib import Path

import pytest

from django_task_locks import dispatch
from django_task_locks.dispatching import send_request
from django_task_locks.locks import LockManager
from django_task_locks.models import State, Task
from tests.factories import TaskFactory
from tests.support import suite
from tests.support.processes import (
    Worker,
    Workers,
    message,
    wait_for_state,
    wait_until,
    wait_until_final,
)
from tests.support.redis_state import assert_nothing_is_left
from tests.testapp import tasks
from tests.testapp.models import Book

on_postgres = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'", reason="PostgreSQL's own means"
)


def sent(name: str, *args: object) -> Task:
    """A task of a function that need not be there: dispatched before the code has changed."""
    task = TaskFactory.create(name=name, args=list(args), exclusive=["r"])
    send_request(task)
    return task


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (tasks.begin_by_hand, "left a transaction open on database 'default'; it was rolled back."),
        (tasks.abegin_by_hand, "left a transaction open on database 'default'"),
        (tasks.leave_transaction_open, "left a transaction open on database 'default'"),
        (tasks.close_the_driver, "left the connection to database 'default' unusable."),
        (tasks.aclose_the_driver, "left the connection to database 'default' unusable."),
    ],
)
def test_a_body_that_spoils_its_connection_fails_with_that_reason(
    body: object, reason: str, workers: Workers, locks: LockManager
) -> None:
    workers.start()
    spoilt = dispatch(body, exclusive=["r"])  # type: ignore[arg-type]
    next_one = dispatch(tasks.write_book, ["the next"], exclusive=["r"])
    anext_one = dispatch(tasks.acount_books, exclusive=["r"])
    ended = wait_until_final([spoilt, next_one, anext_one])
    assert [task.state for task in ended] == [State.FAILED, State.COMPLETED, State.COMPLETED]
    assert reason in message(spoilt)
    assert [book.title for book in Book.objects.all()] == ["the next"]
    assert ended[2].result == 1
    assert_nothing_is_left(locks)


def test_an_exception_is_not_replaced_by_what_it_left_behind(
    worker: Worker, locks: LockManager
) -> None:
    task = wait_for_state(dispatch(tasks.begin_and_fail), State.FAILED)
    assert message(task) == "of its own"
    assert not Book.objects.exists()


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (("tests.testapp.tasks.gone",), "gone"),
        (("tests.testapp.nowhere.gone",), "No module named 'tests.testapp.nowhere'"),
        (("broken.body",), "invalid syntax"),
        (("leaving.body",), "7"),
        (("tests.testapp.models.models",), "cannot be called"),
        (("tests.testapp.tasks.add", 1, 2, 3), "takes from 1 to 2 positional arguments"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_function_that_changed_since_its_dispatch_fails_once_and_holds_nobody_up(
    task: tuple[str, object],
    error: str,
    workers: Workers,
    locks: LockManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken.py").write_text("def body( -> this is no Python")
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = workers.start()
    failed = sent(*task)
    next_one = dispatch(tasks.add, [1], exclusive=["r"])
    wait_for_state(next_one, State.COMPLETED)
    failed.refresh_from_db()
    assert failed.state == State.FAILED
    assert error in message(failed)
    assert worker.log().count(str(failed.pk)) == 2, "it began and failed, once"
    assert "executor died" not in worker.log()
    assert_nothing_is_left(locks)


@pytest.mark.parametrize(
    ("body", "args", "expected"),
    [
        (tasks.raise_unspeakable, [], "Its message cannot be shown (RuntimeError)."),
        (tasks.raise_long, [100_000], "x" * 3997 + "..."),
        (tasks.recurse, [], "maximum recursion depth exceeded"),
        (tasks.return_unspeakable, [], "no words"),
        (tasks.return_object, [], "cannot be stored as JSON"),
    ],
)
def test_odd_exceptions_and_results_are_stored_within_bounds(
    body: object, args: list[object], expected: str, worker: Worker, locks: LockManager
) -> None:
    task = wait_for_state(dispatch(body, args), State.FAILED)  # type: ignore[arg-type]
    assert expected in message(task)
    assert len(message(task)) <= 4_000
    assert len((task.error or {})["traceback"]) <= 20_000
    assert "executor died" not in worker.log()


@on_postgres
@pytest.mark.parametrize("times", [1, 3])
def test_an_outcome_is_stored_on_a_fresh_connection_if_the_old_one_is_cut(
    times: int, worker: Worker, locks: LockManager, tmp_path: Path
) -> None:
    for number in range(times):
        gate = tmp_path / f"gate-{number}"
        task = dispatch(tasks.query_until, [str(gate)], exclusive=["r"])
        wait_until(Path(f"{gate}.began").exists)
        with suite.postgres.client() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'test_task_locks' AND query LIKE '%testapp_book%' "
                "AND pid <> pg_backend_pid()"
            )
        gate.touch()
        ended = wait_for_state(task, State.COMPLETED, State.FAILED)
        assert (ended.state, ended.result, ended.error) == (State.COMPLETED, str(gate), None)
    assert_nothing_is_left(locks)


def test_receivers_are_told_once_of_each_change_with_the_whole_task(
    workers: Workers, tmp_path: Path
) -> None:
    path = tmp_path / "changes"
    dispatched = [dispatch(tasks.tell_changes, [str(path)]), dispatch(tasks.add, [5])]
    assert workers.launch("--burst", "--concurrency", "1").wait() == 0
    wait_until_final(dispatched)
    assert path.read_text().splitlines() == [
        f"tests.testapp.tasks.tell_changes['{path}'] running completed",
        "tests.testapp.tasks.add[5] waiting running",
        "tests.testapp.tasks.add[5] running completed",
    ]
