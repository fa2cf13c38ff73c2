"""Which task the present code belongs to: in the body, its coroutines, threads and log records."""

import asyncio
import logging
import threading
from logging.config import dictConfig
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_task_locks import current_task, dispatch
from django_task_locks.locks import LockManager
from django_task_locks.log_filters import TaskIdFilter
from django_task_locks.models import Task
from tests.integration import bodies
from tests.integration.bodies import doing


def its_id() -> str | None:
    task = current_task()
    return str(task.pk) if task else None


class TestCurrentTask:
    def test_in_a_function_and_what_it_calls(self, locks: LockManager) -> None:
        async def coroutine() -> list[Any]:
            return [its_id(), await sync_to_async(its_id)()]

        with doing(lambda: [its_id(), *async_to_sync(coroutine)()]):
            task = dispatch(bodies.run, immediate=True)

        assert task.result == [str(task.pk)] * 3

    def test_in_a_coroutine_and_what_it_starts(self, locks: LockManager) -> None:
        async def inner() -> str | None:
            return its_id()

        async def body() -> list[Any]:
            return [
                its_id(),
                await asyncio.create_task(inner()),
                await sync_to_async(its_id)(),
                await sync_to_async(its_id, thread_sensitive=False)(),
                await asyncio.to_thread(its_id),
                await sync_to_async(async_to_sync(inner))(),
            ]

        with doing(body):
            task = dispatch(bodies.arun, immediate=True)

        assert task.result == [str(task.pk)] * 6

    def test_a_nested_one_is_current_inside_only_and_names_its_parent(
        self, locks: LockManager
    ) -> None:
        def outer() -> list[Any]:
            before = its_id()
            with doing(its_id):
                inner = dispatch(bodies.run, immediate=True)
            waiting = dispatch(bodies.run, queue="nobody")
            return [before, inner.result, str(inner.pk), its_id(), str(waiting.parent_task_id)]

        with doing(outer):
            task = dispatch(bodies.run, immediate=True)

        before, inside, inner, after, parent_of_waiting = task.result or []
        assert before == after == parent_of_waiting == str(task.pk)
        assert inside == inner
        assert Task.objects.get(pk=inner).parent_task == task
        assert task.parent_task is None

    def test_no_other_thread_has_it(self, locks: LockManager) -> None:
        found: list[Any] = []

        def body() -> None:
            thread = threading.Thread(target=lambda: found.append(its_id()))
            thread.start()
            thread.join()

        with doing(body):
            dispatch(bodies.run, immediate=True)

        assert found == [None]
        assert current_task() is None


class TestLogFilter:
    @pytest.fixture
    def lines(self) -> list[str]:
        """What the logger "app" writes through a handler that is set up as LOGGING does."""
        lines: list[str] = []

        class Collecting(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(self.format(record))

        dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "filters": {"task": {"()": "django_task_locks.log_filters.TaskIdFilter"}},
                "formatters": {"f": {"format": "[%(task_id)s %(task_name)s] %(message)s"}},
                "handlers": {"h": {"()": Collecting, "filters": ["task"], "formatter": "f"}},
                "loggers": {"app": {"handlers": ["h"], "propagate": False, "level": "INFO"}},
            }
        )
        return lines

    def test_records_of_a_task_have_its_id_and_name(
        self, locks: LockManager, lines: list[str]
    ) -> None:
        log = logging.getLogger("app")

        async def body() -> None:
            log.info("in a coroutine")
            await sync_to_async(log.info)("in a thread")

        log.info("before")
        with doing(body):
            task = dispatch(bodies.arun, immediate=True)
        log.info("after")

        its = f"[{task.pk} tests.integration.bodies.arun]"
        assert lines == [
            "[ ] before",
            f"{its} in a coroutine",
            f"{its} in a thread",
            "[ ] after",
        ]

    def test_what_a_record_says_by_itself_stays(self) -> None:
        record = logging.makeLogRecord({"task_id": "its own"})

        assert TaskIdFilter().filter(record)
        assert (vars(record)["task_id"], vars(record)["task_name"]) == ("its own", "")
