"""Operating system signals become flags and a readable descriptor; no work is done in a handler."""

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

STOP_GRACEFULLY = (signal.SIGTERM, signal.SIGHUP)
STOP_SOON = (signal.SIGINT,)

_HELD_BACK = (*STOP_GRACEFULLY, *STOP_SOON, signal.SIGUSR1)

Handler = Callable[[int, FrameType | None], object] | int | None


def block() -> None:
    """Holds signals back for the time of a fork: a child that has just begun has no handlers of its
    own yet, and would lose them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)


def unblock() -> None:
    """Lets the signals come that were held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)


def wake_parent() -> None:
    """Ends the wait of the supervisor, as the end of a child does."""
    with suppress(OSError):  # it has just ended; this process soon will
        os.kill(os.getppid(), signal.SIGCHLD)


def wake_self() -> None:
    """Ends the wait of this process's main thread, for another thread of it."""
    os.kill(os.getpid(), signal.SIGCHLD)  # as a child would: the pipe becomes readable


class SupervisorSignals:
    """Counts what has arrived; `descriptor` becomes readable with each signal.

    graceful, soon   how many of either kind came
    """

    def __init__(self) -> None:
        self.graceful = 0
        self.soon = 0
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, Handler] = {}

    def install(self) -> None:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*STOP_GRACEFULLY, *STOP_SOON, signal.SIGCHLD):
            self._before[number] = signal.signal(number, self._arrived)

    def uninstall(self) -> None:
        """Back to what was before; in a forked child as well as at the end."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_asked_to_stop(self) -> bool:
        return self.graceful + self.soon > 0

    def wait(self, seconds: float) -> None:
        """Until a signal comes, or so many seconds have passed."""
        select.select([self.descriptor], [], [], seconds)
        self.drain()

    def drain(self) -> None:
        try:
            while os.read(self.descriptor, 512):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._write)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if number in STOP_GRACEFULLY:
            self.graceful += 1
        elif number in STOP_SOON:
            self.soon += 1


class Woken(BaseException):
    """Ends a wait because a signal asks for something."""


class ExecutorSignals:
    """In an executor SIGTERM asks to end after the present task, SIGUSR1 to stop the body.

    Both interrupt by an exception, and only where the executor says that it may be interrupted:
    in a wait (`is_waiting`), or in the body (`in_body`) if that is to stop. What a body forks gets
    the system's own handlers, and so do the programs that it starts.
    """

    def __init__(self, is_to_stop: Callable[[], bool], interrupt: type[BaseException]) -> None:
        self.is_stopping = False
        self.is_waiting = False
        self.in_body = False
        self._is_to_stop = is_to_stop
        self._interrupt = interrupt

    def install(self) -> None:
        # A handler that does nothing, and not SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGINT, self._ignore)
        signal.signal(signal.SIGHUP, self._ignore)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGUSR1, self._stop_body)
        os.register_at_fork(after_in_child=_restore_defaults)
        unblock()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopping = True
        if self.is_waiting:
            self.is_waiting = False
            raise Woken

    def _stop_body(self, number: int, frame: FrameType | None) -> None:
        if self.in_body and self._is_to_stop():
            self.in_body = False
            raise self._interrupt

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        pass


def _restore_defaults() -> None:
    for number in _HELD_BACK:
        signal.signal(number, signal.SIG_DFL)
