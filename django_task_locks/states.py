"""The states of a task, and what becomes of it when its process is lost."""

from django.db.models import TextChoices


class State(TextChoices):
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELING = "canceling"
    CANCELED = "canceled"

    @classmethod
    def owned(cls) -> tuple["State", ...]:
        """States in which a process runs the task."""
        return (cls.RUNNING, cls.CANCELING)

    @classmethod
    def incomplete(cls) -> tuple["State", ...]:
        return (cls.WAITING, *cls.owned())

    @property
    def is_final(self) -> bool:
        return self not in self.incomplete()


class OnWorkerLoss(TextChoices):
    FAIL = "fail"
    REQUEUE = "requeue"


class OnConflict(TextChoices):
    """What becomes of a dispatch while an incomplete task has its unique key."""

    RETURN = "return"
    RAISE = "raise"
    REPLACE = "replace"


class OnTimeout(TextChoices):
    """What becomes of an immediate coroutine that has taken too long."""

    FAIL = "fail"
    DEFER = "defer"
