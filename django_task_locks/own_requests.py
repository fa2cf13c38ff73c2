"""What this process asks for and holds by itself: its `hold`s and its immediate tasks.

The database says what tasks hold; of these only the process knows. When Redis has lost its data it
restores them, before anybody is granted anything.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django_task_locks import epochs
from django_task_locks.connections import restoring_lock_manager
from django_task_locks.events import emit
from django_task_locks.exceptions import EpochLost
from django_task_locks.locks.rebuild import Epoch, Known, Rebuild, arrival
from django_task_locks.locks.requests import LockRequest
from django_task_locks.signals import hold_lost


@dataclass(slots=True)
class OwnRequest:
    """One of them, from before it is sent until it is released.

    waits    whether it may queue: until it is granted, it is restored as waiting
    made_at  Unix time in seconds, for its place in the order
    token    from its grant on
    held     what the code that holds it was given
    is_lost  its code was told that it holds nothing any more
    """

    request: LockRequest
    waits: bool
    made_at: float
    token: int | None = None
    held: Any = None
    is_lost: bool = False
    _epoch: str = ""

    def sending(self) -> None:
        """It is about to be sent."""
        self._epoch = epochs.current()

    async def asending(self) -> None:
        """As `sending`, without blocking the event loop."""
        self._epoch = await epochs.acurrent()

    def is_granted(self, token: int | None) -> bool:
        """Notes the grant. False if a new epoch has begun since it was sent: the grant may be one
        of the old epoch, which counts no more; ask again.
        """
        with _State.lock:
            self.token = token
            is_present = epochs.current() == self._epoch
            if not is_present:
                self.token = None
            return is_present


class _State:
    lock: ClassVar[threading.RLock] = threading.RLock()
    requests: ClassVar[dict[str, OwnRequest]] = {}
    changed: ClassVar[Callable[[int], None] | None] = None

    @classmethod
    def forget_in_child(cls) -> None:
        cls.lock = threading.RLock()
        cls.requests = {}
        cls.changed = None


os.register_at_fork(after_in_child=_State.forget_in_child)


def on_change(tell: Callable[[int], None] | None) -> None:
    """Has the number of requests told before one is sent, and after one has ended."""
    _State.changed = tell


def add(request: OwnRequest) -> None:
    """Before it is sent: from here on it is restored."""
    with _State.lock:
        _State.requests[request.request.id] = request
        if _State.changed is not None:
            _State.changed(len(_State.requests))


def forget(id: str) -> LockRequest | None:
    """It is about to be released. Returns it if its code holds it, or held it before it was lost;
    None too for what is none of this process's own.
    """
    with _State.lock:
        own = _State.requests.pop(id, None)
        if own is None:
            return None
        if _State.changed is not None:
            _State.changed(len(_State.requests))
    return own.request if own.token is not None or own.is_lost else None


def known() -> list[str]:
    """The ids of all of them."""
    with _State.lock:
        return list(_State.requests)


def granted() -> list[Known]:
    """Those that are held, as their process knows them."""
    with _State.lock:
        return [_known(own) for own in _State.requests.values() if own.token is not None]


def lose(id: str, reason: str) -> None:
    """What it needs is somebody else's by now. A hold is lost from here on; a task, whom nobody can
    tell, may yet be restored. One that has ended is no error.
    """
    with _State.lock:
        own = _State.requests.get(id)
    if own is not None and own.held is not None and own.token is not None:
        _tell(own, reason)
    elif own is not None and own.token is not None:
        emit("task.unlocked", task=id, name=own.request.label, reason=reason)


def is_lost(id: str) -> bool:
    """Whether its code was told that it holds nothing any more, and goes on."""
    with _State.lock:
        own = _State.requests.get(id)
    return own is not None and own.is_lost


def restore(epoch: Epoch, others: Sequence[Known] = ()) -> bool:
    """Restores them in this epoch, which `epochs` has adopted, and the others with them. False if
    its rebuild has not come so far: to be repeated. What could not be restored is lost, and its
    code is told.

    Raises LockServiceUnavailable.
    """
    with _State.lock:
        present = [own for own in _State.requests.values() if own.token is not None or own.waits]
    if not present and not others:
        return True
    manager = restoring_lock_manager()
    rebuild = Rebuild(manager)
    try:
        try:
            refused = dict(rebuild.restore(epoch, [*map(_known, present), *others]))
        except EpochLost:
            found = rebuild.look()
            if found.epoch != epoch or not found.is_open:
                return False
            refused = {
                own.request.id: "the locks were opened without it"
                for own in present
                if not _is_there(own, manager.inspect_request(own.request.id))
            }
    finally:
        manager.transport.drop_connections()
    for own in present:
        if own.request.id in refused and own.token is not None:
            _tell(own, refused[own.request.id])
    return True


def _known(own: OwnRequest) -> Known:
    return Known(own.request, None, own.token, arrival(own.made_at * 1000))


def _is_there(own: OwnRequest, info: Any) -> bool:
    return info is not None and (own.token is None or info.token == own.token)


def tell_lost(reason: str) -> None:
    """This process was declared missing: what it holds is, or will be, somebody else's."""
    with _State.lock:
        present = [own for own in _State.requests.values() if own.token is not None]
    for own in present:
        _tell(own, reason)


def _tell(own: OwnRequest, reason: str) -> None:
    own.token, own.waits, own.is_lost = None, False, True  # nobody restores it
    emit("hold.lost", request=own.request.id, label=own.request.label, reason=reason)
    if own.held is not None:
        hold_lost.send_robust(sender=type(own.held), held=own.held, reason=reason)
