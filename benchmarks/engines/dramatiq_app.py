from collections.abc import Sequence
from contextlib import ExitStack

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.engines.settings import REDIS_URL, TTL
from benchmarks.jobs import Job
from benchmarks.records import body

dramatiq.set_broker(RedisBroker(url=REDIS_URL))
backend = RedisBackend(url=REDIS_URL)


def _mutex(name: str, seconds: float) -> ConcurrentRateLimiter:
    return ConcurrentRateLimiter(backend, f"lock:{name}", limit=1, ttl=int(seconds * 1000))


@dramatiq.actor
def plain(number: int, seconds: float) -> None:
    body(number, seconds)


@dramatiq.actor(max_retries=None, min_backoff=1000, max_backoff=1000)
def locked(names: Sequence[str], number: int, seconds: float) -> None:
    with ExitStack() as held:
        for name in names:  # where it is taken, this raises, and the task comes again
            held.enter_context(_mutex(name, TTL).acquire())
        body(number, seconds)


def dispatch(job: Job) -> None:
    if names := sorted({*job.exclusive, *job.shared}):
        locked.send(names, job.number, job.seconds)
    else:
        plain.send(job.number, job.seconds)


def occupy(names: Sequence[str]) -> None:
    for name in names:
        _mutex(name, 3600).acquire().__enter__()
