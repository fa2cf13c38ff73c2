"""The worker's child processes: forking them, and ending them without touching anybody else."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from django_task_locks.events import emit
from django_task_locks.worker import guard as guard_module
from django_task_locks.worker import os_signals
from django_task_locks.worker.guard import NO_TASK, Board, is_empty, kill_group, now

_PR_SET_PDEATHSIG = 1
_LONG = 5.0


@dataclass(slots=True)
class Child:
    """An executor, or with `job` set a short-lived child that does one job."""

    slot: int
    generation: int
    pid: int
    job: str = ""
    started_at: float = field(default_factory=now)
    ended_at: float = 0.0  # when its end was noted; what it started may live on for a moment
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended: its own status, or the number of the signal that killed it; and what the
    board says it was at.
    """

    child: Child
    status: int
    signal: int
    task: bytes = NO_TASK

    @property
    def reason(self) -> str:
        if self.signal:
            return f"Killed by signal {self.signal}."
        return f"Its process exited with status {self.status} and recorded no outcome."


class Guard:
    """The guard process, kept alive by the supervisor.

    lock_file  descriptor of the present incarnation's lock file, which the guard holds, too: no
               program of a task has it, and the guard ends after all of them
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self.lock_file: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ensure(self) -> None:
        """Starts it, or starts it again if it has died."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close_pipe()
        read, self._pipe = os.pipe()
        self._process = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                "-I",
                "-S",
                str(Path(guard_module.__file__)),
                str(self._board.slots),
                str(self._board.descriptor),
                str(read),
            ],
            pass_fds=(
                self._board.descriptor,
                read,
                *([] if self.lock_file is None else [self.lock_file]),
            ),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read)

    def close_pipe(self) -> None:
        """For a child: only the supervisor's end may keep the guard waiting."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def stop(self) -> None:
        self.close_pipe()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LONG)
            self._process = None


@dataclass(slots=True)
class Children:
    """Forks children into the board's slots and reaps them."""

    board: Board
    guard: Guard
    running: dict[int, Child] = field(default_factory=dict)

    def fork(self, slot: int, generation: int, run: Callable[[], int], job: str = "") -> Child:
        """Starts a child in a process group of its own. Nothing may be open here that a child must
        not share. run's return value is its exit status; it calls `os_signals.unblock`.
        """
        self.board.clear(slot)
        parent = os.getpid()
        gc.freeze()  # what is there now is shared, not copied by the child's first collection
        os_signals.block()  # `run` lets them come when it is ready for them
        try:
            pid = os.fork()
            if pid == 0:
                _be_child(self.board, slot, parent, run)
        finally:
            os_signals.unblock()
        with suppress(OSError):  # the child does the same; whoever comes first
            os.setpgid(pid, pid)
        self.board.set_group(slot, pid)
        child = Child(slot, generation, pid, job)
        self.running[pid] = child
        return child

    def reap(self) -> list[Exit]:
        """Those that have ended, and with each its whole process group: killed, and gone."""
        exits = []
        for pid, child in list(self.running.items()):
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None:
                continue
            # Still a zombie, so its number is nobody else's: what it started dies first.
            kill_group(pid)
            if not is_empty(pid):
                self._note_lingering(child)
                continue
            task = self.board.task(child.slot)
            self.board.clear(child.slot)
            _, status = os.waitpid(pid, 0)
            del self.running[pid]
            code = os.waitstatus_to_exitcode(status)
            exits.append(Exit(child, max(code, 0), max(-code, 0), task))
        self._reap_adopted()
        return exits

    def is_any_lingering(self) -> bool:
        """Whether a child has ended of whose process group something is still dying."""
        return any(child.ended_at for child in self.running.values())

    def _note_lingering(self, child: Child) -> None:
        before = child.ended_at
        child.ended_at = before or now()
        if before and before < now() - _LONG and not child.is_reported:
            child.is_reported = True
            emit("executor.lingering", slot=child.slot, group=child.pid)

    def _reap_adopted(self) -> None:
        """What tasks have started and left comes to process 1, which in a container is this one."""
        while self.running or self.guard.pid:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None or info.si_pid in (*self.running, self.guard.pid):
                return  # nobody, or one of ours, whose end is noted elsewhere
            os.waitpid(info.si_pid, 0)

    def kill_if(self, child: Child, task: bytes, phases: tuple[int, ...]) -> bool:
        """SIGKILLs the child's group if it is at this task, in one of these phases.

        The child is stopped before the look: otherwise it might go on to the next task between
        the look and the signal.
        """
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            at_it = self.board.task(child.slot) == task and self.board.phase(child.slot) in phases
            if at_it:
                kill_group(child.pid)
                return True
            os.kill(child.pid, signal.SIGCONT)
        return False

    def signal_all(self, number: int, *, but: str | None = None) -> None:
        """Sends a signal to all children, except those that do this job."""
        for pid, child in self.running.items():
            if child.job != but:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def _be_child(board: Board, slot: int, parent: int, run: Callable[[], int]) -> None:
    """The life of a forked child; never returns."""
    status = 70
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        board.set_group(slot, os.getpid())
        die_with(parent, signal.SIGKILL)
        status = run()
    except BaseException as error:
        emit("executor.error", slot=slot, error=f"{type(error).__name__}: {error}", exc_info=error)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # the parent's exit handlers are not ours


def die_with(parent: int, number: int) -> None:
    """On Linux the kernel signals this process when its parent ends; the guard does so anywhere."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:
            os.kill(os.getpid(), number)
