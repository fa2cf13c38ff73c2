"""Process groups of children: nothing is settled before the last process of one is gone."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from django_task_locks.worker import children as children_module
from django_task_locks.worker import guard as guard_module
from django_task_locks.worker.children import Children, Exit, Guard
from django_task_locks.worker.guard import Board, is_empty, watch

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


def wait(probe: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own."""
    process = subprocess.Popen(SLEEP, process_group=0)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_group_with_a_process_is_not_empty(leader: subprocess.Popen[bytes]) -> None:
    assert not is_empty(leader.pid)


def test_a_zombie_does_not_count(leader: subprocess.Popen[bytes]) -> None:
    leader.kill()
    wait(lambda: is_empty(leader.pid))
    assert os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_a_process_that_outlives_its_leader_counts(leader: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen(SLEEP, process_group=leader.pid)
    try:
        leader.kill()
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        assert not is_empty(leader.pid)
    finally:
        other.kill()
        other.wait()
    assert is_empty(leader.pid)


def test_a_stopped_process_counts(leader: subprocess.Popen[bytes]) -> None:
    leader.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, leader.pid, os.WSTOPPED | os.WNOWAIT)
    assert not is_empty(leader.pid)


def test_a_group_that_never_was_is_empty() -> None:
    assert is_empty(2**22 - 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
class TestReap:
    @pytest.fixture
    def children(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
        # Other children of this process are not theirs to wait for.
        monkeypatch.setattr(Children, "_reap_adopted", lambda self: None)
        board = Board(1)
        family = Children(board, Guard(board))
        yield family
        family.signal_all(signal.SIGKILL)
        wait(lambda: family.reap() or not family.running)

    def test_an_end_is_not_told_while_something_of_the_group_lives(
        self, children: Children, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a program in an uninterruptible wait: killed, but not dead."""
        is_gone = False
        monkeypatch.setattr(children_module, "is_empty", lambda group: is_gone)
        child = children.fork(0, 1, lambda: 3)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(3):
            assert children.reap() == []
            assert children.is_any_lingering()
            assert children.board.group(0) == child.pid, "the guard still knows of it"
        is_gone = True
        assert children.reap() == [Exit(child, 3, 0)]
        assert not children.is_any_lingering()
        assert children.board.group(0) == 0

    def test_what_a_child_started_is_gone_when_its_end_is_told(self, children: Children) -> None:
        read, write = os.pipe()

        def start_and_leave() -> int:
            os.write(write, str(subprocess.Popen(SLEEP).pid).encode())
            os._exit(0)

        children.fork(0, 1, start_and_leave)
        program = int(os.read(read, 32))
        wait(children.reap)
        with suppress(FileNotFoundError), open(f"/proc/{program}/stat") as file:
            assert file.read().rpartition(")")[2].split()[0] == "Z"
        os.close(read)
        os.close(write)


def test_the_guard_lives_as_long_as_anything_of_its_groups(
    leader: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds the worker's lock file until then. Here is one that no signal ends for now."""
    monkeypatch.setattr(guard_module, "kill_group", lambda group: None)
    board = Board(1)
    board.set_group(0, leader.pid)
    read, write = os.pipe()
    guard = threading.Thread(target=watch, args=(board, read), daemon=True)
    guard.start()
    os.close(write)  # the supervisor is gone
    guard.join(0.2)
    assert guard.is_alive()
    leader.kill()
    guard.join(10)
    assert not guard.is_alive()
    os.close(read)
