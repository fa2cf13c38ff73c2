"""Identifiers sort by the time they were made, in every process and whatever its clock does."""

import subprocess
import sys
import threading
import time
import uuid

import pytest

from django_task_locks.ids import uuid7


def milliseconds(id: uuid.UUID) -> int:
    return id.int >> 80


def test_uuid_has_version_7_and_the_variant_of_the_standard() -> None:
    made = [uuid7() for _ in range(100)]

    assert {id.version for id in made} == {7}
    assert {id.variant for id in made} == {uuid.RFC_4122}


def test_uuid_begins_with_the_time_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    after = time.time_ns() // 1_000_000

    assert before <= milliseconds(made) <= after


def test_each_uuid_is_larger_than_the_one_before() -> None:
    made = [uuid7() for _ in range(20_000)]

    assert made == sorted(set(made))


def test_order_as_text_is_the_order_in_time() -> None:
    made = [str(uuid7()) for _ in range(1_000)]

    assert made == sorted(made)


@pytest.mark.parametrize("step", [0, -1_000_000], ids=["stands still", "goes back"])
def test_each_uuid_is_larger_though_the_clock_moves_wrongly(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    present = time.time_ns()

    def wrong_clock() -> int:
        nonlocal present
        present += step
        return present

    monkeypatch.setattr("django_task_locks.ids.time.time_ns", wrong_clock)
    made = [uuid7() for _ in range(10_000)]

    assert made == sorted(set(made))
    assert {id.version for id in made} == {7}
    assert {id.variant for id in made} == {uuid.RFC_4122}


def test_threads_never_make_the_same_uuid() -> None:
    made: list[list[uuid.UUID]] = [[] for _ in range(4)]

    def make(mine: list[uuid.UUID]) -> None:
        mine.extend(uuid7() for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id for mine in made for id in mine}) == 8_000
    assert all(mine == sorted(mine) for mine in made)


def test_forked_child_makes_uuids_though_threads_were_making_some() -> None:
    """A fork copies a lock as it stands, and not the thread that would open it."""
    program = """
import os, signal, sys, threading, warnings
from django_task_locks.ids import uuid7

warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
sys.setswitchinterval(1e-5)
ended = threading.Event()

def make():
    while not ended.is_set():
        uuid7()

for _ in range(4):
    threading.Thread(target=make, daemon=True).start()
made = set()
for _ in range(100):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(5)
        os.write(writer, uuid7().bytes)
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child hung: {status}"
    made.add(os.read(reader, 16))
    os.close(reader)
ended.set()
assert len(made) == 100
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)

    assert not done.returncode, done.stderr
