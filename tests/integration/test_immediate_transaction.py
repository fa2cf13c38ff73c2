"""L25: an immediate task inside a transaction of its caller's. Nobody may read what it wrote before
it is committed, so its locks live until the transaction's end, whichever way that comes."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_task_locks import dispatch, presence
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Grant, Waiting
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.integration import bodies
from tests.integration.bodies import doing
from tests.integration.transactions import elsewhere, rolled_back
from tests.support.processes import message, refreshed, wait_until
from tests.support.redis_state import leftovers
from tests.support.servers import ValkeyServer
from tests.testapp import tasks
from tests.testapp.models import Book


def immediate(function: Any = tasks.record, *args: Any, **kwargs: Any) -> Task:
    options = {"exclusive": "a", "immediate": True, "deferred": False, **kwargs}
    return dispatch(function, list(args), **options)


def is_held(locks: LockManager, resource: str = "a") -> bool:
    return locks.inspect_resource(resource).holder_count == 1


class TestCommit:
    def test_L25_locks_are_held_until_the_commit(self, locks: LockManager) -> None:
        with transaction.atomic():
            task = immediate(tasks.write_book, "Emma")
            assert task.state == State.COMPLETED
            assert is_held(locks)
            assert elsewhere(lambda: (is_held(locks), Book.objects.count())) == (True, 0)

        assert elsewhere(lambda: (is_held(locks), Book.objects.count())) == (False, 1)
        assert refreshed(task).state == State.COMPLETED
        assert leftovers(locks) == set()

    def test_L25_nobody_gets_the_resource_before_what_was_written_is_there(
        self, locks: LockManager
    ) -> None:
        seen = []

        with transaction.atomic():
            immediate(tasks.write_book, "Emma")
            transaction.on_commit(lambda: seen.append(is_held(locks)))
        seen.append(is_held(locks))

        assert seen[-1] is False

    def test_L25_end_of_a_savepoint_releases_nothing(self, locks: LockManager) -> None:
        with transaction.atomic():
            with transaction.atomic():
                immediate()
            assert is_held(locks)

        assert leftovers(locks) == set()

    def test_L25_who_waits_is_granted_after_the_commit(self, locks: LockManager) -> None:
        other = LockRequest(id="other", exclusive=("a",))

        with transaction.atomic():
            immediate()
            assert isinstance(locks.request(other), Waiting)

        assert locks.request(other) == Grant("other", None)

    def test_L25_several_tasks_in_one_transaction(self, locks: LockManager) -> None:
        with transaction.atomic():
            found = [immediate(exclusive=name) for name in "abc"]
            assert [is_held(locks, name) for name in "abc"] == [True] * 3

        assert {refreshed(task).state for task in found} == {State.COMPLETED}
        assert leftovers(locks) == set()

    def test_L25_durable_transaction(self, locks: LockManager) -> None:
        with transaction.atomic(durable=True):
            immediate()

        assert leftovers(locks) == set()


class TestRollback:
    def test_L25_rollback_releases_at_once(self, locks: LockManager) -> None:
        """L25: the transaction around an immediate task rolls back."""
        with rolled_back():
            task = immediate(tasks.write_book, "Emma")
            assert is_held(locks)

        assert leftovers(locks) == set()
        assert not Task.objects.filter(pk=task.pk).exists()
        assert not Book.objects.exists()

    def test_L25_rollback_of_a_savepoint_releases_at_once(self, locks: LockManager) -> None:
        with transaction.atomic():
            outer = immediate(exclusive="outer")
            with rolled_back():
                inner = immediate(exclusive="inner")
            assert not is_held(locks, "inner")
            assert is_held(locks, "outer")
            assert not Task.objects.filter(pk=inner.pk).exists()

        assert list(Task.objects.all()) == [outer]
        assert leftovers(locks) == set()

    def test_L25_rollback_of_an_outer_savepoint_releases_what_inner_ones_took(
        self, locks: LockManager
    ) -> None:
        with transaction.atomic():
            with rolled_back(), transaction.atomic():
                immediate()
            assert not is_held(locks)

    def test_L25_rollback_that_is_only_marked(self, locks: LockManager) -> None:
        with transaction.atomic():
            immediate()
            transaction.set_rollback(True)

        assert leftovers(locks) == set()
        assert not Task.objects.exists()

    def test_L25_lost_connection_is_a_rollback(self, locks: LockManager) -> None:
        def lose_the_connection() -> None:
            with transaction.atomic():
                immediate()
                connection.close()
                Book.objects.exists()

        with pytest.raises(DatabaseError):
            lose_the_connection()

        wait_until(lambda: not leftovers(locks), what="the release")
        assert not Task.objects.exists()

    def test_L25_rollback_of_many(self, locks: LockManager) -> None:
        with rolled_back():
            for number in range(50):
                immediate(exclusive=f"r{number}")

        assert leftovers(locks) == set()

    def test_L25_failed_and_blocked_ones_leave_nothing_either(self, locks: LockManager) -> None:
        with rolled_back():
            assert immediate(tasks.fail, "went wrong").state == State.FAILED
            assert immediate().state == State.CANCELED
            deferred = immediate(deferred=True)

        assert leftovers(locks) == set()
        assert deferred.state == State.WAITING
        assert not Task.objects.exists()

    def test_L25_rollback_while_redis_is_away_releases_later(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        with rolled_back():
            immediate()
            server.stop()
        server.start()

        wait_until(lambda: not leftovers(own_locks), what="the release")

    def test_next_one_in_a_new_transaction_runs(self, locks: LockManager) -> None:
        for _ in range(3):
            with rolled_back():
                assert immediate().state == State.COMPLETED


class TestBody:
    def test_what_a_failed_body_wrote_goes_and_its_row_stays(self, locks: LockManager) -> None:
        with transaction.atomic():
            Book.objects.create(title="the caller's")
            task = dispatch(
                tasks.write_book, ["Emma"], {"then_fail": True}, exclusive="a", immediate=True
            )

        assert refreshed(task).state == State.FAILED
        assert [book.title for book in Book.objects.all()] == ["the caller's"]
        assert leftovers(locks) == set()

    def test_database_error_in_the_body_leaves_the_caller_able_to_go_on(
        self, locks: LockManager
    ) -> None:
        def body() -> None:
            with connection.cursor() as cursor:
                cursor.execute("SELECT * FROM no_such_table")

        with transaction.atomic():
            with doing(body):
                task = immediate(bodies.run)
            Book.objects.create(title="afterwards")

        assert refreshed(task).state == State.FAILED
        assert "no_such_table" in message(task)
        assert Book.objects.count() == 1
        assert leftovers(locks) == set()

    def test_failed_body_outside_of_a_transaction_keeps_what_it_wrote(
        self, locks: LockManager
    ) -> None:
        dispatch(tasks.write_book, ["Emma"], {"then_fail": True}, immediate=True)

        assert Book.objects.count() == 1

    def test_coroutine_shares_the_caller_s_transaction(self, locks: LockManager) -> None:
        async def body() -> int:
            await Book.objects.acreate(title="Emma")
            return await Book.objects.acount()

        with doing(body), rolled_back():
            task = immediate(bodies.arun)
            assert task.result == 1

        assert not Book.objects.exists()
        assert leftovers(locks) == set()

    def test_interrupt_rolls_all_of_it_back(self, locks: LockManager) -> None:
        def body() -> None:
            raise KeyboardInterrupt

        with doing(body), pytest.raises(KeyboardInterrupt), transaction.atomic():
            immediate(bodies.run)

        assert not Task.objects.exists()
        assert leftovers(locks) == set()


def test_L25_first_use_of_locks_in_this_process_is_inside_a_transaction(
    locks: LockManager,
) -> None:
    presence.leave()

    with transaction.atomic():
        Book.objects.create(title="makes SQLite's one writer busy")
        task = immediate()

    assert refreshed(task).state == State.COMPLETED
    assert leftovers(locks) == set()
