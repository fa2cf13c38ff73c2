"""Bodies that fail in some of their attempts."""

from django_task_locks import current_task
from tests.testapp.tasks import recorded


class Unreachable(ConnectionError):
    """Of the kind that may pass."""


def attempt() -> int:
    task = current_task()
    assert task is not None
    return task.attempt


def fail_first(label: str, attempts: int) -> int:
    """Fails in the first attempts; returns the number of the one that worked."""
    with recorded(label):
        if attempt() <= attempts:
            raise Unreachable(f"attempt {attempt()}")
        return attempt()


async def afail_first(attempts: int) -> int:
    if attempt() <= attempts:
        raise Unreachable(f"attempt {attempt()}")
    return attempt()
