"""The tasks that a worker's executors run, as the worker knows them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from django.db import router

from django_task_locks import rebuilding
from django_task_locks.events import emit
from django_task_locks.locks.rebuild import Known
from django_task_locks.managers import TaskQuerySet
from django_task_locks.models import Task
from django_task_locks.presence import Presence
from django_task_locks.worker.guard import NO_TASK, Board


class RunningTasks:
    """Which slots run them, the board says; that they run, their rows."""

    def __init__(self, presence: Presence, board: Board, generations: Mapping[int, int]) -> None:
        self._presence = presence
        self._board = board
        self._generations = generations

    def held(self) -> Sequence[Known]:
        """With their tokens and slots. Raises the database's errors."""
        slots = {
            id: f"{slot}.{generation}"
            for slot, generation in self._generations.items()
            if (id := self._board.task(slot)) != NO_TASK
        }
        if not slots:
            return []
        return [
            rebuilding.known_of(task, replace(self._presence.claimant, slot=slots[task.pk.bytes]))
            for task in self._rows(UUID(bytes=id) for id in slots)
        ]

    def still_held(self, known: Collection[Known]) -> Collection[str]:
        tokens = {one.request.id: one.token for one in known}
        present = self._rows(map(UUID, tokens)).values_list("pk", "lock_token")
        return {str(pk) for pk, token in present if tokens[str(pk)] == token}

    def excluded(self, known: Known, reason: str) -> None:
        emit("task.unlocked", task=known.request.id, name=known.request.label, reason=reason)

    def _rows(self, pks: Iterable[UUID]) -> TaskQuerySet:
        rows = Task.objects.using(router.db_for_write(Task)).owned()
        return rows.filter(app_lock=self._presence.status.pk, pk__in=list(pks))
