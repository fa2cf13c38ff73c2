"""A worker's steps one by one, so that a test can do something between any two of them."""

from dataclasses import replace

from django_task_locks.exceptions import InvalidTransition
from django_task_locks.locks import LockManager
from django_task_locks.locks.requests import Claimant, Claimed, Lanes, RequestInfo
from django_task_locks.models import AppStatus, Task
from tests.factories import AppStatusFactory


class HandWorker:
    """One process with one executor; it serves all queues."""

    def __init__(self, locks: LockManager, status: AppStatus | None = None) -> None:
        self.locks = locks
        self.status = status or AppStatusFactory.create()
        ttl = self.status.ttl.total_seconds()
        self.claimant = Claimant(owner=self.status.owner, ttl=ttl, slot="0.1")
        self._version = ""
        self._lanes: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        return self.status.owner

    def next_slot(self) -> None:
        """From now on it is another of its executors."""
        number, _, generation = self.claimant.slot.partition(".")
        self.claimant = replace(self.claimant, slot=f"{int(number) + 1}.{generation}")

    def claim(self) -> Claimed:
        """The next that is ready; there is one."""
        while True:
            reply = self.locks.claim(self.claimant, self._version, self._lanes)
            if isinstance(reply, Lanes):
                self._version, self._lanes = reply.version, tuple(reply.lanes)
                continue
            assert isinstance(reply, Claimed), "nothing is ready"
            return reply

    def start(self, claimed: Claimed) -> Task | None:
        """The task, running now; None if it is no longer to be run."""
        task = Task.objects.get(pk=claimed.id)
        try:
            task.start(self.status, claimed.token)
        except InvalidTransition:
            return None
        return task

    def run(self) -> Task:
        """The next that is ready: claimed, and running from now on."""
        task = self.start(self.claim())
        assert task is not None
        return task

    def release(self, claimed: Claimed) -> None:
        self.locks.release(claimed.id, owner=self.owner, token=claimed.token)

    def messages(self) -> list[str]:
        """What others have sent to it."""
        key = self.locks.keys.control(self.owner)
        return [message.decode() for message in self.locks.client.lrange(key, 0, -1)]


def info(locks: LockManager, task: Task) -> RequestInfo:
    """The task's request, which there is."""
    found = locks.inspect_request(str(task.pk))
    assert found is not None
    return found
