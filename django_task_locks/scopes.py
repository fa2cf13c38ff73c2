"""What a clean-up is limited to: an owner, a task, a resource, or all of them together."""

from dataclasses import dataclass
from uuid import UUID

from django_task_locks.connections import get_lock_manager
from django_task_locks.managers import TaskQuerySet
from django_task_locks.models import Task


@dataclass(frozen=True, slots=True)
class Scope:
    """None of the three: everything."""

    owner: str | None = None
    task: UUID | None = None
    resource: str | None = None

    @property
    def is_everything(self) -> bool:
        return self.owner is None and not self.is_in_part

    @property
    def is_in_part(self) -> bool:
        """Whether only some of what a process has left is to be cleaned."""
        return self.task is not None or self.resource is not None

    def covers_owner(self, owner: str) -> bool:
        return self.owner in (None, owner)

    def tasks(self, rows: TaskQuerySet) -> TaskQuerySet:
        """Those of the rows that it may cover; `covers_task` tells for certain."""
        return rows if self.task is None else rows.filter(pk=self.task)

    def covers_task(self, task: Task) -> bool:
        return self.task in (None, task.pk) and (
            self.resource is None or self.resource in (*task.exclusive, *task.shared)
        )

    def covers_request(self, id: str) -> bool:
        """Asks the lock manager only where it depends on the resources of the request."""
        if self.task is not None and id != str(self.task):
            return False
        if self.resource is None:
            return True
        info = get_lock_manager().inspect_request(id)
        return info is not None and self.resource in info.exclusive + info.shared

    def covers_lock(self, resource: str, id: str) -> bool:
        return self.resource in (None, resource) and (self.task is None or id == str(self.task))
