"""What a task is to be, checked before anything of it is written; and the request it makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from django_task_locks import moments, new_rows, payloads, retry_rules
from django_task_locks.context import current_task
from django_task_locks.exceptions import InvalidTask
from django_task_locks.execution import load_function
from django_task_locks.ids import uuid7
from django_task_locks.locks.requests import (
    Claimant,
    Lane,
    LockRequest,
    validated_priority,
    validated_queue,
    validated_versions,
)
from django_task_locks.locks.resources import normalized
from django_task_locks.models import Task, TaskGroup
from django_task_locks.states import OnConflict, OnTimeout, OnWorkerLoss

_TIME_LIMITS = (0.01, 31_536_000)
# once, and not for each task: enumerations make a new list at each look
_ON_WORKER_LOSS, _ON_CONFLICT, _ON_TIMEOUT = (
    choices.values for choices in (OnWorkerLoss, OnConflict, OnTimeout)
)


def resolved(func: Any) -> tuple[str, Callable[..., Any]]:
    """The dotted path and the function itself, of either."""
    if isinstance(func, str):
        try:
            return func, load_function(func)
        except (ImportError, ValueError) as error:  # the latter for an empty part of the path
            raise InvalidTask(
                f"function {func!r} cannot be imported ({error}); a dotted path such as "
                "'myapp.tasks.sync' is accepted"
            ) from None
    name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
    try:
        found = import_string(name)
    except (ImportError, ValueError):
        found = None
    if not callable(func) or found is not func or name.startswith("__main__."):
        raise InvalidTask(
            f"function {func!r} cannot be imported by workers as {name!r}: a function on the top "
            "level of a module, or its dotted path, is accepted"
        )
    return name, func


@dataclass(slots=True)  # frozen it would take three times as long to make
class Order:
    """The arguments of a dispatch; `task` checks them all and writes nothing."""

    func: Any
    args: Any
    kwargs: Any
    exclusive: Any
    shared: Any
    immediate: Any
    deferred: Any
    queue: Any
    priority: Any
    task_group: Any
    on_worker_loss: Any
    max_attempts: Any
    run_after: Any
    retry_on: Any
    retry_delay: Any
    time_limit: Any
    versions: Any
    unique_key: Any
    on_conflict: Any
    on_timeout: Any

    def task(self) -> Task:
        name, _ = resolved(self.func)
        if len(name) > 255:
            raise InvalidTask(f"function {name!r}: a path of up to 255 characters is accepted")
        self._check_arguments(name)
        self._check_options(name)
        self._check_times(name)
        self._check_unique_key(name)
        exclusive, shared = normalized(self.exclusive, self.shared)
        task = new_rows.made(
            Task,
            id=uuid7(),
            name=name,
            args=list(self.args),
            kwargs=dict(self.kwargs or {}),
            exclusive=list(exclusive),
            shared=list(shared),
            immediate=bool(self.immediate),
            deferred=bool(self.deferred),
            queue=validated_queue(self.queue),
            priority=validated_priority(self.priority),
            on_worker_loss=self.on_worker_loss,
            max_attempts=self.max_attempts,
            run_after=moments.moment(self.run_after, "run_after", name),
            retry_on=retry_rules.exception_paths(self.retry_on, name),
            retry_delay=moments.validated_seconds(
                self.retry_delay, "retry_delay", name, 0, retry_rules.MOST_SECONDS
            ),
            time_limit=validated_time_limit(self.time_limit, name),
            versions=validated_versions({} if self.versions is None else self.versions),
            unique_key=self.unique_key,
            created_at=timezone.now(),
        )
        if self.task_group is not None:
            task.task_group = self.task_group
        if (parent := current_task()) is not None:
            task.parent_task = parent
        return task

    def _check_arguments(self, name: str) -> None:
        if not isinstance(self.args, list | tuple):
            raise InvalidTask(f"args {self.args!r} of {name}: a list or tuple is accepted")
        if not isinstance(self.kwargs, Mapping | None):
            raise InvalidTask(f"kwargs {self.kwargs!r} of {name}: a dict or None is accepted")
        for what, value in (("args", list(self.args)), ("kwargs", dict(self.kwargs or {}))):
            if value and (problem := payloads.problem(value)):
                raise InvalidTask(
                    f"{what} {value!r} of {name}: {problem}; values that JSON can hold are accepted"
                )

    def _check_options(self, name: str) -> None:
        if not self.immediate and not self.deferred:
            raise InvalidTask(
                f"immediate=False and deferred=False leave no way to run {name}: give one of them"
            )
        if self.on_worker_loss not in _ON_WORKER_LOSS:
            raise InvalidTask(
                f"on_worker_loss {self.on_worker_loss!r} of {name}: "
                f"{' or '.join(map(repr, _ON_WORKER_LOSS))} is accepted"
            )
        attempts = self.max_attempts
        if (
            isinstance(attempts, bool)
            or not isinstance(attempts, int)
            or not 1 <= attempts <= 32_767
        ):
            raise InvalidTask(
                f"max_attempts {attempts!r} of {name}: a whole number from 1 to 32,767 is accepted"
            )
        if self.on_worker_loss == OnWorkerLoss.REQUEUE and attempts == 1:
            raise InvalidTask(
                f"on_worker_loss 'requeue' of {name} with max_attempts 1 leaves no other attempt: "
                "give max_attempts=2 or more"
            )
        group = self.task_group
        if group is not None and (not isinstance(group, TaskGroup) or group._state.adding):
            raise InvalidTask(f"task_group {group!r} of {name}: a saved TaskGroup is accepted")

    def _check_times(self, name: str) -> None:
        if self.run_after is not None and self.immediate:
            raise InvalidTask(
                f"run_after {self.run_after!r} of {name} with immediate=True: give one of them"
            )
        if self.retry_on and self.max_attempts == 1:
            raise InvalidTask(
                f"retry_on {self.retry_on!r} of {name} with max_attempts 1 leaves no other "
                "attempt: give max_attempts=2 or more"
            )
        if self.retry_on and not self.deferred:
            raise InvalidTask(
                f"retry_on {self.retry_on!r} of {name} with deferred=False: workers make further "
                "attempts, so give deferred=True"
            )

    def _check_unique_key(self, name: str) -> None:
        key = self.unique_key
        if self.on_conflict not in _ON_CONFLICT:
            raise InvalidTask(
                f"on_conflict {self.on_conflict!r} of {name}: "
                f"{', '.join(map(repr, _ON_CONFLICT))} are accepted"
            )
        if key is not None and (
            not isinstance(key, str) or not 1 <= len(key) <= 255 or payloads.problem(key)
        ):
            raise InvalidTask(
                f"unique_key {key!r} of {name}: text of 1 to 255 characters that can be stored as "
                "JSON, or None, is accepted"
            )
        if self.on_timeout not in _ON_TIMEOUT:
            raise InvalidTask(
                f"on_timeout {self.on_timeout!r} of {name}: "
                f"{' or '.join(map(repr, _ON_TIMEOUT))} is accepted"
            )
        if self.on_timeout == OnTimeout.DEFER and not (self.immediate and self.deferred):
            raise InvalidTask(
                f"on_timeout 'defer' of {name} hands an immediate task to a worker: it needs "
                "immediate=True and deferred=True"
            )


def validated_time_limit(value: Any, name: str) -> float | None:
    """Seconds that the function may take, or None for no limit of its own."""
    if value is None:
        return None
    low, high = _TIME_LIMITS
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidTask(
            f"time_limit {value!r} of {name}: seconds from {low:g} to {high:,} or None are accepted"
        )
    return float(value)


def lock_request(task: Task, claimant: Claimant | None = None) -> LockRequest:
    return LockRequest(
        id=str(task.pk),
        exclusive=tuple(task.exclusive),
        shared=tuple(task.shared),
        priority=task.priority,
        lane=_lane(task.queue, tuple(task.versions.items())),
        claimant=claimant,
        label=task.name,
        run_after=None if claimant else moments.unix(task.run_after),
    )


@lru_cache(maxsize=100)
def _lane(queue: str, versions: tuple[tuple[str, str], ...]) -> Lane:
    return Lane(queue=queue, versions=dict(versions))
