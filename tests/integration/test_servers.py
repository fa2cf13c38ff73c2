"""The servers that all other tests rely on are real, and lose or keep data as such servers do."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import psycopg
import pytest
import redis
from django.db import connection

from tests.support.server_base import Server, ServerError, make_directory, wait_until_gone
from tests.support.servers import PostgresServer, ValkeyServer
from tests.testapp.models import Audiobook, Book, Reprint


def test_session_valkey_answers(redis_client: redis.Redis, redis_url: str) -> None:
    redis_client.set("name", "value")

    with redis.Redis.from_url(redis_url) as other:
        assert other.get("name") == b"value"


def test_session_valkey_is_empty_when_a_test_begins(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0


@pytest.mark.django_db
def test_database_answers() -> None:
    audiobook = Audiobook.objects.create(title="Emma", narrator="Anna")

    assert Book.objects.get().pk == Reprint.objects.get().pk == audiobook.pk


@pytest.mark.django_db(transaction=True)
def test_other_process_finds_the_same_database_and_valkey(redis_client: redis.Redis) -> None:
    Book.objects.create(title="Persuasion")
    redis_client.set("name", "value")
    program = """
import django
django.setup()
from django_redis import get_redis_connection
from tests.testapp.models import Book
print(Book.objects.get().title, get_redis_connection().get("name"))
"""

    output = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert output == "Persuasion b'value'\n"


@pytest.mark.django_db
def test_database_is_set_up_as_meant() -> None:
    query, answer = {
        "postgresql": ("SHOW fsync", "off"),
        "sqlite": ("PRAGMA journal_mode", "wal"),
    }[connection.vendor]

    with connection.cursor() as cursor:
        cursor.execute(query)
        assert cursor.fetchone() == (answer,)


class TestValkeyServer:
    def test_loses_its_data_in_a_restart(self) -> None:
        with ValkeyServer() as server, server.client() as client:
            client.set("name", "value")
            first = server.pid

            server.restart()

            assert server.pid != first
            assert client.get("name") is None

    @pytest.mark.parametrize("ending", ["stop", "kill"])
    def test_keeps_its_data_when_told_to(self, ending: str) -> None:
        with (
            ValkeyServer(appendonly="yes", appendfsync="always") as server,
            server.client() as client,
        ):
            client.set("name", "value")

            getattr(server, ending)()
            assert not server.is_running
            server.start()

            assert client.get("name") == b"value"

    def test_listens_on_a_port_too_when_told_to(self) -> None:
        with ValkeyServer(tcp=True) as server, redis.Redis.from_url(server.tcp_url) as client:
            assert client.ping()

    def test_shows_its_log_when_it_cannot_start(self) -> None:
        server = ValkeyServer(no_such_option="yes")

        with pytest.raises(ServerError, match="no-such-option"):
            server.start()

        server.close()

    def test_leaves_nothing_behind(self) -> None:
        with ValkeyServer() as server:
            pid = server.pid

        assert not psutil.pid_exists(pid)
        assert not server.directory.exists()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(tcp=True) as server:
        yield server


class TestPostgresServer:
    @pytest.mark.parametrize("ending", ["stop", "kill"])
    def test_keeps_what_was_committed(self, server: PostgresServer, ending: str) -> None:
        with server.client() as client:
            client.execute("DROP TABLE IF EXISTS kept")
            client.execute("CREATE TABLE kept AS SELECT 'value' AS name")

            getattr(server, ending)()

            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")
        assert not server.is_running
        server.start()

        with server.client() as client:
            assert client.execute("SELECT name FROM kept").fetchall() == [("value",)]

    def test_restarts_with_connections_open(self, server: PostgresServer) -> None:
        with server.client() as first:
            server.restart()

            with server.client() as second:
                assert second.execute("SELECT 1").fetchone() == (1,)
            assert not first.closed  # nobody has told the client

    def test_listens_on_a_port_too_when_told_to(self, server: PostgresServer) -> None:
        with psycopg.connect(server.tcp_url) as client:
            assert client.execute("SHOW max_connections").fetchone() == ("200",)


@pytest.mark.skipif(sys.platform != "linux", reason="the tie to the parent needs Linux")
@pytest.mark.parametrize("kind", [ValkeyServer, PostgresServer])
def test_server_ends_with_the_process_that_started_it(kind: type[Server]) -> None:
    directory = make_directory()
    program = f"""
import os, pathlib, signal
from tests.support.servers import {kind.__name__}
server = {kind.__name__}(pathlib.Path({str(directory)!r}) / "server").start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

    try:
        assert killed.returncode == -signal.SIGKILL
        wait_until_gone([int(killed.stdout)], timeout=10)
    finally:
        shutil.rmtree(directory)
