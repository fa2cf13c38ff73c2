"""Writes the row of a new task: where the database enforces what must be true of all of them."""

import hashlib

from django.db import IntegrityError, router, transaction

from django_task_locks import grouping, new_rows
from django_task_locks.exceptions import InvalidTask, InvalidTransition, UniqueKeyTaken
from django_task_locks.managers import TaskQuerySet
from django_task_locks.models import Task
from django_task_locks.states import OnConflict, State

_ROUNDS = 20


def key_claim(unique_key: str) -> str:
    """What stands for a key in the column that is unique. A digest, since not every database
    compares text as it is: some take capitals, accents or trailing blanks for equal.
    """
    return hashlib.sha256(unique_key.encode()).hexdigest()


def insert(task: Task, on_conflict: str) -> str:
    """Writes the row, in the caller's transaction if there is one; returns the database's alias.

    A task with a unique key takes it. While an incomplete task has it, with "replace" one that has
    not started is canceled by the same transaction; any other raises UniqueKeyTaken. A task in a
    group that has finished raises InvalidTask. Nothing is written then.
    """
    alias = router.db_for_write(Task)
    if task.unique_key is None and task.task_group_id is None:
        new_rows.insert(task, alias)
        return alias
    if task.unique_key is not None and not task.is_final:
        task.key_claim = key_claim(task.unique_key)
    for _ in range(_ROUNDS):
        try:
            with transaction.atomic(using=alias):
                if on_conflict == OnConflict.REPLACE and not task.is_final:
                    make_room(task, on_conflict)
                check_group(task, alias)
                new_rows.insert(task, alias)
                return alias
        except IntegrityError as error:
            if task.unique_key is None:
                raise
            problem = error
            if on_conflict != OnConflict.REPLACE:
                # Who has taken the key has committed by now; or has ended, and left it free again.
                make_room(task, on_conflict)
    raise problem


def make_room(task: Task, on_conflict: str) -> None:
    """Raises UniqueKeyTaken if the key that the task needs is another's and stays so; with
    "replace" it cancels the other one if that has not started.
    """
    if task.unique_key is None:
        return
    alias = router.db_for_write(Task)
    for _ in range(_ROUNDS):
        present = _rows(alias).filter(key_claim=key_claim(task.unique_key)).first()
        if present is None:
            return
        if present.is_final:
            # It was ended past the state machine, which would have freed the key.
            _rows(alias).filter(pk=present.pk, state=present.state).update(key_claim=None)
            continue
        if on_conflict == OnConflict.REPLACE and present.state == State.WAITING:
            try:
                present.cancel_unstarted(f"Replaced by task {task.pk}.")
            except InvalidTransition:
                continue  # it went on in the meantime: look again
            return
        raise UniqueKeyTaken(
            f"unique_key {task.unique_key!r} is taken by task {present.pk} ({present.name}), which "
            f"is {present.state}",
            present,
        )


def _rows(alias: str) -> TaskQuerySet:
    return Task.objects.using(alias)


def check_group(task: Task, alias: str) -> None:
    """Raises InvalidTask if the task's group has finished; it does not before the present
    transaction has ended.
    """
    if task.task_group_id is not None and not grouping.may_join(task.task_group_id, alias):
        raise InvalidTask(
            f"task_group {task.task_group!r} of {task.name} has finished, or is gone: a group "
            "takes tasks until its last one has ended; make another"
        )
