from collections.abc import Sequence
from contextlib import ExitStack

from huey import RedisHuey

from benchmarks.engines.settings import REDIS_URL, TTL
from benchmarks.jobs import Job
from benchmarks.records import body

huey = RedisHuey("benchmark", url=REDIS_URL)


@huey.task()
def plain(number: int, seconds: float) -> None:
    body(number, seconds)


@huey.task(retries=1_000_000, retry_delay=1)
def locked(names: Sequence[str], number: int, seconds: float) -> None:
    with ExitStack() as held:
        for name in names:  # where it is taken, this raises, and the task comes again
            held.enter_context(huey.lock_task(name, int(TTL)))
        body(number, seconds)


def dispatch(job: Job) -> None:
    if names := sorted({*job.exclusive, *job.shared}):
        locked(names, job.number, job.seconds)
    else:
        plain(job.number, job.seconds)


def occupy(names: Sequence[str]) -> None:
    for name in names:
        huey.lock_task(name).acquire()
