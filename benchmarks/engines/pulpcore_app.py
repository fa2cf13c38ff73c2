from collections.abc import Sequence

from django_guid import set_guid
from pulpcore.app.models import Task
from pulpcore.app.redis_connection import get_redis_connection
from pulpcore.tasking import redis_locks
from pulpcore.tasking.tasks import dispatch as dispatch_task

from benchmarks.engines.settings import PEER
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


def occupy(names: Sequence[str]) -> None:
    if PEER == "pulpcore":  # the one whose locks are in Redis
        connection = get_redis_connection()
        redis_locks.acquire_locks(connection, "busy", "task:busy", list(names), [])
    else:
        busy = dispatch_task(work, exclusive_resources=list(names), versions={"core": "3.0"})
        Task.objects.filter(pk=busy.pk).update(state="running")
