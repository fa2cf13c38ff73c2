"""The part of the fixtures that every test may use: servers, database, a clean Redis."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

import django_task_locks
from django_task_locks import epochs, own_requests, presence, rebuilding
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks import LockManager
from tests.support import suite
from tests.support.processes import Worker, Workers
from tests.support.servers import PostgresServer, ValkeyServer
from tests.support.services import Services

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_setup", "live_server"}


def pytest_report_header() -> list[str]:
    database = settings.DATABASES["default"]["ENGINE"].rpartition(".")[2]
    return [
        f"package under test: {Path(django_task_locks.__file__).parent}",
        f"database: {database}, redis-py: {redis.__version__}",
        f"seed: TEST_SEED={os.environ['TEST_SEED']} repeats the sample of crash points",
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="runs the tests that take minutes, too")


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not config.getoption("--soak"):
            item.add_marker(pytest.mark.skip(reason="needs --soak"))
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("django_db") or fixtures & DATABASE_FIXTURES:
            item.add_marker("database")


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """The session's Valkey. A test that stops or kills one makes its own."""
    with suite.valkey as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's PostgreSQL, whatever TEST_DATABASE says."""
    with suite.postgres as server:
        yield server


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """The session's other servers, of which none runs before a test wants it."""
    services = Services()
    yield services
    services.close()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> None:
    """Everything that needs the database comes by here first: the servers start. No suffixes for
    xdist: each of its processes has servers of its own."""
    request.getfixturevalue("valkey")
    if settings.DATABASES["default"]["ENGINE"].endswith("postgresql"):
        request.getfixturevalue("postgres")


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    return valkey.url


@pytest.fixture
def redis_client(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    """A client of the session's Valkey, which is empty when the test begins."""
    with valkey.client() as client:
        client.flushall()
        epochs.forget()
        yield client


@pytest.fixture
def locks(transactional_db: None, redis_client: redis.Redis) -> Iterator[LockManager]:
    """The lock manager of this process, on an empty Redis and an empty database, in which the first
    epoch has begun."""
    assert rebuilding.rebuild()
    yield get_lock_manager()
    presence.leave()
    assert own_requests.known() == [], "this process would restore what it has no more"


@pytest.fixture
def workers(locks: LockManager, tmp_path: Path) -> Iterator[Workers]:
    """Starts real workers on this test's database and Redis; none of them outlives the test."""
    started = Workers(tmp_path)
    yield started
    started.end()


@pytest.fixture
def worker(workers: Workers) -> Worker:
    """A worker with two executors."""
    return workers.start("--concurrency", "2")
