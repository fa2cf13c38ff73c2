"""Bodies of tasks; each records when it began and ended."""

import asyncio
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_task_locks import adispatch, current_task, dispatch, hold
from django_task_locks.models import State, Task
from django_task_locks.signals import task_state_changed
from tests.testapp.models import Book, Run

_STAMPING = """
import sys, time
with open(sys.argv[1], "a") as file:
    while True:
        print(time.monotonic(), file=file, flush=True)
        time.sleep(0.02)
"""


@contextmanager
def recorded(label: str) -> Iterator[Run]:
    task = current_task()
    run = Run.objects.create(
        task_id=task.pk if task else None, label=label, pid=os.getpid(), began=time.monotonic()
    )
    try:
        yield run
    finally:
        Run.objects.filter(pk=run.pk).update(ended=time.monotonic())


def add(a: int, b: int = 0) -> int:
    return a + b


def record(label: str = "", seconds: float = 0.0) -> str:
    with recorded(label):
        time.sleep(seconds)
    return label


def record_until(label: str, path: str) -> None:
    """Runs until a file appears."""
    with recorded(label):
        while not Path(path).exists():
            time.sleep(0.01)


def burn(label: str, seconds: float) -> None:
    """Holds the processor, and hardly ever lets go of the interpreter."""
    with recorded(label):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(100_000))


def stubborn(label: str, seconds: float) -> None:
    """Does not let itself be stopped by any exception."""
    with recorded(label):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(BaseException):
                time.sleep(0.05)


def with_subprocess(label: str, path: str) -> None:
    """Starts a program that adds the time to a file again and again, and waits for it."""
    with recorded(label):
        subprocess.run([sys.executable, "-c", _STAMPING, path], check=True)


def fail(message: str) -> None:
    raise ValueError(message)


def fail_after(text: str, path: str) -> None:
    """As soon as a file appears."""
    with recorded(text):
        while not Path(path).exists():
            time.sleep(0.01)
        raise ValueError(text)


def leave(status: int) -> None:
    sys.exit(status)


def vanish(status: int) -> None:
    """Ends the process without a word."""
    os._exit(status)


def kill_self(number: int = signal.SIGKILL) -> None:
    with recorded("kill_self"):
        os.kill(os.getpid(), number)
        time.sleep(10)


def return_object() -> object:
    return object()


def leave_transaction_open() -> None:
    transaction.set_autocommit(False)
    Book.objects.create(title="never to be seen")


def write_book(title: str, *, then_fail: bool = False) -> int:
    book = Book.objects.create(title=title)
    if then_fail:
        raise ValueError("after writing")
    return book.pk


def nested(label: str, shared: list[str]) -> dict[str, Any]:
    """Dispatches an immediate task on the resources that it shares itself."""
    with recorded(label):
        inner = dispatch(record, [f"{label} inside"], shared=shared, immediate=True, deferred=False)
        return {"inner": str(inner.pk), "state": inner.state}


async def arecord(label: str, seconds: float = 0.0) -> str:
    task = current_task()
    run = await Run.objects.acreate(
        task_id=task.pk if task else None, label=label, pid=os.getpid(), began=time.monotonic()
    )
    await asyncio.sleep(seconds)
    await Run.objects.filter(pk=run.pk).aupdate(ended=time.monotonic())
    return label


def hold_inside(resource: str) -> None:
    """Wants for itself what its task holds."""
    with hold(resource, timeout=5):
        pass


def stamp(path: str, seconds: float) -> None:
    """Adds the time to a file again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with open(path, "a") as file:
            print(time.monotonic(), file=file)
        time.sleep(0.02)


async def stamp_in_thread(label: str, path: str) -> None:
    """A coroutine that waits for a thread, which no exception reaches."""
    await sync_to_async(stamp)(path, 6.0)


def wait_for_program(label: str, path: str) -> None:
    """Starts a program as careless code does: nothing ends it when the waiting is interrupted."""
    subprocess.Popen([sys.executable, "-c", _STAMPING, path]).wait()


def fork_and_exit() -> int:
    """Forks, and lets the child come back as careless code does."""
    if (pid := os.fork()) == 0:
        sys.exit(0)
    os.waitpid(pid, 0)
    return os.getpid()


def end_a_process() -> bool:
    """Whether a process of its own ends when it is asked to."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    time.sleep(0.2)  # Python forgets a signal that comes while the child is made
    process.terminate()
    process.join(5)
    has_ended = not process.is_alive()
    process.kill()
    return has_ended


