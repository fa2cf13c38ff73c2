"""Plain, with results, with a blocking lock, and with lock and retry: BENCHMARK_PEER says which."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from celery import Celery
from redis import Redis
from redis.lock import Lock

from benchmarks.engines.settings import PEER, REDIS_URL, TTL
from benchmarks.jobs import Job
from benchmarks.records import body

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.engines.settings")
app = Celery("benchmark", broker=REDIS_URL)
app.conf.task_ignore_result = PEER != "celery-results"
app.conf.broker_connection_retry_on_startup = True
if PEER == "celery-results":
    app.conf.result_backend = "django-db"
if "lock" in PEER:  # what its documentation advises for tasks that take long
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 1
redis = Redis.from_url(REDIS_URL)


def _lock(name: str) -> Lock:
    return Lock(redis, f"lock:{name}", timeout=TTL)


@app.task
def plain(number: int, seconds: float) -> None:
    body(number, seconds)


@app.task
def blocking(names: Sequence[str], number: int, seconds: float) -> None:
    with ExitStack() as held:
        for name in names:
            held.enter_context(_lock(name))
        body(number, seconds)


@app.task(bind=True, max_retries=None)
def retrying(self: Any, names: Sequence[str], number: int, seconds: float) -> None:
    with ExitStack() as held:
        for name in names:
            lock = _lock(name)
            if not lock.acquire(blocking=False):
                raise self.retry(countdown=1)
            held.callback(lock.release)
        body(number, seconds)


def dispatch(job: Job) -> None:
    if PEER in ("celery", "celery-results"):
        plain.delay(job.number, job.seconds)
        return
    # In the same order everywhere, or two of them would wait for each other.
    names = sorted({*job.exclusive, *job.shared})
    task = blocking if PEER == "celery-lock" else retrying
    task.delay(names, job.number, job.seconds)


def occupy(names: Sequence[str]) -> None:
    for name in names:
        Lock(redis, f"lock:{name}", timeout=3600).acquire()
