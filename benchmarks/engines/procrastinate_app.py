from collections.abc import Sequence

from django.db import connection
from procrastinate.contrib.django import app

from benchmarks.jobs import Job
from benchmarks.records import body


@app.task
def work(number: int, seconds: float) -> None:
    body(number, seconds)


def dispatch(job: Job) -> None:
    lock = job.exclusive[0] if job.exclusive else None
    work.configure(lock=lock).defer(number=job.number, seconds=job.seconds)


def dispatch_bulk(jobs: Sequence[Job]) -> None:
    """A call has one lock for all of its jobs, so that there is a call for each lock."""
    by_lock: dict[str | None, list[dict[str, float]]] = {}
    for job in jobs:
        lock = job.exclusive[0] if job.exclusive else None
        by_lock.setdefault(lock, []).append({"number": job.number, "seconds": job.seconds})
    for lock, arguments in by_lock.items():
        work.configure(lock=lock).batch_defer(*arguments)


def occupy(names: Sequence[str]) -> None:
    for name in names:
        work.configure(lock=name).defer(number=-1, seconds=0)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE procrastinate_jobs SET status = 'doing'")
