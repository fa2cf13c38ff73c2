"""Starts and loads the tasks that an executor has claimed."""

from typing import NamedTuple
from uuid import UUID

from django.db import router
from django.db.models import Exists, Subquery
from django.db.models.functions import Coalesce

from django_task_locks.models import AppStatus, LockEpoch, Task
from django_task_locks.statements import Parameter, Selection
from django_task_locks.states import State


class Loaded(NamedTuple):
    """What one look at the database has found.

    task      None if there is none
    is_alive  whether this worker is so to the others
    epoch     its number
    """

    task: Task | None
    is_alive: bool
    epoch: int


class Loader:
    """Does it for each task by the same statements."""

    def __init__(self, status: AppStatus) -> None:
        self._status = status
        self._selections: dict[str, Selection[Task]] = {}

    def start(self, id: UUID, token: int) -> Loaded:
        """Makes the task run by the claim with this token if it waits for it, commits that, and
        then looks. The row tells whether it runs by this claim (`is_ours`); if so, receivers of
        `task_state_changed` are told.
        """
        update = Task.starting(id, self._status, token)
        loaded = _loaded(self._selection().first_after(update, {"id": id}))
        if loaded.task is not None and self.is_ours(loaded.task, token):
            # Whatever the row says by now: who has changed it since tells that.
            loaded.task.announce(State.WAITING, State.RUNNING)
        return loaded

    def load(self, id: UUID) -> Loaded:
        """Only looks."""
        return _loaded(self._selection().first({"id": id}))

    def is_ours(self, task: Task, token: int) -> bool:
        """Whether the task runs here by the claim with this token."""
        claim = (task.app_lock_id, task.lock_token)
        return task.state in State.owned() and claim == (self._status.pk, token)

    def _selection(self) -> Selection[Task]:
        alias = router.db_for_write(Task)
        if alias not in self._selections:
            me = AppStatus.objects.filter(pk=self._status.pk, missing_at=None)
            number = Coalesce(Subquery(LockEpoch.objects.values("number")[:1]), 0)
            tasks = Task.objects.using(alias).annotate(is_alive=Exists(me), epoch=number)
            tasks = tasks.filter(pk=Parameter("id", Task._meta.pk))
            self._selections[alias] = Selection(tasks, "is_alive", "epoch")
        return self._selections[alias]


def _loaded(found: tuple[Task, bool, int] | None) -> Loaded:
    if found is None:
        return Loaded(None, False, 0)
    task, is_alive, epoch = found
    return Loaded(task, bool(is_alive), int(epoch))
