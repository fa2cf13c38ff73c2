"""The servers of a benchmark: the suite's own kind, and nothing that happens to run here."""

import os
import re
import socket
from types import TracebackType
from typing import Self

import psutil

from tests.support.servers import PostgresServer, ValkeyServer

# What a reader of figures should know of them.
SETTINGS = (
    "PostgreSQL: fsync and synchronous_commit on, no autovacuum during a run; by TCP, connections "
    "kept (CONN_MAX_AGE = None)",
    "Valkey: no persistence; by TCP",
)


def valkey(databases: int = 16) -> ValkeyServer:
    """A Valkey on a unix socket and a port, without persistence; `with` starts and ends it."""
    return ValkeyServer(tcp=True, databases=databases)


def postgres() -> PostgresServer:
    """A PostgreSQL that keeps what it has committed, as one in production, and counts statements;
    `with` starts and ends it."""
    return PostgresServer(
        tcp=True,
        fsync="on",
        full_page_writes="on",
        shared_preload_libraries="pg_stat_statements",
        # Its own work would fall into some runs and not into others.
        autovacuum="off",
        max_wal_size="4GB",
        max_connections=300,
    )


def share_cpu(server: ValkeyServer) -> int | None:
    """Ties the server to one CPU; returns its number, for who measures to tie itself to the same.
    None where the system has no such thing.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cpu = max(os.sched_getaffinity(0))
    psutil.Process(server.pid).cpu_affinity([cpu])
    return cpu


class CommandCount:
    """How many commands clients send to a database of the server within `with`; not those that
    scripts call. It is read at the end: the server keeps it until then, so it must not be much."""

    count = 0

    def __init__(self, server: ValkeyServer, database: int) -> None:
        self._path = str(server.socket_path)
        self._line = re.compile(rb"^\+[\d.]+ \[%d (?!lua\])" % database, re.MULTILINE)

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(self._path)
        self._socket.sendall(b"MONITOR\r\n")
        self._socket.recv(5)  # +OK
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        found = b""
        with self._socket:
            self._socket.sendall(b"RESET\r\n")
            while not found.endswith(b"+RESET\r\n") and (data := self._socket.recv(1 << 20)):
                found += data
        self.count = len(self._line.findall(found))
