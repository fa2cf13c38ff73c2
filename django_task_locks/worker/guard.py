"""The guard: a tiny process beside each worker that stops the executors when nobody else would.

It SIGKILLs their process groups when the worker's supervisor is gone (its pipe is closed) or when
the heartbeat's deadline has passed, before anybody else may take over what they hold. Run as a
script it needs neither Django nor this package, so no task, no garbage collector and no database
can hold it up. `Board` is the memory that supervisor, guard and executors share.
"""

import mmap
import os
import select
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

NO_TASK = bytes(16)


def now() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Board:
    """Deadline, fenced flag and epoch; then for each slot: process group, what runs there, what to
    stop, the time limit of what runs, and what it holds by itself.

    Each field has one writer at a time; a reader that sees a half-written id sees one that matches
    nothing.
    """

    _HEADER = struct.Struct("dqqq64s")
    _SLOT = struct.Struct("q16sq16sqddqq")
    IDLE, CLAIMED, BODY, RECORDING = range(4)
    NO_STOP, CANCEL, ABORT, TIME_LIMIT = range(4)

    def __init__(self, slots: int, descriptor: int | None = None) -> None:
        """descriptor: that of another process's board; a new one is made without it."""
        self.slots = slots
        size = self._HEADER.size + slots * self._SLOT.size
        if descriptor is None:
            descriptor, path = tempfile.mkstemp(prefix="task-locks-board-")
            os.unlink(path)
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, size)

    def _get(self, offset: int, form: str) -> tuple[int | float | bytes, ...]:
        return struct.unpack_from(form, self._memory, offset)

    def _set(self, offset: int, form: str, value: float | bytes) -> None:
        struct.pack_into(form, self._memory, offset, value)

    @property
    def deadline(self) -> float:
        """When the executors must be dead unless a heartbeat comes first; 0: not yet armed."""
        return float(self._get(0, "d")[0])

    @deadline.setter
    def deadline(self, value: float) -> None:
        self._set(0, "d", value)

    @property
    def is_fenced(self) -> bool:
        """Whether the deadline has passed since it was last cleared."""
        return bool(self._get(8, "q")[0])

    @is_fenced.setter
    def is_fenced(self, value: bool) -> None:
        self._set(8, "q", int(value))

    @property
    def epoch(self) -> str:
        """The epoch of the worker's locks. While it changes it may be seen as one that is none."""
        number = int(self._get(16, "q")[0])
        server = self._memory[32:96].rstrip(b"\0").decode(errors="replace")
        return f"{number}:{server}"

    @epoch.setter
    def epoch(self, value: str) -> None:
        number, _, server = value.partition(":")
        self._set(32, "64s", server.encode())
        self._set(16, "q", int(number))

    @property
    def is_epoch_doubted(self) -> bool:
        """Whether an executor has found that Redis has another epoch."""
        return bool(self._get(24, "q")[0])

    @is_epoch_doubted.setter
    def is_epoch_doubted(self, value: bool) -> None:
        self._set(24, "q", int(value))

    def _offset(self, slot: int) -> int:
        return self._HEADER.size + slot * self._SLOT.size

    def group(self, slot: int) -> int:
        return int(self._get(self._offset(slot), "q")[0])

    def set_group(self, slot: int, group: int) -> None:
        self._set(self._offset(slot), "q", group)

    def task(self, slot: int) -> bytes:
        """The id of what the slot's executor has claimed, as 16 bytes."""
        return bytes(self._get(self._offset(slot) + 8, "16s")[0])  # type: ignore[arg-type]

    def phase(self, slot: int) -> int:
        return int(self._get(self._offset(slot) + 24, "q")[0])

    def set_task(self, slot: int, task: bytes, phase: int) -> None:
        self._set(self._offset(slot) + 8, "16s", task)
        self._set(self._offset(slot) + 24, "q", phase)

    def stop_of(self, slot: int) -> tuple[bytes, int]:
        """What the slot's executor is asked to stop, and why."""
        return (
            bytes(self._get(self._offset(slot) + 32, "16s")[0]),  # type: ignore[arg-type]
            int(self._get(self._offset(slot) + 48, "q")[0]),
        )

    def ask_to_stop(self, slot: int, task: bytes, why: int) -> None:
        self._set(self._offset(slot) + 48, "q", why)
        self._set(self._offset(slot) + 32, "16s", task)

    def limit_of(self, slot: int) -> tuple[float, float]:
        """Seconds that the body in this slot may take, and when they are over; 0 for no limit."""
        return float(self._get(self._offset(slot) + 56, "d")[0]), float(
            self._get(self._offset(slot) + 64, "d")[0]
        )

    def set_limit(self, slot: int, seconds: float, over_at: float) -> None:
        self._set(self._offset(slot) + 56, "d", seconds)
        self._set(self._offset(slot) + 64, "d", over_at)

    def own_requests(self, slot: int) -> tuple[int, int]:
        """How many requests the slot's executor makes by itself, and the number of the epoch in
        which it has restored them.
        """
        count, number = self._get(self._offset(slot) + 72, "qq")
        return int(count), int(number)

    def set_own_requests(self, slot: int, count: int) -> None:
        self._set(self._offset(slot) + 72, "q", count)

    def set_restored(self, slot: int, number: int) -> None:
        self._set(self._offset(slot) + 80, "q", number)

    def clear(self, slot: int) -> None:
        self._memory[self._offset(slot) : self._offset(slot + 1)] = bytes(self._SLOT.size)

    def groups(self) -> set[int]:
        return {group for slot in range(self.slots) if (group := self.group(slot)) > 1}

    def kill_groups(self) -> None:
        for group in self.groups():
            kill_group(group)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    if group > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def living(groups: Collection[int]) -> Iterator[int]:
    """Those of the groups in which a process can still run: to be killed takes a moment, and a
    program may be in a wait that nothing interrupts. A zombie cannot run; whether anybody waits for
    it does not matter.
    """
    if sys.platform == "linux" and os.path.exists("/proc/self"):
        yield from (group for group in _groups_in_proc() if group in groups)
        return
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):  # zombies are passed over there
            os.killpg(group, 0)
            yield group


def is_empty(group: int) -> bool:
    return not any(living([group]))


def _groups_in_proc() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, ValueError):  # it has ended meanwhile
                with open(f"/proc/{entry}/stat", errors="replace") as file:
                    # The name in front may hold anything, brackets too.
                    state, _, group = file.read().rpartition(")")[2].split()[:3]
                if state not in "ZX":
                    yield int(group)


def watch(board: Board, supervisor: int) -> None:
    """Returns when the supervisor is gone, the groups are killed, and nothing of them lives on: so
    long this process keeps the worker's lock file.
    """
    while True:
        left = board.deadline - now() if board.deadline else 1.0
        # A suspended machine stops the waiting too, hence the short rounds.
        readable, _, _ = select.select([supervisor], [], [], min(max(left, 0.01), 1.0))
        if readable and not os.read(supervisor, 64):
            groups = board.groups()
            board.kill_groups()
            while any(living(groups)):
                time.sleep(0.01)
            return
        if board.deadline and now() > board.deadline:
            board.is_fenced = True
            board.kill_groups()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watch(Board(int(sys.argv[1]), int(sys.argv[2])), int(sys.argv[3]))
