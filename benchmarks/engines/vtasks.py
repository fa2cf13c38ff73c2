from django_vtasks import task

from benchmarks.jobs import Job
from benchmarks.records import body


@task
def work(number: int, seconds: float) -> None:
    body(number, seconds)


def dispatch(job: Job) -> None:
    work.enqueue(job.number, job.seconds)
