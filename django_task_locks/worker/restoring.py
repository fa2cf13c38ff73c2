"""An executor restores what its task holds by itself: when its worker adopts a new epoch, and when
Redis has lost it alone.
"""

import os
import threading
import time

from django_task_locks import own_requests, reasserting
from django_task_locks.conf import get_settings
from django_task_locks.connections import quick_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import LockServiceUnavailable
from django_task_locks.locks.rebuild import Epoch
from django_task_locks.worker.guard import Board

_INTERVAL = 0.2


class Restorer:
    """Tells the worker how many requests this executor makes by itself; while there are any, a
    thread watches the epoch in the memory that both share. The worker counts as up to date when the
    thread has restored them.
    """

    def __init__(self, board: Board, slot: int) -> None:
        self._board = board
        self._slot = slot
        self._pid = os.getpid()
        self._is_needed = threading.Event()
        self._thread: threading.Thread | None = None

    def count(self, requests: int) -> None:
        """The executor makes so many from now on."""
        if os.getpid() != self._pid:
            return  # a fork of the body's: a process for itself
        if requests and not self._board.own_requests(self._slot)[0]:
            # Nothing is sent yet: what will be granted in the present epoch needs no restoring.
            self._board.set_restored(self._slot, self._epoch().number)
        self._board.set_own_requests(self._slot, requests)
        if not requests:
            self._is_needed.clear()
            return
        self._is_needed.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._watch, name="task-locks-epoch", daemon=True
            )
            self._thread.start()

    def _epoch(self) -> Epoch:
        return Epoch.from_text(self._board.epoch)[0]

    def _watch(self) -> None:
        settings = get_settings()
        # A new epoch must not wait for it.
        locks = quick_lock_manager(min(settings.heartbeat_interval, settings.ttl / 6))
        watch = reasserting.Watch(reasserting.OwnHoldings())
        while True:
            self._is_needed.wait(_INTERVAL if watch.is_at_work else None)
            try:
                epoch = self._epoch()
                if epoch.number == self._board.own_requests(self._slot)[1]:
                    watch.look(locks)
                elif own_requests.restore(epoch):
                    self._board.set_restored(self._slot, epoch.number)
            except LockServiceUnavailable as error:
                emit("executor.not_restored", slot=self._slot, error=error)
            except Exception as error:
                emit("executor.error", slot=self._slot, error=error, exc_info=error)
            time.sleep(_INTERVAL)
