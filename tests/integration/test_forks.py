"""A process that has used locks forks: no connection of before is ever shared with the child."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from redis.cluster import RedisCluster

from django_task_locks.connections import get_lock_manager
from tests.support.locations import LOCATIONS, Location
from tests.support.services import AnyClient, Services

# On a connection that two processes share, answers go to whoever reads first.
PROGRAM = """
import asyncio, os, sys, warnings
import django
django.setup()
from django_task_locks import connections, epochs
from django_task_locks.locks import LockRequest

epochs.adopt("1:")  # as the database would say

warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks

def work(locks, name):
    for number in range(100):
        id = f"{name} {number}"
        locks.request(LockRequest(id=id, exclusive=(id,)))
        assert locks.known([id, "unknown"]) == {id}
        assert locks.inspect_request(id).exclusive == (id,)
        assert locks.release(id).is_done

async def awork(name):
    locks = await connections.get_async_lock_manager()
    for number in range(100):
        id = f"{name} {number}"
        await locks.request(LockRequest(id=id, exclusive=(id,)))
        assert await locks.known([id, "unknown"]) == {id}
        assert (await locks.inspect_request(id)).exclusive == (id,)
        assert (await locks.release(id)).is_done

def say(word):
    print(word, flush=True)
    sys.stdin.readline()

def end_of(child):
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""

SYNC = """
managers = [connections.get_lock_manager(), connections.get_waiting_lock_manager()]
for locks in managers:
    work(locks, "before")
say("before")
child = os.fork()
name = "parent" if child else "child"
for locks in managers:
    work(locks, f"{name}, made before")
for make in (connections.get_lock_manager, connections.get_waiting_lock_manager):
    work(make(), f"{name}, made after")
if not child:
    connections.close_connections()
    sys.exit(0)
end_of(child)
say("after")
for locks in managers:
    work(locks, "after")
"""

ASYNC = """
async def main():
    await awork("before")
    say("before")
    child = os.fork()
    if not child:
        asyncio.run(awork("child"))
        os._exit(0)
    await awork("parent")
    end_of(child)
    say("after")
    await awork("after")

asyncio.run(main())
"""


@pytest.fixture
def location(
    request: pytest.FixtureRequest, services: Services, monkeypatch: pytest.MonkeyPatch
) -> Location:
    location = LOCATIONS[request.param](services)
    location.put_into_environment(monkeypatch)
    return location


@pytest.fixture
def control(location: Location) -> Iterator[AnyClient]:
    with location.way.control() as client:
        client.flushall()
        client.set(get_lock_manager().keys.epoch, "1:")
        yield client


class Program:
    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ},
            text=True,
        )

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline() != f"{word}\n":
            pytest.fail(f"it ended:\n{self.process.communicate()[1]}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.mark.parametrize("text", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize(
    "location",
    ["URL", "socket URL", "TLS URL", "alias", "Sentinel by the setting", "cluster URL"],
    indirect=True,
)
def test_parent_and_child_use_locks_side_by_side(
    location: Location, control: AnyClient, text: str
) -> None:
    program = Program(text)
    program.expect("before")
    before = client_ids(control)
    program.go_on()
    program.expect("after")
    after = client_ids(control)
    program.go_on()

    _, errors = program.process.communicate(timeout=30)

    assert (program.process.returncode, errors) == (0, "")
    assert before <= after, "the child has closed what is its parent's"


def client_ids(control: AnyClient) -> set[tuple[str, str]]:
    """Of all clients, on every node of a cluster."""
    lists: Any = {"": control.client_list()}
    if isinstance(control, RedisCluster):
        lists = control.client_list(target_nodes=RedisCluster.ALL_NODES)
    return {(node, its["id"]) for node, clients in lists.items() for its in clients}
