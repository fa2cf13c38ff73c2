"""The servers of a benchmark: the suite's own kind, and nothing that happens to run here."""

import os

import psutil

from tests.support.servers import PostgresServer, ValkeyServer


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
