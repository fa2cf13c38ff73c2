"""What the supervisor does with services that are away: before it begins, and at work."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from django.db import DatabaseError, DataError, OperationalError

from django_task_locks import rebuilding
from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks import LockManager
from django_task_locks.worker.control import ControlChannel
from django_task_locks.worker.os_signals import SupervisorSignals
from django_task_locks.worker.starting import CannotStart, Services
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer


@pytest.fixture
def signals() -> Iterator[SupervisorSignals]:
    signals = SupervisorSignals()
    signals.install()
    yield signals
    signals.uninstall()
    signals.close()


def failing_once(error: Exception) -> Callable[[], int]:
    """Raises at the first call; returns then how often it was called."""
    calls: list[None] = []

    def begin() -> int:
        calls.append(None)
        if len(calls) == 1:
            raise error
        return len(calls)

    return begin


class TestServices:
    @pytest.mark.parametrize(
        "error", [OperationalError("database is locked"), LockServiceUnavailable()]
    )
    def test_beginning_that_meets_an_outage_is_repeated(
        self, error: Exception, locks: LockManager, signals: SupervisorSignals
    ) -> None:
        start = time.monotonic()
        assert Services(signals).patiently(failing_once(error)) == 2
        assert 0.9 < time.monotonic() - start < 10

    @pytest.mark.parametrize("error", [DataError("too long"), DatabaseError("odd")])
    def test_beginning_that_fails_otherwise_is_refused(
        self, error: Exception, locks: LockManager, signals: SupervisorSignals
    ) -> None:
        with pytest.raises(CannotStart, match="The database cannot be used"):
            Services(signals).patiently(failing_once(error))

    def test_signal_before_it_begins(self, locks: LockManager, signals: SupervisorSignals) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

        assert Services(signals).patiently(lambda: 1) is None


class TestControlChannel:
    """The supervisor does nothing else while it connects: neither signals, nor time limits, nor
    cancels. Its heartbeat is another thread's."""

    def test_server_that_hangs_holds_it_up_for_a_moment_only(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        channel = ControlChannel("w@1", 5.0)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            assert channel.descriptor() is None
            assert time.monotonic() - start < 2.0
            start = time.monotonic()
            assert channel.descriptor() is None, "not again at once"
            assert time.monotonic() - start < 0.1
        finally:
            os.kill(server.pid, signal.SIGCONT)

    def test_messages_come_when_the_server_is_back(
        self, own_locks: LockManager, server: ValkeyServer
    ) -> None:
        channel = ControlChannel("w@1", 5.0)
        assert channel.descriptor() is not None
        server.restart()
        assert channel.read() is None
        assert rebuilding.rebuild()
        own_locks.send("w@1", "hello")

        wait_until(lambda: channel.descriptor() is not None)

        assert channel.read() == "hello"
        channel.close()
