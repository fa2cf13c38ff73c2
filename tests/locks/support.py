"""Short names for what the tests of the lock manager are about."""

from collections.abc import Iterable

from django_task_locks.locks import LockManager, LockRequest, protocol
from django_task_locks.locks.requests import Claimant, Claimed, Idle, Lane, Lanes

WORKER = Claimant(owner="worker@1", slot="0.1", ttl=30)
OTHER_WORKER = Claimant(owner="other@2", slot="0.1", ttl=30)
WEB = Claimant(owner="web@3", ttl=30)


def task(
    id: str,
    *exclusive: str,
    shared: Iterable[str] = (),
    priority: int = 0,
    lane: Lane | None = None,
    run_after: float | None = None,
) -> LockRequest:
    """The request of a task: granted to a queue, until a worker claims it."""
    return LockRequest(
        id=id,
        exclusive=exclusive,
        shared=tuple(shared),
        priority=priority,
        lane=lane or Lane(),
        run_after=run_after,
    )


def hold(
    id: str,
    *exclusive: str,
    shared: Iterable[str] = (),
    priority: int = 0,
    by: Claimant = WEB,
) -> LockRequest:
    """The request of a process for itself: held from its grant on."""
    return LockRequest(
        id=id, exclusive=exclusive, shared=tuple(shared), priority=priority, claimant=by
    )


class Executor:
    """One executor of a worker. It learns of the lanes as it is told, and reads all of its own."""

    def __init__(
        self,
        manager: LockManager,
        claimant: Claimant = WORKER,
        queues: Iterable[str] = ("default",),
    ) -> None:
        self.manager = manager
        self.claimant = claimant
        self.queues = set(queues)
        self.version = ""
        self.lanes: list[str] = []

    def claim(self) -> Claimed | Idle:
        reply = self.manager.claim(self.claimant, self.version, self.lanes)
        return self.claim() if self._has_learnt(reply) else _settled(reply)

    def advance(self, done: Claimed) -> Claimed | Idle:
        reply = self.manager.advance(
            self.claimant, self.version, self.lanes, id=done.id, token=done.token
        )
        return self.claim() if self._has_learnt(reply) else _settled(reply)

    def take(self) -> Claimed:
        """Claims where there must be something."""
        reply = self.claim()
        assert isinstance(reply, Claimed)
        return reply

    def is_woken(self) -> bool:
        """Whether there is a sign right now, which is taken by this."""
        return self.manager.wait_for_ready(self.lanes, 0.001)

    def _has_learnt(self, reply: Claimed | Idle | Lanes) -> bool:
        if not isinstance(reply, Lanes):
            return False
        self.version = reply.version
        self.lanes = [name for name, lane in reply.lanes.items() if lane.queue in self.queues]
        return True


def _settled(reply: Claimed | Idle | Lanes) -> Claimed | Idle:
    assert not isinstance(reply, Lanes)
    return reply


def request_all(manager: LockManager, requests: Iterable[LockRequest]) -> None:
    """Many requests in few round trips."""
    manager.request(task("loads the script"))
    manager.release("loads the script")
    pipeline = manager.client.pipeline(transaction=False)
    for count, request in enumerate(requests, 1):
        arguments = protocol.request(request).arguments
        pipeline.execute_command(*manager.scripts["request"].by_digest(arguments, ""))
        if count % 1000 == 0:
            pipeline.execute()
    pipeline.execute()
