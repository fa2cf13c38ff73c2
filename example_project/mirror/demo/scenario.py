"""What the demo dispatches: syncs and publications that contend for the same repositories.

This is the file to read for how resources are named: a saved model instance stands for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Model
from django_task_locks import dispatch

from mirror.demo.catalog import Entry
from mirror.models import Publication
from mirror.tasks import prune, publish_repository, refresh_remote, sync_repository

FEWEST_TASKS = 60
FEWEST_ROUNDS = 3
URGENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A task that is to be dispatched."""

    label: str
    function: Callable[..., Any]
    args: tuple[int, ...] = ()
    exclusive: tuple[Model, ...] = ()
    shared: tuple[Model, ...] = ()
    priority: int = 0
    immediate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A task that was dispatched, as the n-th of the demo."""

    number: int
    label: str
    task_id: UUID
    exclusive: frozenset[str]
    shared: frozenset[str]
    priority: int
    immediate: bool

    def __str__(self) -> str:
        return f"#{self.number} {self.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The orders before anything runs, and those that follow once the workers are busy."""

    opening: tuple[Order, ...]
    rest: tuple[Order, ...]
    titles: dict[str, str]
    """Names of resources, as the lock service knows them, to what a reader calls them."""


def build_scenario(catalog: Sequence[Entry]) -> Scenario:
    """One round syncs every repository and publishes it twice."""
    *busy, quiet = catalog
    first = list(_round(busy))
    rounds = max(FEWEST_ROUNDS, math.ceil(FEWEST_TASKS / len(first)))
    rest = [sync(quiet, immediate=True), refresh(quiet)]
    for number in range(2, rounds + 1):
        rest += _round(busy)
        if number == 2:
            urgent = busy[0]
            rest += [publish(urgent, urgent.publications[0], priority=URGENT), prune_all(catalog)]
    return Scenario(opening=tuple(first), rest=tuple(rest), titles=_titles(catalog))


def _round(entries: Sequence[Entry]) -> Iterator[Order]:
    for entry in entries:
        yield sync(entry)
        for publication in entry.publications:
            yield publish(entry, publication)


def sync(entry: Entry, *, immediate: bool = False) -> Order:
    return Order(
        label=f"sync {entry.repository}",
        function=sync_repository,
        args=(entry.repository.pk, entry.passes),
        exclusive=(entry.repository,),
        shared=(entry.repository.remote,),
        immediate=immediate,
    )


def publish(entry: Entry, publication: Publication, *, priority: int = 0) -> Order:
    return Order(
        label=f"publish {publication}" + (", urgent" if priority else ""),
        function=publish_repository,
        args=(entry.repository.pk, publication.pk, max(1, entry.passes // 3)),
        exclusive=(publication,),
        shared=(entry.repository,),
        priority=priority,
    )


def refresh(entry: Entry) -> Order:
    remote = entry.repository.remote
    return Order(
        label="refresh remote", function=refresh_remote, args=(remote.pk,), exclusive=(remote,)
    )


def prune_all(entries: Sequence[Entry]) -> Order:
    return Order(
        label="prune", function=prune, exclusive=tuple(entry.repository for entry in entries)
    )


def dispatch_order(order: Order, number: int) -> Job:
    """Dispatches a task. An immediate one has run when this returns, or waits like the others."""
    task = dispatch(
        order.function,
        args=order.args,
        exclusive=order.exclusive,
        shared=order.shared,
        priority=order.priority,
        immediate=order.immediate,
    )
    return Job(
        number=number,
        label=order.label,
        task_id=task.id,
        exclusive=frozenset(task.exclusive),
        shared=frozenset(task.shared),
        priority=order.priority,
        immediate=order.immediate,
    )


def _titles(catalog: Sequence[Entry]) -> dict[str, str]:
    titles = {}
    for entry in catalog:
        repository = entry.repository
        titles[_name(repository)] = f"repository {repository}"
        titles[_name(repository.remote)] = "the remote"
        for publication in entry.publications:
            titles[_name(publication)] = f"publication {publication}"
    return titles


def _name(instance: Model) -> str:
    return f"{instance._meta.label_lower}:{instance.pk}"
