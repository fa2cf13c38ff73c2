"""Everything this package raises on purpose derives from TaskLocksError."""

from typing import Any


class TaskLocksError(Exception):
    """Base of all errors of this package. The docstring of a subclass is its default message."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidResource(TaskLocksError, ValueError):
    """A resource is a name of 1 to 1,024 bytes or a saved model instance."""


class InvalidTask(TaskLocksError, ValueError):
    """The task cannot be dispatched as asked."""


class InvalidProgress(TaskLocksError, ValueError):
    """The progress cannot be reported."""


class UniqueKeyTaken(TaskLocksError):
    """An incomplete task has this unique key.

    task  that task, as it was found
    """

    def __init__(self, message: str | None = None, task: Any = None) -> None:
        super().__init__(message)
        self.task = task


class InvalidTransition(TaskLocksError):
    """The task is no longer in the state that this change needs; nothing was changed."""


class LockServiceUnavailable(TaskLocksError):
    """The lock service (Redis or Valkey) cannot serve; what was asked of it may have happened."""


class EpochLost(LockServiceUnavailable):
    """Redis does not hold the present locks (it has lost data, or is another server), so it is not
    used until they have been rebuilt. Nothing was done.
    """


class DatabaseUnavailable(TaskLocksError):
    """The database cannot be used."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"The database cannot be used: {str(error).strip()}. See DATABASES; if it is new, run "
            "manage.py migrate first."
        )


class ForeignValue(TaskLocksError):
    """A key of ours holds a value of another type; nothing was changed."""


class NameInUse(TaskLocksError):
    """A process that was promised to be the only one of its name is not."""


class OwnerClosed(TaskLocksError):
    """This process was declared missing: it may not take, keep or release locks any more."""


class StaleSlot(TaskLocksError):
    """This executor slot was given to a successor: it may not take or release locks any more."""


class LockTimeout(TaskLocksError, TimeoutError):
    """The resources did not become free in time.

    blockers  who was in the way at the end, as `locks.requests.Blocker`
    """

    def __init__(self, message: str | None = None, blockers: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.blockers = blockers


class TaskFailed(TaskLocksError):
    """The task failed.

    task   as it ended
    error  its type, message and traceback, as the row has them
    """

    def __init__(self, message: str | None = None, task: Any = None) -> None:
        super().__init__(message)
        self.task = task

    @property
    def error(self) -> dict[str, str]:
        return getattr(self.task, "error", None) or {}


class TaskCanceled(TaskFailed):
    """The task was canceled."""


class TaskTimeout(TaskLocksError, TimeoutError):
    """The task, or the group, did not end in time.

    task      as it was at the end; of a group, the member that was waited for
    blockers  who was in its way, as `locks.requests.Blocker`
    """

    def __init__(
        self, message: str | None = None, task: Any = None, blockers: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.task = task
        self.blockers = blockers


class WouldDeadlock(TaskLocksError, RuntimeError):
    """The request would wait for what its own caller holds."""
