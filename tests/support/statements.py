"""What others ask of PostgreSQL and of Valkey while a test watches."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from django.db import connection

from tests.support.servers import PostgresServer, ValkeyServer

_STATEMENT = re.compile(r"(?:statement|execute [^:]*): (.*)")


@contextmanager
def every_statement_logged(database: str = "test_task_locks") -> Iterator[None]:
    """For sessions that begin within."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {database} SET log_statement = 'all'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {database} RESET log_statement")


class StatementLog:
    """The statements of sessions that log them, from here on."""

    def __init__(self, server: PostgresServer) -> None:
        self._file = server.log_file
        self._start = self._file.stat().st_size

    def statements(self) -> list[str]:
        with self._file.open() as log:
            log.seek(self._start)
            return [found[1] for line in log if (found := _STATEMENT.search(line))]


@dataclass
class Monitored:
    """Commands of clients, not those that scripts call; scripts by their first comment's word."""

    commands: list[tuple[str, ...]] = field(default_factory=list)

    def counts(self) -> Counter[str]:
        return Counter(name(command) for command in self.commands)


def name(command: tuple[str, ...]) -> str:
    """ "EVALSHA <sha>" or the command with what it says about itself."""
    return " ".join(command[:2]) if command[0].upper().startswith("EVAL") else command[0].upper()


@contextmanager
def monitored(server: ValkeyServer) -> Iterator[Monitored]:
    """Everything that clients send to the server meanwhile."""
    found, ready, end = Monitored(), threading.Event(), "end of monitoring"

    def listen(client: redis.Redis) -> None:
        with client.monitor() as monitor:
            ready.set()
            for entry in monitor.listen():
                if entry["client_type"] == "lua":
                    continue
                words: tuple[Any, ...] = tuple(entry["command"].split(" "))
                if end in entry["command"]:
                    return
                found.commands.append(words)

    with server.client() as client, server.client() as other:
        thread = threading.Thread(target=listen, args=(client,), daemon=True)
        thread.start()
        ready.wait(5)
        try:
            yield found
        finally:
            with suppress(redis.RedisError):
                other.echo(end)
            thread.join(5)
