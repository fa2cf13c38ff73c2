"""The proxy counts the commands of one process to both servers, and strikes where it was told."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.proxy import Fault, Plan, Proxy
from tests.support.servers import PostgresServer, ValkeyServer

# Three commands to Redis, then two to PostgreSQL; says what became of each.
PROGRAM = """
import socket, sys, psycopg
sys.stdin.readline()
def connected():
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(0.2)
    connection.connect(sys.argv[1])
    return connection
connection = connected()
for number in range(3):
    try:
        connection.sendall(b"*2\\r\\n$4\\r\\nINCR\\r\\n$5\\r\\ncount\\r\\n")
        reply = connection.recv(100)
        if not reply:
            raise OSError
        print(int(reply[1:]))
    except TimeoutError:
        print("stalled")
        connection = connected()
    except OSError:
        print("cut")
        connection = connected()
try:
    with psycopg.connect(host=sys.argv[2], port=sys.argv[3], user="postgres", autocommit=True) as c:
        print(c.execute("SELECT 'yes' FROM pg_class LIMIT 1").fetchone()[0])
except psycopg.Error:
    print("cut")
"""
COMMANDS = ["redis INCR"] * 3 + ["postgres connect", "postgres SELECT pg_class"]
UNHARMED = ["1", "2", "3", "yes"]


@pytest.fixture
def proxy(valkey: ValkeyServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Proxy]:
    with valkey.client() as client:
        client.flushall()
    socket = Path(postgres.host) / f".s.PGSQL.{postgres.socket_port}"
    directory = postgres.directory.with_name(f"proxy-{os.getpid()}")
    directory.mkdir(exist_ok=True)
    proxy = Proxy(valkey.socket_path, socket, directory)
    yield proxy
    proxy.close()
    for path in directory.iterdir():
        path.unlink()


def run(proxy: Proxy, postgres: PostgresServer, plan: Plan) -> tuple[int, list[str]]:
    """The program's exit status, and what it said."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, proxy.redis, proxy.directory, str(postgres.socket_port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    proxy.arm(replace(plan, pid=program.pid))
    said, _ = program.communicate("go\n", timeout=30)
    return program.returncode, said.split()


def incremented(valkey: ValkeyServer) -> int:
    with valkey.client() as client:
        return int(client.get("count") or 0)


def test_without_a_fault_it_counts_and_changes_nothing(
    proxy: Proxy, postgres: PostgresServer
) -> None:
    assert run(proxy, postgres, Plan(pid=0)) == (0, UNHARMED)
    assert proxy.count().commands == COMMANDS
    assert proxy.count().struck_at is None


@pytest.mark.parametrize(("fault", "done"), [(Fault.KILL_BEFORE, 1), (Fault.KILL_AFTER, 2)])
def test_a_kill_comes_before_the_command_or_when_the_server_has_done_it(
    proxy: Proxy, postgres: PostgresServer, valkey: ValkeyServer, fault: Fault, done: int
) -> None:
    status, _ = run(proxy, postgres, Plan(pid=0, at=2, fault=fault))
    assert status == -signal.SIGKILL
    wait_until(lambda: proxy.count().struck_at)
    assert proxy.count().commands == COMMANDS[:2]
    assert incremented(valkey) == done


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.DROP_BEFORE, ["1", "cut", "2", "yes"]),
        (Fault.DROP_AFTER, ["1", "cut", "3", "yes"]),
        (Fault.SWALLOW, ["1", "stalled", "3", "yes"]),
    ],
)
def test_a_connection_is_cut_or_stalls_and_the_process_goes_on(
    proxy: Proxy, postgres: PostgresServer, fault: Fault, said: list[str]
) -> None:
    plan = Plan(pid=0, at=2, fault=fault, hold={"redis": 5.0})
    assert run(proxy, postgres, plan) == (0, said)
    assert proxy.count().commands == COMMANDS


@pytest.mark.parametrize("fault", [Fault.DROP_BEFORE, Fault.DROP_AFTER])
def test_the_databases_commands_go_on_in_the_same_count(
    proxy: Proxy, postgres: PostgresServer, fault: Fault
) -> None:
    status, said = run(proxy, postgres, Plan(pid=0, at=len(COMMANDS), fault=fault))
    assert (status, said) == (0, ["1", "2", "3", "cut"])


def test_the_commands_of_other_processes_do_not_count(
    proxy: Proxy, postgres: PostgresServer
) -> None:
    plan = Plan(pid=0, at=1, child=1)
    assert run(proxy, postgres, plan) == (0, UNHARMED)
    assert proxy.count().commands == []
