from collections.abc import Sequence
from contextlib import ExitStack

from django.core.management import call_command

from benchmarks.jobs import Job
from benchmarks.records import body
from django_task_locks import dispatch as dispatch_task
from django_task_locks import dispatch_many, hold

_held = ExitStack()


def dispatch(job: Job) -> None:
    dispatch_task(body, [job.number, job.seconds], exclusive=job.exclusive, shared=job.shared)


def begin() -> None:
    """As a worker leaves the servers that has once run there: with an epoch."""
    call_command("cleanup_locks", verbosity=0)


def dispatch_bulk(jobs: Sequence[Job]) -> None:
    dispatch_many(
        [
            {
                "args": [job.number, job.seconds],
                "exclusive": job.exclusive,
                "shared": job.shared,
            }
            for job in jobs
        ],
        func=body,
    )


def occupy(names: Sequence[str]) -> None:
    _held.enter_context(hold(exclusive=names))
