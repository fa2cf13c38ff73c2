"""What benchmarks stand on: processes that end, and a network that is farther away."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.busy import CpuWatch
from benchmarks.delay import DelayingProxy
from benchmarks.processes import Started, kill
from benchmarks.servers import CommandCount
from tests.support.processes import wait_until
from tests.support.server_base import free_port
from tests.support.servers import ValkeyServer

# One process in a group of its own and one in a session of its own.
_FAMILY = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep, process_group=0)
subprocess.Popen(sleep, start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def test_all_that_a_worker_has_started_is_killed_with_it(tmp_path: Path) -> None:
    started = Started([sys.executable, "-c", _FAMILY], dict(os.environ), tmp_path / "log")
    wait_until(lambda: "ready" in started.log(), what="the processes")
    family = started.family()

    kill([started])

    assert len(family) == 3
    assert not any(psutil.pid_exists(process.pid) for process in family if process.is_running())
    assert started.process.poll() is not None


@pytest.fixture
def echo() -> int:
    """The port of a server that sends back what it receives."""
    listening = socket.create_server(("127.0.0.1", port := free_port()))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, listening:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return port


def test_a_delayed_connection_answers_a_round_trip_later_and_in_order(echo: int) -> None:
    with (
        DelayingProxy(echo, 0.05) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        client.settimeout(5)
        started_at = time.monotonic()
        for number in range(100):
            client.sendall(b"%02d" % number)
        received = b""
        while len(received) < 200:
            received += client.recv(1 << 16)
        took = time.monotonic() - started_at

    assert received == b"".join(b"%02d" % number for number in range(100))
    assert took >= 0.05


def test_commands_of_clients_are_counted_and_not_those_that_scripts_call() -> None:
    with ValkeyServer() as server, server.client() as client, server.client(db=1) as other:
        client.ping()
        other.ping()  # both are connected
        with CommandCount(server, 0) as counted:
            client.ping()
            client.eval("return redis.call('GET', KEYS[1])", 1, "absent")
            other.ping()

    assert counted.count == 2


def test_shares_of_the_cpu_time() -> None:
    watch = CpuWatch()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        pass

    use = watch.use()

    assert use.own > 0
    assert 0 <= use.other <= 1.05
