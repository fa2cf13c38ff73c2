"""A caller that is canceled gets no reply, whenever it is: also while its client connects."""

import asyncio

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from django_task_locks.locks import AsyncLockManager
from django_task_locks.locks.requests import LockRequest
from tests.locks.support import WEB
from tests.support.servers import ValkeyServer

_TURNS = 80


@pytest.mark.parametrize("is_loaded", [True, False], ids=["known script", "new script"])
def test_L24_a_cancellation_at_any_point_of_the_first_request_is_heeded(
    valkey: ValkeyServer, redis_client: Redis, is_loaded: bool
) -> None:
    async def canceled_after(turns: int) -> bool:
        client = AsyncRedis.from_url(valkey.url)
        manager = AsyncLockManager(client)
        request = LockRequest(id=f"a{turns}", claimant=WEB)
        try:
            asking = asyncio.create_task(manager.request(request))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not asking.cancel():
                return False
            with pytest.raises(asyncio.CancelledError):
                await asking
            return True
        finally:
            await client.aclose()

    canceled = 0
    for turns in range(_TURNS):
        if not is_loaded:
            redis_client.script_flush()
        canceled += asyncio.run(canceled_after(turns))
    assert canceled > 2, "to connect takes more turns of the loop than that"


def test_D4_the_answer_to_a_canceled_question_is_not_taken_for_that_to_the_next(
    valkey: ValkeyServer, redis_client: Redis
) -> None:
    """It may be on its way when its caller goes; there is one connection for all."""

    async def main() -> int:
        client = AsyncRedis.from_url(valkey.url, max_connections=1)
        manager = AsyncLockManager(client)
        await manager.request(LockRequest(id="there", claimant=WEB))
        canceled = 0
        try:
            for turns in range(_TURNS):
                asking = asyncio.create_task(manager.known(["absent"]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                canceled += asking.cancel()
                await asyncio.wait([asking])
                assert await manager.known(["there"]) == {"there"}, turns
        finally:
            await client.aclose()
        return canceled

    # before it began, and before any answer can have been read; more of them on a slow machine
    assert asyncio.run(main()) >= 2
