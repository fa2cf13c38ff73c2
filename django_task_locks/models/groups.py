"""TaskGroup: tasks that belong together."""

from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.db import models, router

from django_task_locks.ids import uuid7
from django_task_locks.states import State


class TaskGroup(models.Model):
    """Tasks that belong together: `dispatch(..., task_group=group)`; `group.tasks` are its members.

    It has finished when the last member that it had has come to a final state: `finished_at` is
    set, once, and `signals.task_group_finished` is sent. From then on it takes no more members. A
    group that never had one never finishes.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False, db_index=True)

    def __str__(self) -> str:
        return self.description or str(self.pk)

    def summary(self) -> "GroupSummary":
        """How many members there are in each state, by one query."""
        from django_task_locks.models.tasks import Task

        rows = Task.objects.using(router.db_for_write(Task)).filter(task_group=self)
        found = dict(rows.order_by().values_list("state").annotate(models.Count("pk")))
        return GroupSummary({state: found.get(state, 0) for state in State})

    async def asummary(self) -> "GroupSummary":
        """As `summary`."""
        return await sync_to_async(self.summary)()

    def cancel(self) -> int:
        """Cancels the members that have not ended, each as `cancel_task` does: those that run stop
        a moment later. Returns how many it were. A member dispatched afterwards is not concerned.
        """
        from django_task_locks.dispatching import cancel_members

        return cancel_members(self)

    async def acancel(self) -> int:
        """As `cancel`."""
        return await sync_to_async(self.cancel)()

    def wait(self, timeout: float | None = None) -> "GroupSummary":
        """Returns when all members have ended, however they did; the other rules are those of
        `Task.wait`. Raises TaskTimeout, WouldDeadlock.
        """
        from django_task_locks import waiting

        return waiting.here(waiting.end_of_group(self, timeout))

    async def await_finished(self, timeout: float | None = None) -> "GroupSummary":
        """As `wait`."""
        from django_task_locks import waiting

        return await waiting.there(waiting.end_of_group(self, timeout))


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """How many members of a group there are in each state."""

    counts: dict[State, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def done(self) -> int:
        """How many have ended, in whichever final state."""
        return sum(count for state, count in self.counts.items() if state.is_final)
