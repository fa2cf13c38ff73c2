"""L8: Redis or the database goes away while an immediate task runs. Its outcome stands, and its
locks are released when that can be done."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, OperationalError, connection, transaction
from pytest_django import Settings

from django_task_locks import acancel_task, adispatch, current_task, dispatch, presence
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.conftest import move_to
from tests.support import suite
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import answered, leftovers, state_in_redis
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Book

Outcome = Callable[[], int]


@pytest.fixture
def lasting() -> Iterator[ValkeyServer]:
    """A server that forgets nothing when it is killed: what was locked is locked."""
    with ValkeyServer(appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def lasting_locks(
    locks: LockManager, lasting: ValkeyServer, settings: Settings
) -> Iterator[LockManager]:
    move_to(settings, lasting.url)
    yield get_lock_manager()
    if not lasting.is_running:
        lasting.start()
    presence.leave()


def returns() -> int:
    return 42


def raises() -> int:
    raise ValueError("went wrong")


@pytest.mark.parametrize(
    ("end", "state", "result", "text"),
    [(returns, State.COMPLETED, 42, ""), (raises, State.FAILED, None, "went wrong")],
    ids=["returns", "raises"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_L8_outcome_stands_and_the_release_follows_when_redis_is_back(
    lasting_locks: LockManager,
    lasting: ValkeyServer,
    caplog: pytest.LogCaptureFixture,
    is_async: bool,
    end: Outcome,
    state: State,
    result: Any,
    text: str,
) -> None:
    """L8: an error of Redis at the release of an immediate task."""

    def body() -> int:
        lasting.kill()
        return end()

    async def abody() -> int:
        return body()

    with doing(abody if is_async else body):
        task = (
            async_to_sync(adispatch)(bodies.arun, exclusive="a", immediate=True)
            if is_async
            else dispatch(bodies.run, exclusive="a", immediate=True)
        )

    assert not lasting.is_running
    found = refreshed(task)
    assert (found.state, found.result, task.state) == (state, result, state)
    assert not text or message(task) == text
    assert "release could not be sent" in caplog.text
    lasting.start()
    wait_until(lambda: not leftovers(lasting_locks), what="the release")
    next_one = dispatch(bodies.run, exclusive="a")
    wait_until(lambda: answered(lambda: state_in_redis(lasting_locks, next_one)) == "granted")


def test_L8_one_that_is_canceled_while_redis_is_away_is_canceled(
    lasting_locks: LockManager, lasting: ValkeyServer
) -> None:
    async def body() -> None:
        lasting.kill()
        task = current_task()
        assert task is not None
        await acancel_task(task)
        await asyncio.Event().wait()

    with doing(body):
        task = dispatch(bodies.arun, exclusive="a", immediate=True)

    assert not lasting.is_running
    assert (refreshed(task).state, message(task)) == (State.CANCELED, "Canceled while it ran.")
    lasting.start()
    wait_until(lambda: not leftovers(lasting_locks), what="the release")


def test_L8_event_loop_goes_on_while_redis_is_away(
    lasting_locks: LockManager, lasting: ValkeyServer
) -> None:
    """The release is repeated by a thread, and not by the caller."""

    async def body() -> None:
        lasting.kill()

    async def main() -> Task:
        async with asyncio.timeout(10):
            with doing(body):
                task = await adispatch(bodies.arun, exclusive="a", immediate=True)
            await asyncio.sleep(0)
            return task

    assert async_to_sync(main)().state == State.COMPLETED
    lasting.start()
    wait_until(lambda: not leftovers(lasting_locks), what="the release")


def test_L8_many_releases_are_all_repeated(
    lasting_locks: LockManager, lasting: ValkeyServer
) -> None:
    """A body on one resource starts others on their own, and Redis dies in the innermost."""
    depth = 8

    def body(level: int) -> None:
        if level == depth:
            lasting.kill()
        else:
            dispatch(bodies.run, [level + 1], exclusive=f"r{level + 1}", immediate=True)

    with doing(body):
        dispatch(bodies.run, [0], exclusive="r0", immediate=True)

    assert {task.state for task in Task.objects.all()} == {State.COMPLETED}
    lasting.start()
    wait_until(lambda: not leftovers(lasting_locks), what="all releases")


def test_redis_that_lost_everything_meanwhile_is_no_error(
    own_locks: LockManager, server: ValkeyServer
) -> None:
    def body() -> int:
        server.restart()
        return 42

    with doing(body):
        task = dispatch(bodies.run, exclusive="a", immediate=True)

    assert (refreshed(task).state, task.result) == (State.COMPLETED, 42)
    assert leftovers(own_locks) == set()


def lose_connection(*, for_good: bool = False) -> None:
    """The database ends this thread's session, and with `for_good` takes no new ones."""
    connection.ensure_connection()
    name = connection.settings_dict["NAME"]
    pid = connection.connection.info.backend_pid
    with suite.postgres.client() as others:
        if for_good:
            others.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        others.execute("SELECT pg_terminate_backend(%s)", [pid])


def let_connect() -> None:
    with suite.postgres.client() as others:
        name = connection.settings_dict["NAME"]
        others.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


class TestDatabaseAway:
    @pytest.fixture(autouse=True)
    def _postgres(self, locks: LockManager) -> Iterator[None]:
        if connection.vendor != "postgresql":
            pytest.skip("SQLite has no server to lose")
        yield
        let_connect()
        connection.close()

    def test_F5_lost_connection_is_opened_again(self, locks: LockManager) -> None:
        def body() -> int:
            lose_connection()
            return 42

        with doing(body):
            task = dispatch(bodies.run, exclusive="a", immediate=True)

        assert (refreshed(task).state, task.result) == (State.COMPLETED, 42)
        assert leftovers(locks) == set()

    def test_F5_outcome_follows_when_the_database_is_back(
        self, locks: LockManager, caplog: pytest.LogCaptureFixture
    ) -> None:
        def body() -> int:
            lose_connection(for_good=True)
            return 42

        with doing(body), pytest.raises(OperationalError):
            dispatch(bodies.run, exclusive="a", immediate=True)

        assert "outcome could not be stored; it is repeated" in caplog.text
        assert locks.inspect_resource("a").holder_count == 1, "the row may say that it runs"
        let_connect()
        connection.close()
        task = wait_until(lambda: Task.objects.filter(state=State.COMPLETED).first())
        assert task.result == 42
        wait_until(lambda: not leftovers(locks), what="the release")

    def test_F5_lost_transaction_takes_the_task_along(self, locks: LockManager) -> None:
        def in_transaction() -> None:
            with transaction.atomic():
                dispatch(bodies.run, exclusive="a", immediate=True)

        with doing(lose_connection), pytest.raises(DatabaseError):
            in_transaction()

        connection.close()
        assert not Task.objects.exists()
        assert leftovers(locks) == set()


def test_transaction_that_the_body_leaves_open_is_rolled_back(locks: LockManager) -> None:
    task = dispatch(tasks.leave_transaction_open, exclusive="a", immediate=True)

    assert refreshed(task).state == State.FAILED
    assert "left a transaction open on database 'default'" in message(task)
    assert not Book.objects.exists()
    assert leftovers(locks) == set()
