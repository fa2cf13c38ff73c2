from django_guid import set_guid
from pulpcore.tasking.tasks import dispatch as dispatch_task

from benchmarks.jobs import Job
from benchmarks.records import body

set_guid("benchmark")  # each task must have that of a request


def work(number: int, seconds: float) -> None:
    body(number, seconds)


def dispatch(job: Job) -> None:
    dispatch_task(
        work,
        args=(job.number, job.seconds),
        exclusive_resources=list(job.exclusive),
        shared_resources=list(job.shared),
        # By default that of the plugin whose module has the function.
        versions={"core": "3.0"},
    )
