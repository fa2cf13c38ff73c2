"""Redis that a test may take away, or that was never there; workers, dead and alive."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from django_task_locks import dispatch, epochs, presence, rebuilding
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager, LockRequest
from django_task_locks.locks.requests import Claimant
from tests.factories import AppStatusFactory
from tests.integration.by_hand import HandWorker
from tests.support.servers import ValkeyServer
from tests.testapp import tasks

PASSWORD = "swordfish"


def point_at(settings: Settings, url: str) -> None:
    settings.TASK_LOCKS = {**settings.TASK_LOCKS, "redis": url}
    epochs.forget()


def move_to(settings: Settings, url: str) -> None:
    """The same, for a server that can be reached: the locks are there from now on."""
    point_at(settings, url)
    assert rebuilding.rebuild()


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A Valkey of the test's own, to stop, kill and start again."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def own_locks(
    locks: LockManager, server: ValkeyServer, settings: Settings
) -> Iterator[LockManager]:
    """The lock manager of this process, on `server`."""
    move_to(settings, server.url)
    yield get_lock_manager()
    if not server.is_running:
        server.start()
    presence.leave()


@pytest.fixture
def no_redis(locks: LockManager, settings: Settings) -> str:
    """TASK_LOCKS leads to an address where nobody listens, with a password: the endpoint."""
    point_at(settings, f"redis://user:{PASSWORD}@127.0.0.1:1/3")
    return "127.0.0.1:1/3"


@pytest.fixture
def dead(locks: LockManager) -> HandWorker:
    """A worker whose last heartbeat is long ago."""
    return HandWorker(locks, AppStatusFactory.create(stale=True))


@pytest.fixture
def alive(locks: LockManager) -> HandWorker:
    """A worker that has just beaten."""
    return HandWorker(locks)


@pytest.fixture
def lost(locks: LockManager) -> HandWorker:
    """A missing worker with a task that fails, one that is handed back, one that never started,
    and a hold."""
    worker = HandWorker(locks, AppStatusFactory.create(stale=True))
    dispatch(tasks.record, exclusive="a")
    worker.run()
    worker.next_slot()
    dispatch(tasks.record, exclusive="b", on_worker_loss="requeue", max_attempts=2)
    worker.run()
    worker.next_slot()
    dispatch(tasks.record, exclusive="c")
    worker.claim()
    claimant = Claimant(owner=worker.owner, ttl=4)
    locks.request(LockRequest(id="hold", exclusive=("d",), claimant=claimant))
    return worker
