"""dispatch_many: many tasks in one call, written by few statements and sent in few round trips."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack

from asgiref.sync import sync_to_async
from django.db import IntegrityError, router, transaction

from django_task_locks import new_rows
from django_task_locks.dispatching import Function, RetryOn, dispatch
from django_task_locks.exceptions import InvalidResource, InvalidTask, UniqueKeyTaken
from django_task_locks.inserting import check_group, key_claim, make_room
from django_task_locks.models import Task, TaskGroup
from django_task_locks.orders import Order
from django_task_locks.sending import send_many_or_warn
from django_task_locks.states import OnConflict

_ROUNDS = 20
_ROWS = 1000  # of one INSERT, where the database takes as many
_KEYS = 500  # of one look at those that are taken


class TaskArguments(TypedDict, total=False):
    """Arguments of `dispatch`, for a task that a worker runs."""

    func: Function
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    exclusive: Any
    shared: Any
    queue: str
    priority: int
    task_group: TaskGroup | None
    on_worker_loss: str
    max_attempts: int
    run_after: datetime | timedelta | None
    retry_on: RetryOn
    retry_delay: float | None
    time_limit: float | None
    versions: Mapping[str, str] | None
    unique_key: str | None
    on_conflict: str


_DEFAULTS: dict[str, Any] = {"args": (), "kwargs": None, **(dispatch.__kwdefaults__ or {})}


def dispatch_many(items: Iterable[TaskArguments], **common: Unpack[TaskArguments]) -> list[Task]:
    """Hands many tasks to the workers: all of them or, where one is wrong, none.

    items   for each task a dict of arguments of `dispatch`, as in {"args": [7], "exclusive": "a"}
    common  those that all items have in common, unless an item says otherwise, as in func=sync

    As so many calls of `dispatch` in a transaction, in this order, but for `immediate`. The rows
    are written by few statements, without Django's signals of saving, as `bulk_create` does; the
    requests are sent in few round trips when the transaction is committed. If the lock service is
    away then, the tasks stand, one warning is logged, and the periodic clean-up sends what is left.

    Returns the tasks in the order of the items. With on_conflict="return" the present task stands
    in the place of one whose unique key is taken; two items with one key come to one task.

    Raises InvalidTask, InvalidResource or UniqueKeyTaken, whose message begins with the number of
    the item, counted from 0; nothing is written then.
    """
    orders, tasks = [], []
    for number, item in enumerate(items):
        try:
            order = _order(item, common)
            task = order.task()
            if task.unique_key is not None:
                task.key_claim = key_claim(task.unique_key)
        except (InvalidTask, InvalidResource) as error:
            raise type(error)(f"item {number}: {error}") from error
        orders.append(order)
        tasks.append(task)
    return _inserted(tasks, [order.on_conflict for order in orders])


async def adispatch_many(
    items: Iterable[TaskArguments], **common: Unpack[TaskArguments]
) -> list[Task]:
    """As `dispatch_many`."""
    return await sync_to_async(dispatch_many)(items, **common)


def _order(item: Any, common: Mapping[str, Any]) -> Order:
    if not isinstance(item, Mapping):
        raise InvalidTask(
            f"{item!r}: a dict of arguments of dispatch is accepted, as in {{'args': [7]}}"
        )
    given = {**common, **item}
    if unknown := given.keys() - TaskArguments.__annotations__.keys():
        name = min(unknown, key=str)
        close = get_close_matches(str(name), TaskArguments.__annotations__, 1)
        raise InvalidTask(
            f"argument {name!r}: "
            + (f"is {close[0]!r} meant? " if close else "")
            + f"{', '.join(TaskArguments.__annotations__)} are accepted"
        )
    if "func" not in given:
        raise InvalidTask("func is missing: give it in each item, or once for all of them")
    return Order(**_DEFAULTS | given)


def _inserted(tasks: list[Task], on_conflict: Sequence[str]) -> list[Task]:
    """Writes them all or none, in the caller's transaction if there is one, and sends them on its
    commit. Returns them, with the present task in the place of one that is not written.
    """
    alias = router.db_for_write(Task)
    has_keys = any(task.key_claim for task in tasks)
    for _ in range(_ROUNDS):
        try:
            with transaction.atomic(using=alias):
                found = _resolved(tasks, on_conflict, alias) if has_keys else tasks
                new = [task for task, place in zip(tasks, found, strict=True) if task is place]
                _check_groups(tasks, found, alias)
                # Whoever inserts does so in one order: two that wait for each other's keys would
                # be a deadlock.
                in_order = sorted(new, key=lambda task: task.key_claim or "")
                new_rows.insert_many(in_order, alias, _ROWS)
        except IntegrityError as error:
            if not has_keys:
                raise
            problem = error  # somebody was faster, and is found now
            continue
        _send_on_commit(new, alias)
        return found
    raise problem


def _resolved(tasks: list[Task], on_conflict: Sequence[str], alias: str) -> list[Task]:
    """What is to be there for each item: its task, or the one that has its unique key."""
    taken = _taken([task.key_claim for task in tasks if task.key_claim], alias)
    found: list[Task] = []
    first: dict[str, int] = {}
    for number, (task, choice) in enumerate(zip(tasks, on_conflict, strict=True)):
        claim = task.key_claim
        if claim in first:
            if choice != OnConflict.RETURN:
                raise InvalidTask(
                    f"item {number}: unique_key {task.unique_key!r} is that of item "
                    f"{first[claim]}, too: with on_conflict={choice!r} each needs one of its own"
                )
            found.append(found[first[claim]])
            continue
        if claim:
            first[claim] = number
        found.append(_present(task, choice, number) if claim in taken else task)
    return found


def _present(task: Task, choice: str, number: int) -> Task:
    """The task that keeps the key which this one needs, or this one, if there is room for it."""
    try:
        make_room(task, choice)
    except UniqueKeyTaken as error:
        if choice == OnConflict.RETURN and isinstance(error.task, Task):
            return error.task
        raise UniqueKeyTaken(f"item {number}: {error}", error.task) from error
    return task


def _taken(claims: list[str], alias: str) -> set[str | None]:
    rows = Task.objects.using(alias)
    return {
        claim
        for first in range(0, len(claims), _KEYS)
        for claim in rows.filter(key_claim__in=claims[first : first + _KEYS]).values_list(
            "key_claim", flat=True
        )
    }


def _check_groups(tasks: list[Task], found: list[Task], alias: str) -> None:
    checked = set()
    for number, (task, place) in enumerate(zip(tasks, found, strict=True)):
        if task is place and task.task_group_id not in checked:
            checked.add(task.task_group_id)
            try:
                check_group(task, alias)
            except InvalidTask as error:
                raise InvalidTask(f"item {number}: {error}") from error


def _send_on_commit(tasks: list[Task], alias: str) -> None:
    def send() -> None:  # no partial: Django asks a hook that fails for its __qualname__
        send_many_or_warn(tasks)

    transaction.on_commit(send, using=alias, robust=True)