def dispatch_again_and_again(flag: str, seconds: float) -> None:
    """Immediate tasks on a resource of their own, one after the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        Path(flag).touch()
        dispatch(add, [1], exclusive=["inner"], immediate=True, deferred=False)


def nest_and_tidy_up(path: str) -> None:
    """Has something to do at its end, whatever happens to the task inside."""
    try:
        dispatch(record, ["inside", 30.0], immediate=True, deferred=False)
        Path(path).write_text("went on")
    finally:
        with open(path, "a") as file:
            file.write("tidied up")


def in_steps(count: int, seconds: float, path: str = "") -> None:
    """Reports its progress after each step; with a path it goes on when a file appears there."""
    task = current_task()
    assert task is not None
    for number in range(1, count + 1):
        time.sleep(seconds)
        task.report_progress(number, count, f"step {number}")
    while path and not Path(path).exists():
        time.sleep(0.01)


def dispatch_and_wait(shared: list[str]) -> Any:
    """The result of another task, which a worker runs meanwhile."""
    return dispatch(record, ["inside"], shared=shared).wait(20)


async def adispatch_and_wait() -> Any:
    inner = await adispatch(arecord, ["inside"])
    return await inner.await_result(20)


async def acount_books() -> int:
    return await Book.objects.acount()


def deaf_until(label: str, path: str) -> str:
    """Does not hear of being stopped, and ends by itself when a file appears."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    record_until(label, path)
    return label


def own_pid() -> int:
    return os.getpid()


def grow(megabytes: int) -> int:
    """Keeps so much memory for ever."""
    _KEPT.append(bytearray(os.urandom(1)) * (megabytes * 1024 * 1024))
    return os.getpid()


_KEPT: list[bytearray] = []


def until(path: str) -> str:
    """Runs until a file appears, without the database; then there is another one. A first one has
    the number of the process.
    """
    Path(f"{path}.begins").write_text(str(os.getpid()))
    Path(f"{path}.begins").rename(f"{path}.began")
    while not Path(path).exists():
        time.sleep(0.01)
    Path(f"{path}.ended").touch()
    return path


def match_for_ever(label: str, seconds: float) -> None:
    """In C code: an expression that never comes to an end."""
    with recorded(label):
        re.fullmatch(r"(a|aa)+", "a" * 1000 + "b")


def calculate_for_ever(label: str, seconds: float) -> None:
    """In C code that looks at no signal and lets nobody else at the interpreter."""
    with recorded(label):
        (1 << 200_000_000) // 3**100_000_000


def sleep_in_c(label: str, seconds: float) -> None:
    """In C code that waits, again and again, without the interpreter's knowledge."""
    with recorded(label):
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
        while True:
            libc.usleep(900_000)


def hold_in_c(resource: str) -> None:
    """As `sleep_in_c`, and holds a resource by itself."""
    with hold(resource, timeout=5):
        sleep_in_c(resource, 0)


def leave_a_daemon(seconds: float) -> None:
    """Starts a program in a session of its own, which nobody waits for."""
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(seconds)
        os._exit(0)
    os.waitpid(pid, 0)


def begin_by_hand() -> None:
    """A transaction that Django does not know of."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Book.objects.create(title="never to be seen")


async def abegin_by_hand() -> None:
    await sync_to_async(begin_by_hand)()


def close_the_driver() -> None:
    """Takes the connection away under Django's feet."""
    Book.objects.count()
    connection.connection.close()


async def aclose_the_driver() -> None:
    await sync_to_async(close_the_driver)()


def begin_and_fail() -> None:
    begin_by_hand()
    raise ValueError("of its own")


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_unspeakable() -> None:
    raise _Unspeakable


def raise_long(size: int) -> None:
    raise ValueError("x" * size)


def recurse() -> None:
    recurse()


def return_unspeakable() -> object:
    class Result:
        def __repr__(self) -> str:
            raise RuntimeError("no words")

    return Result()


def query_until(path: str) -> str:
    """As `until`, with a connection to the database from before the wait, which it uses no more."""
    Book.objects.count()
    return until(path)


def tell_changes(path: str) -> None:
    """From here on this process writes each change of a task's state that it is told."""

    def write(task: Task, old_state: State, new_state: State, **kwargs: Any) -> None:
        with open(path, "a") as file:
            print(f"{task.name}{task.args} {old_state} {new_state}", file=file)

    task_state_changed.connect(write, weak=False)
