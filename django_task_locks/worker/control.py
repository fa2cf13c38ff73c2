"""The control channel: messages to this worker, read without a thread and without polling."""

from typing import Any

from django_task_locks.connections import quick_lock_manager
from django_task_locks.locks import LockManager
from django_task_locks.locks.failures import ERRORS
from django_task_locks.locks.protocol import text
from django_task_locks.worker.guard import now

_MARGIN = 5.0
_PATIENCE = 0.5
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 5.0


class ControlChannel:
    """A pending BLPOP whose socket the supervisor's loop watches.

    Unread messages stay in Redis, so a channel that is closed (around a fork) or cut loses none.
    The supervisor does nothing else while the channel connects, which is therefore given up soon.
    """

    def __init__(self, owner: str, longest_wait: float) -> None:
        self._wait = max(1.0, longest_wait)
        self._manager: LockManager = quick_lock_manager(_PATIENCE)
        self._key = self._manager.keys.control(owner)
        self._connection: Any = None
        self._is_pending = False
        self._asked_at = 0.0
        self._retry_at = 0.0
        self._retry_delay = _FIRST_RETRY

    def descriptor(self) -> int | None:
        """What to watch for reading; asks first if no question is pending. None while Redis is
        away: ask again.
        """
        if not self._is_pending and now() >= self._retry_at:
            try:
                self._connection = self._connection or self._manager.transport.connection_to(
                    self._key
                )
                self._connection.connect()  # by way of the sentinel, if there is one
                self._connection.send_command("BLPOP", self._key, self._wait)
                self._is_pending, self._asked_at = True, now()
            except (*ERRORS, OSError):
                self._drop()
        elif self._is_pending and now() - self._asked_at > self._wait + _MARGIN:
            self._drop()
        if not self._is_pending:
            return None
        return int(self._connection._sock.fileno())

    def read(self) -> str | None:
        """The message that has come, None if the wait has only ended. Call when readable."""
        if self._connection is None:
            return None
        try:
            reply = self._connection.read_response()
        except (*ERRORS, OSError):
            self._drop()
            return None
        self._is_pending, self._retry_delay = False, _FIRST_RETRY
        return text(reply[1]) if reply else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
        self._connection = None
        self._is_pending = False

    def _drop(self) -> None:
        self.close()
        self._retry_at = now() + self._retry_delay
        self._retry_delay = min(self._retry_delay * 2, _LONGEST_RETRY)
