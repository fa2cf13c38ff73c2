from collections.abc import Sequence
from contextlib import ExitStack

import django_task_locks
from benchmarks.jobs import Job
from benchmarks.records import body
from django_task_locks import dispatch as dispatch_task
from django_task_locks import hold

_held = ExitStack()


def dispatch(job: Job) -> None:
    dispatch_task(body, [job.number, job.seconds], exclusive=job.exclusive, shared=job.shared)


if hasattr(django_task_locks, "dispatch_many"):

    def dispatch_bulk(jobs: Sequence[Job]) -> None:
        django_task_locks.dispatch_many(
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
