"""Proof from what the bodies wrote down: who ran at the same time, and in which order."""

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Protocol
from uuid import UUID

from django_task_locks.models import Task
from tests.testapp.models import Run


class Named(Protocol):
    """A task, or whoever else names its resources."""

    exclusive: list[str]
    shared: list[str]


def conflict(one: Named, other: Named) -> bool:
    """Whether one of them needs for itself what the other needs."""
    return bool(
        set(one.exclusive) & {*other.exclusive, *other.shared}
        or set(other.exclusive) & {*one.exclusive, *one.shared}
    )


def _conflicting(tasks: Iterable[Task]) -> Iterator[tuple[Task, Task]]:
    return (
        (one, other)
        for one, other in combinations(sorted(tasks, key=lambda task: task.pk), 2)
        if conflict(one, other)
    )


def runs_of(tasks: Iterable[Task]) -> dict[UUID, Run]:
    return {
        run.task_id: run
        for run in Run.objects.filter(task_id__in=[task.pk for task in tasks])
        if run.task_id is not None
    }


def overlaps(tasks: Iterable[Task]) -> list[tuple[Run, Run]]:
    """Pairs of conflicting bodies of which one began before the other had ended."""
    tasks = list(tasks)
    runs = runs_of(tasks)
    found = []
    for one, other in _conflicting(tasks):
        if one.pk in runs and other.pk in runs:
            first, second = sorted((runs[one.pk], runs[other.pk]), key=lambda run: run.began)
            if first.ended is None or second.began < first.ended:
                found.append((first, second))
    return found


def out_of_order(tasks: Iterable[Task]) -> list[tuple[Run, Run]]:
    """Pairs of conflicting bodies of which the one that was dispatched later began first."""
    tasks = list(tasks)
    runs = runs_of(tasks)
    return [
        (runs[one.pk], runs[other.pk])
        for one, other in _conflicting(tasks)
        if one.pk in runs and other.pk in runs and runs[other.pk].began < runs[one.pk].began
    ]
