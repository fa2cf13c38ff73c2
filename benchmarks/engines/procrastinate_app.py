from procrastinate.contrib.django import app

from benchmarks.jobs import Job
from benchmarks.records import body


@app.task
def work(number: int, seconds: float) -> None:
    body(number, seconds)


def dispatch(job: Job) -> None:
    lock = job.exclusive[0] if job.exclusive else None
    work.configure(lock=lock).defer(number=job.number, seconds=job.seconds)
