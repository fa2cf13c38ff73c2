"""The server of a benchmark: the suite's own kind, and nothing that happens to run here."""

import os

import psutil

from tests.support.servers import ValkeyServer


def valkey() -> ValkeyServer:
    """A Valkey on a unix socket and a port, without persistence; `with` starts and ends it."""
    return ValkeyServer(tcp=True)


def share_cpu(server: ValkeyServer) -> int | None:
    """Ties the server to one CPU; returns its number, for who measures to tie itself to the same.
    None where the system has no such thing.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cpu = max(os.sched_getaffinity(0))
    psutil.Process(server.pid).cpu_affinity([cpu])
    return cpu
