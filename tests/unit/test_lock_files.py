"""Lock files prove that a process and all its forks are gone, and nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from django_task_locks import lock_files
from django_task_locks.lock_files import LockFile, discard, is_free, is_held, path_of
from tests.support.server_base import wait_until_gone

OWNER = "web-1@0190163d-8694-739b-aea5-966c26f8ad91"

# Holds the file, as do its forks, until its input ends.
HOLDER = """
import os, sys
from django_task_locks.lock_files import LockFile
file = LockFile(sys.argv[1], sys.argv[2])
for _ in range(int(sys.argv[3])):
    if not os.fork():
        break
os.write(1, f"{os.getpid()}\\n".encode())
os.read(0, 1)
os._exit(0)
"""

# Starts a program that inherits whatever is not closed for it.
STARTER = """
import os, subprocess, sys
from django_task_locks.lock_files import LockFile
file = LockFile(sys.argv[1], sys.argv[2])
code = "import os; os.write(1, f'{os.getpid()}\\\\n'.encode()); os.read(0, 1)"
subprocess.Popen([sys.executable, "-c", code], close_fds=False)
os.read(0, 1)
"""


class Holder:
    """A process that holds OWNER's file, and `forks` of it; their ids are its own first."""

    def __init__(self, directory: Path, forks: int = 0, program: str = HOLDER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(directory), OWNER, str(forks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        pids = [int(self.process.stdout.readline()) for _ in range(forks + 1)]
        self.forks = [pid for pid in pids if pid != self.process.pid]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end_all(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(path_of(tmp_path, OWNER))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    holder = Holder(tmp_path)
    yield holder
    holder.end_all()


def test_file_of_a_living_process_is_held(holder: Holder, path: str) -> None:
    assert is_held(path, OWNER)
    assert not is_free(path, OWNER)


def test_file_of_a_killed_process_is_free(holder: Holder, path: str) -> None:
    holder.kill()

    assert is_free(path, OWNER)
    assert not is_held(path, OWNER)


def test_looking_does_not_take_the_file(holder: Holder, path: str) -> None:
    holder.kill()

    assert [is_free(path, OWNER) for _ in range(3)] == [True] * 3


def test_file_is_free_only_when_the_last_fork_is_gone(tmp_path: Path, path: str) -> None:
    holder = Holder(tmp_path, forks=2)
    try:
        holder.kill()
        assert is_held(path, OWNER)

        first, last = holder.forks
        os.kill(first, signal.SIGKILL)
        wait_until_gone([first], 10)
        assert is_held(path, OWNER)

        os.kill(last, signal.SIGKILL)
        wait_until_gone([last], 10)
        assert is_free(path, OWNER)
    finally:
        holder.end_all()


def test_program_that_the_process_started_does_not_hold_the_file(tmp_path: Path, path: str) -> None:
    holder = Holder(tmp_path, program=STARTER)
    try:
        assert is_held(path, OWNER)

        holder.kill()

        (program,) = holder.forks
        assert psutil.Process(program).status() != psutil.STATUS_ZOMBIE
        assert is_free(path, OWNER)
    finally:
        holder.end_all()


def test_file_of_somebody_else_proves_nothing(holder: Holder, path: str) -> None:
    holder.kill()

    assert not is_free(path, "web-1@another")
    assert not is_held(path, "web-1@another")


def test_file_that_is_not_written_yet_proves_nothing(path: str) -> None:
    Path(path).touch()

    assert not is_free(path, OWNER)
    assert not is_held(path, OWNER)


@pytest.mark.parametrize("name", ["missing.lock", ".", "missing/file.lock", ""])
def test_file_that_is_missing_proves_nothing(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name) if name else ""

    assert not is_free(path, OWNER)
    assert not is_held(path, OWNER)


def test_clean_end_removes_the_file(tmp_path: Path, path: str) -> None:
    file = LockFile(tmp_path, OWNER)
    assert is_held(path, OWNER)

    file.remove()

    assert not Path(path).exists()
    file.remove()


def test_directory_is_made(tmp_path: Path) -> None:
    file = LockFile(tmp_path / "run" / "locks", OWNER)

    assert is_held(str(file.path), OWNER)
    file.remove()


def test_directory_that_cannot_be_made_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        LockFile(tmp_path / "file", OWNER)


def test_file_of_a_process_that_is_gone_can_be_discarded(holder: Holder, path: str) -> None:
    discard(path, OWNER)
    assert is_held(path, OWNER)
    holder.kill()

    discard(path, "web-1@another")
    assert Path(path).exists()
    discard(path, OWNER)
    assert not Path(path).exists()
    discard(path, OWNER)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("web-1", "web-1"),
        ("../../etc/pass wd", "..-..-etc-pass-wd"),
        ("a@b", "a-b"),
        ("é\0\n", "-"),
        ("x" * 200, "x" * 80),
        ("", ""),
    ],
    ids=ascii,
)
def test_name_of_a_process_never_leads_out_of_the_directory(
    tmp_path: Path, name: str, file: str
) -> None:
    assert path_of(tmp_path, f"{name}@id") == tmp_path / f"{file}-id.lock"


def test_names_that_look_alike_as_files_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    assert lock_files.path_of(tmp_path, "a/b@1") != lock_files.path_of(tmp_path, "a b@2")
