"""LockManager: the operations on locks, on a synchronous client."""

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from redis import Redis
from redis.cluster import RedisCluster
from redis.exceptions import ReadOnlyError

from django_task_locks.exceptions import EpochLost, TaskLocksError
from django_task_locks.locks import commands, failures, protocol, scripts
from django_task_locks.locks.commands import Commands
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.protocol import Call, EpochSource
from django_task_locks.locks.remembered import Remembered
from django_task_locks.locks.requests import (
    Blocked,
    Claimant,
    Claimed,
    Due,
    Ended,
    Grant,
    Idle,
    Lane,
    Lanes,
    LockRequest,
    RequestInfo,
    ResourceInfo,
    Waiting,
)
from django_task_locks.locks.transport import (
    ClientTransport,
    ClusterTransport,
    Transport,
    all_scripts,
)

R = TypeVar("R")


class LockManager:
    """Exclusive and shared locks on named resources, granted all together and in order.

    Every operation is one atomic step on the server and may be repeated with the same result, so
    a caller whose reply was lost asks again.

    Any operation raises LockServiceUnavailable when the server cannot be reached or cannot serve
    (the outcome is unknown then) and ForeignValue when a key that it needs holds something else
    (nothing was changed then). Operations of a process raise OwnerClosed after it was declared
    missing and StaleSlot after its slot was given to a successor.

    client    a redis.Redis or RedisCluster, with or without decode_responses, whose socket timeout
              must be longer than any `wait_for_...` that is asked of it; or a `Transport`
    prefix    two managers with different prefixes never meet
    endpoint  how messages name the server (never with a password)
    batch     most waiters that one call to the server examines
    epoch     which state of the server's data is the right one, see `rebuild`; without it whatever
              is there is taken for right. Operations raise EpochLost where it is another
    """

    def __init__(
        self,
        client: Redis | RedisCluster | Transport,
        prefix: str = "task_locks",
        endpoint: str = "Redis",
        *,
        batch: int = scripts.BATCH,
        epoch: EpochSource | None = None,
    ) -> None:
        self.keys = Keys(prefix)
        self.endpoint = endpoint
        self.transport = _transport(client)
        self.scripts = all_scripts(self.keys, batch, identifies=not self.transport.identifies)
        self._epoch = epoch

    @property
    def client(self) -> Any:
        """A redis.Redis or RedisCluster that leads to the same server."""
        return self.transport.client

    # -- requests ------------------------------------------------------------------------------

    def request(self, request: LockRequest) -> Grant | Waiting | Due:
        """Grants all resources of the request, or queues it behind those in its way; before its
        `run_after` it does neither, and takes no place before anybody.

        A known id is answered with its present state.
        """
        return self._run(protocol.request(request))

    def request_many(
        self, requests: Iterable[LockRequest]
    ) -> list[Grant | Waiting | Due | TaskLocksError]:
        """`request` for each of them, in this order and in one round trip. What is raised there for
        one of them alone stands in its place.
        """
        return self.run_many(map(protocol.request, requests))

    def try_request(self, request: LockRequest) -> Grant | Waiting | Due | Blocked:
        """Grants all resources of the request now, or leaves nothing of it and names the blockers.

        A known id is answered with its present state: Waiting if it is queued already.
        """
        return self._run(protocol.try_request(request))

    def release(self, id: str, *, owner: str = "", token: int | None = None) -> Ended:
        """Ends a request, held, granted or waiting, and hands over to those that waited for it.

        With an owner or a token it is refused unless they are the request's.
        """
        return self._settled(self._run(protocol.release(id, owner, token)))

    def requeue(
        self, id: str, *, owner: str, token: int | None, run_after: float | None = None
    ) -> Ended:
        """Hands back a claimed request whose code runs no more or never ran: it keeps its place in
        the order, or with `run_after` (a Unix time) gets one when it is due.
        """
        return self._settled(self._run(protocol.requeue(id, owner, token, run_after)))

    def settle(self) -> Ended:
        """Goes on handing over where an earlier call left more than it may do at once.

        Releases do so by themselves, and so does whoever claims next.
        """
        return self._settled(self._run(protocol.settle()))

    # -- executors -----------------------------------------------------------------------------

    def claim(
        self, claimant: Claimant, version: str, lanes: Iterable[str]
    ) -> Claimed | Idle | Lanes:
        """Gives the first ready request of these lanes to the claimant's slot.

        version is that of the `Lanes` which the caller chose from ("" at first).
        """
        return self._claimed(self._run(protocol.claim(claimant, version, lanes)))

    def advance(
        self, claimant: Claimant, version: str, lanes: Iterable[str], *, id: str, token: int
    ) -> Claimed | Idle | Lanes:
        """Releases what the slot holds and claims the next, in one round trip."""
        return self._claimed(self._run(protocol.advance(claimant, version, lanes, id, token)))

    def wait_for_ready(self, lanes: Iterable[str], timeout: float) -> bool:
        """Blocks until one of the lanes has something ready, a lane is new, or `timeout` seconds
        have passed; returns whether there was a sign. Claim in any case: a sign may be lost.
        """
        return self._send(commands.wait_for_ready(self.keys, lanes, timeout))

    def wait_for_grant(self, id: str, timeout: float) -> Grant | None:
        """Blocks until a waiting request of a process is granted, or `timeout` seconds have passed:
        then ask again by its id, since the news may be lost. The news come once.
        """
        return self._send(commands.wait_for_grant(self.keys, id, timeout))

    def watch(self, id: str) -> bool:
        """Has the end of a request leave a sign, for any number of `wait_for_end`; False if it has
        ended, or is unknown.
        """
        return self._run(protocol.watch(id))

    def wait_for_end(self, id: str, timeout: float) -> bool:
        """Blocks until a watched request ends, or `timeout` seconds have passed; returns whether it
        has ended. Watch again in any case: a sign may be lost, and an id come again.
        """
        return self._send(commands.wait_for_end(self.keys, id, timeout))

    def retire(self, claimant: Claimant) -> tuple[str, ...]:
        """Shuts out the ended executor of this slot; returns what it left: ids of its requests."""
        return self._run(protocol.retire(claimant))

    # -- processes -----------------------------------------------------------------------------

    def beat(self, owner: str, ttl: float) -> None:
        """The process is alive; `ttl` seconds without a beat make it missing."""
        self._run(protocol.beat(owner, ttl))

    def close_owner(self, owner: str) -> tuple[str, ...]:
        """Declares a process dead: every operation of it is refused from here on.

        Returns its registry: the ids of what it holds and waits for.
        """
        return self._run(protocol.close_owner(owner))

    def release_owner(self, owner: str, batch: int = 500) -> int:
        """Ends all requests of an owner, `batch` at a time; returns how many it were."""
        ended = 0
        while True:
            count, left, has_more = self._run(protocol.release_owner(owner, batch))
            ended += count
            if has_more:
                self.settle()
            if not left:
                return ended

    def forget_entry(self, id: str, owner: str) -> bool:
        """Drops an id from a registry; False if the request is still that owner's."""
        return self._run(protocol.forget_entry(id, owner))

    def forget_owner(self, owner: str) -> int:
        """Removes the bookkeeping of a process; returns how many requests it still has (then
        nothing was removed).
        """
        return self._run(protocol.forget_owner(owner))

    def suspect(self, owner: str) -> tuple[float, float | None]:
        """Notes that an owner has no row; seconds since that was first noted, and its TTL."""
        return self._run(protocol.suspect(owner))

    def suspected(self, owner: str) -> float:
        """Seconds since an owner was first noted to have no row; 0 if it was not. Notes nothing."""
        return self._send(commands.suspected(self.keys, owner))

    def owners(self) -> dict[str, float]:
        """The process owners that the server knows, with their TTLs in seconds."""
        return self._send(commands.owners(self.keys))

    def lanes(self) -> dict[str, Lane]:
        """The lanes in which tasks have been requested, by name."""
        return self._send(commands.lanes(self.keys))

    def registry(self, owner: str) -> set[str]:
        """The ids of what an owner holds and waits for."""
        return self.registries([owner])[owner]

    def registries(self, owners: Sequence[str]) -> dict[str, set[str]]:
        """As `registry` for each of them, in one round trip."""
        if not owners:
            return {}
        return self._send(commands.registries(self.keys, owners))

    def slots(self, owner: str) -> dict[str, str]:
        """What the executors of an owner hold: ids by the number of the slot."""
        return self._send(commands.slots(self.keys, owner))

    def scan(self, what: str, cursor: str, count: int) -> tuple[str, list[tuple[str, str, str]]]:
        """One step of a look at every key of the server, from cursor "0" on until it is "0" again,
        for what nothing else leads to. Nothing but the last resort of clean-up may cost so much.

        what   "requests": those that their owner's registry lacks, as (id, owner, state);
               "locks": holders and first waiters that have no request, as (resource, "holder" or
               "waiter", id)
        count  about how many keys to look at
        """
        return self._run(protocol.scan(what, cursor, count))

    def free(self, resource: str, id: str) -> Ended:
        """Takes a holder or waiter that has no request out of a resource; refused if it has one."""
        return self._settled(self._run(protocol.free(resource, id)))

    def lead(self, job: str, candidate: str, seconds: float) -> bool:
        """Whether the candidate may do a job that one process does once in `seconds`.

        There is nothing to give back: a leader that dies, or never hears that it leads, is followed
        when the time is over.
        """
        return self._send(commands.lead(self.keys, job, candidate, seconds))

    def lead_ends_in(self, job: str) -> float:
        """Seconds for which nobody else may do the job; 0 if anybody may."""
        return self._send(commands.lead_ends_in(self.keys, job))

    def extend_lead(self, job: str, leader: str, seconds: float) -> bool:
        """Nobody else may do the job for so many seconds from now. False, and no effect, if the
        lead of this leader has ended.
        """
        return self._run(protocol.extend_lead(job, leader, seconds))

    def end_lead(self, job: str) -> None:
        """Anybody may do the job at once, whoever leads."""
        self._send(commands.end_lead(self.keys, job))

    # -- messages ------------------------------------------------------------------------------

    def send(self, owner: str, message: str) -> None:
        """Leaves a message for a process; unread ones go with the process, or after an hour."""
        self._send(commands.send(self.keys, owner, message))

    # -- looking -------------------------------------------------------------------------------

    def inspect_request(self, id: str) -> RequestInfo | None:
        """The request and who is in its way; None if it is unknown."""
        return self._run(protocol.inspect_request(id))

    def inspect_resource(self, name: str) -> ResourceInfo:
        """Who holds a resource and who waits for it."""
        return self._run(protocol.inspect_resource(name))

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that have a request, in one round trip."""
        return self._send(commands.known(self.keys, ids))

    # ------------------------------------------------------------------------------------------

    def _claimed(self, outcome: tuple[Claimed | Idle | Lanes, bool]) -> Claimed | Idle | Lanes:
        reply, has_more = outcome
        if has_more:
            self.settle()
        return reply

    def _settled(self, ended: Ended) -> Ended:
        last = ended
        while last.has_more:
            last = self._run(protocol.settle())
            ended = Ended(ended.status, ended.granted + last.granted)
        return ended

    def run_many(self, calls: Iterable[Call[R]]) -> list[R | TaskLocksError]:
        """Calls of one script, in this order and in one round trip. What is raised there for one of
        them alone stands in its place. Where they are given by an iterator, the server is at work
        while it makes them.
        """
        calls = Remembered(calls)
        name = next((call.script for call in calls), None)
        if name is None:
            return []
        epoch = self._epoch.value() if self._epoch else ""
        arguments = (call.arguments for call in calls)
        try:
            try:
                replies = self.transport.run_many(self.scripts[name], arguments, epoch)
            except failures.ERRORS as error:
                self._refuse(error, name)
            return protocol.read_outcomes(calls, replies)
        except EpochLost:
            if self._epoch is None or not self._epoch.is_out_of_date(epoch):
                raise
        return self.run_many(calls)

    def _run(self, call: Call[R]) -> R:
        epoch = self._epoch.value() if self._epoch else ""
        try:
            try:
                reply = self.transport.run(self.scripts[call.script], call.arguments, epoch)
            except failures.ERRORS as error:
                self._refuse(error, call.script)
            return protocol.read_reply(call, reply)
        except EpochLost:
            if self._epoch is None or not self._epoch.is_out_of_date(epoch):
                raise
        return self._run(call)

    def _send(self, commands: Commands[R]) -> R:
        epoch = self._epoch.value() if self._epoch else ""
        try:
            try:
                replies = self.transport.send(commands.commands, epoch)
            except failures.ERRORS as error:
                self._refuse(error, commands.operation, commands.keys)
            return commands.parse(replies)
        except EpochLost:
            if self._epoch is None or not self._epoch.is_out_of_date(epoch):
                raise
        return self._send(commands)

    def _refuse(self, error: Exception, operation: str, keys: Sequence[str] = ()) -> NoReturn:
        if isinstance(error, ReadOnlyError):
            # The server is no master any more: new connections may lead to the one that is.
            self.transport.drop_connections()
        failures.raise_translated(error, operation, self.endpoint, keys)


def _transport(client: Redis | RedisCluster | Transport) -> Transport:
    if isinstance(client, Transport):
        return client
    if isinstance(client, RedisCluster):
        return ClusterTransport(lambda: client)
    return ClientTransport(client)
