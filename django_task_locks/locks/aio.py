"""AsyncLockManager: the operations of `LockManager` on an asynchronous client."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError, ReadOnlyError

from django_task_locks.exceptions import EpochLost, TaskLocksError
from django_task_locks.locks import commands, failures, protocol, scripts
from django_task_locks.locks.channels import Command
from django_task_locks.locks.commands import Commands
from django_task_locks.locks.keys import Keys
from django_task_locks.locks.protocol import Call, EpochSource
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
from django_task_locks.locks.transport import all_scripts

R = TypeVar("R")


class AsyncLockManager:
    """As `LockManager`, method by method; the same scripts, arguments, replies and errors.

    client  a redis.asyncio.Redis or RedisCluster of the event loop in which the manager is used

    A method that is canceled may have taken effect: ask again by id, or release.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        prefix: str = "task_locks",
        endpoint: str = "Redis",
        *,
        batch: int = scripts.BATCH,
        epoch: EpochSource | None = None,
    ) -> None:
        self.client: Any = client  # the two have no base in common
        self.keys = Keys(prefix)
        self.endpoint = endpoint
        # The client chooses the connection, and may open another one: so the server looks.
        self._scripts = all_scripts(self.keys, batch, identifies=True)
        self._epoch = epoch

    # -- requests ------------------------------------------------------------------------------

    async def request(self, request: LockRequest) -> Grant | Waiting | Due:
        return await self._run(protocol.request(request))

    async def request_many(
        self, requests: Sequence[LockRequest]
    ) -> list[Grant | Waiting | Due | TaskLocksError]:
        calls = [protocol.request(request) for request in requests]
        if not calls:
            return []
        epoch = await self._epoch.avalue() if self._epoch else ""
        script = self._scripts["request"]
        commands = [script.by_digest(call.arguments, epoch) for call in calls]
        try:
            try:
                try:
                    replies = await self._replies(commands)
                except NoScriptError:
                    await self._reply(script.by_source(calls[0].arguments, epoch))
                    replies = await self._replies(commands)
            except failures.ERRORS as error:
                await self._refuse(error, "request")
            return protocol.read_outcomes(calls, replies)
        except EpochLost:
            if self._epoch is None or not await self._epoch.ais_out_of_date(epoch):
                raise
        return await self.request_many(requests)

    async def try_request(self, request: LockRequest) -> Grant | Waiting | Due | Blocked:
        return await self._run(protocol.try_request(request))

    async def release(self, id: str, *, owner: str = "", token: int | None = None) -> Ended:
        return await self._settled(await self._run(protocol.release(id, owner, token)))

    async def requeue(
        self, id: str, *, owner: str, token: int | None, run_after: float | None = None
    ) -> Ended:
        return await self._settled(await self._run(protocol.requeue(id, owner, token, run_after)))

    async def settle(self) -> Ended:
        return await self._settled(await self._run(protocol.settle()))

    # -- executors -----------------------------------------------------------------------------

    async def claim(
        self, claimant: Claimant, version: str, lanes: Iterable[str]
    ) -> Claimed | Idle | Lanes:
        return await self._claimed(await self._run(protocol.claim(claimant, version, lanes)))

    async def advance(
        self, claimant: Claimant, version: str, lanes: Iterable[str], *, id: str, token: int
    ) -> Claimed | Idle | Lanes:
        return await self._claimed(
            await self._run(protocol.advance(claimant, version, lanes, id, token))
        )

    async def wait_for_ready(self, lanes: Iterable[str], timeout: float) -> bool:
        return await self._send(commands.wait_for_ready(self.keys, lanes, timeout))

    async def wait_for_grant(self, id: str, timeout: float) -> Grant | None:
        return await self._send(commands.wait_for_grant(self.keys, id, timeout))

    async def watch(self, id: str) -> bool:
        return await self._run(protocol.watch(id))

    async def wait_for_end(self, id: str, timeout: float) -> bool:
        return await self._send(commands.wait_for_end(self.keys, id, timeout))

    async def retire(self, claimant: Claimant) -> tuple[str, ...]:
        return await self._run(protocol.retire(claimant))

    # -- processes -----------------------------------------------------------------------------

    async def beat(self, owner: str, ttl: float) -> None:
        await self._run(protocol.beat(owner, ttl))

    async def close_owner(self, owner: str) -> tuple[str, ...]:
        return await self._run(protocol.close_owner(owner))

    async def release_owner(self, owner: str, batch: int = 500) -> int:
        ended = 0
        while True:
            count, left, has_more = await self._run(protocol.release_owner(owner, batch))
            ended += count
            if has_more:
                await self.settle()
            if not left:
                return ended

    async def forget_entry(self, id: str, owner: str) -> bool:
        return await self._run(protocol.forget_entry(id, owner))

    async def forget_owner(self, owner: str) -> int:
        return await self._run(protocol.forget_owner(owner))

    async def suspect(self, owner: str) -> tuple[float, float | None]:
        return await self._run(protocol.suspect(owner))

    async def suspected(self, owner: str) -> float:
        return await self._send(commands.suspected(self.keys, owner))

    async def owners(self) -> dict[str, float]:
        return await self._send(commands.owners(self.keys))

    async def lanes(self) -> dict[str, Lane]:
        return await self._send(commands.lanes(self.keys))

    async def registry(self, owner: str) -> set[str]:
        return (await self.registries([owner]))[owner]

    async def registries(self, owners: Sequence[str]) -> dict[str, set[str]]:
        if not owners:
            return {}
        return await self._send(commands.registries(self.keys, owners))

    async def slots(self, owner: str) -> dict[str, str]:
        return await self._send(commands.slots(self.keys, owner))

    async def scan(
        self, what: str, cursor: str, count: int
    ) -> tuple[str, list[tuple[str, str, str]]]:
        return await self._run(protocol.scan(what, cursor, count))

    async def free(self, resource: str, id: str) -> Ended:
        return await self._settled(await self._run(protocol.free(resource, id)))

    async def lead(self, job: str, candidate: str, seconds: float) -> bool:
        return await self._send(commands.lead(self.keys, job, candidate, seconds))

    async def lead_ends_in(self, job: str) -> float:
        return await self._send(commands.lead_ends_in(self.keys, job))

    async def extend_lead(self, job: str, leader: str, seconds: float) -> bool:
        return await self._run(protocol.extend_lead(job, leader, seconds))

    async def end_lead(self, job: str) -> None:
        await self._send(commands.end_lead(self.keys, job))

    # -- messages ------------------------------------------------------------------------------

    async def send(self, owner: str, message: str) -> None:
        await self._send(commands.send(self.keys, owner, message))

    # -- looking -------------------------------------------------------------------------------

    async def inspect_request(self, id: str) -> RequestInfo | None:
        return await self._run(protocol.inspect_request(id))

    async def inspect_resource(self, name: str) -> ResourceInfo:
        return await self._run(protocol.inspect_resource(name))

    async def known(self, ids: Sequence[str]) -> set[str]:
        return await self._send(commands.known(self.keys, ids))

    # ------------------------------------------------------------------------------------------

    async def _claimed(
        self, outcome: tuple[Claimed | Idle | Lanes, bool]
    ) -> Claimed | Idle | Lanes:
        reply, has_more = outcome
        if has_more:
            await self.settle()
        return reply

    async def _settled(self, ended: Ended) -> Ended:
        last = ended
        while last.has_more:
            last = await self._run(protocol.settle())
            ended = Ended(ended.status, ended.granted + last.granted)
        return ended

    async def _run(self, call: Call[R]) -> R:
        script = self._scripts[call.script]
        epoch = await self._epoch.avalue() if self._epoch else ""
        try:
            try:
                try:
                    reply = await self._reply(script.by_digest(call.arguments, epoch))
                except NoScriptError:
                    reply = await self._reply(script.by_source(call.arguments, epoch))
            except failures.ERRORS as error:
                await self._refuse(error, call.script)
            return protocol.read_reply(call, reply)
        except EpochLost:
            if self._epoch is None or not await self._epoch.ais_out_of_date(epoch):
                raise
        return await self._run(call)

    async def _send(self, commands: Commands[R]) -> R:
        try:
            if len(commands.commands) == 1:
                replies = [await self._reply(commands.commands[0])]
            else:
                replies = await self._replies(commands.commands)
        except failures.ERRORS as error:
            await self._refuse(error, commands.operation, commands.keys)
        return commands.parse(replies)

    async def _refuse(self, error: Exception, operation: str, keys: Sequence[str] = ()) -> NoReturn:
        if isinstance(error, ReadOnlyError) and isinstance(self.client, Redis):
            # The server is no master any more: new connections may lead to the one that is.
            await self.client.connection_pool.disconnect(inuse_connections=False)
        failures.raise_translated(error, operation, self.endpoint, keys)

    async def _reply(self, command: Command) -> Any:
        return await _heeding_cancel(self.client.execute_command(*command))

    async def _replies(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = await _heeding_cancel(pipeline.execute())
        return replies


async def _heeding_cancel(call: Awaitable[R]) -> R:
    """The call's result or error, unless the caller was canceled meanwhile: redis-py loses a
    cancellation that comes while it connects.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await call
    finally:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
