"""Tasks that are dispatched again and again: by an interval or a cron expression.

`TaskSchedule.next_run` is compared and set in the same transaction that dispatches, so that however
many processes look, each time comes to one task. Workers look by themselves; without a worker of
ours, call `dispatch_due` from any scheduler.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings as django_settings
from django.db import router, transaction
from django.db.models import Expression, F, Q, QuerySet, Value
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from django_task_locks import dispatching, moments, recurrence
from django_task_locks.conf import get_settings
from django_task_locks.connections import get_lock_manager
from django_task_locks.dispatching import Function
from django_task_locks.events import emit
from django_task_locks.exceptions import InvalidTask, TaskLocksError
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import Task, TaskSchedule
from django_task_locks.orders import Order

JOB = "schedules"
LEASE = 10.0  # seconds that the one who looks has to say when to look next
_BATCH = 100
_RETRY_SECONDS = 60.0
_TIMING = {"interval", "cron", "time_zone"}

# -- defining --------------------------------------------------------------------------------------


def set_schedule(
    name: str,
    func: Function,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    every: float | timedelta | None = None,
    cron: str = "",
    time_zone: str = "",
    exclusive: Any = (),
    shared: Any = (),
    queue: str = "default",
    priority: int = 0,
    skip_if_running: bool = True,
    enabled: bool = True,
    start: datetime | timedelta | None = None,
) -> TaskSchedule:
    """Creates the schedule of this name, or brings it into line; called again it changes nothing.

    func to priority  as of `dispatch`, for each task
    every             seconds between two tasks; either this or
    cron              an expression of five fields, or an alias such as @daily
    time_zone         whose clocks the expression means; "" for TIME_ZONE of the settings
    skip_if_running   leave a time out at which the task before is not complete
    start             the first time of an interval, which is otherwise one interval from now; it
                      counts when the schedule is new or gets another timing

    For a receiver of post_migrate, a command, or a view. Times that were missed, whatever their
    number, come to one task. Raises InvalidTask or InvalidResource before anything is written.
    """
    if not 1 <= len(name) <= 200:
        raise InvalidTask(f"schedule {name!r}: a name of 1 to 200 characters is accepted")
    task = _task(
        func, args, kwargs, exclusive=exclusive, shared=shared, queue=queue, priority=priority
    )
    fields = {
        "function": task.name,
        "args": task.args,
        "kwargs": task.kwargs,
        "exclusive": task.exclusive,
        "shared": task.shared,
        "queue": task.queue,
        "priority": task.priority,
        "interval": every.total_seconds() if isinstance(every, timedelta) else every,
        "cron": cron,
        "time_zone": time_zone,
        "skip_if_running": bool(skip_if_running),
        "enabled": bool(enabled),
    }
    planned = TaskSchedule(name=name, **fields)
    planned.check_timing()
    first = moments.moment(start, "start", name) or following(planned, timezone.now())
    with transaction.atomic(using=_alias()):
        schedule, is_new = _rows().get_or_create(name=name, defaults=fields | {"next_run": first})
        changes = {key: value for key, value in fields.items() if getattr(schedule, key) != value}
        if not is_new and (_TIMING & set(changes) or changes.get("enabled")):
            changes["next_run"] = first
        if changes:
            for key, value in changes.items():
                setattr(schedule, key, value)
            schedule.save(using=_alias(), update_fields=[*changes])
    return schedule


def remove_schedule(name: str) -> bool:
    """Whether there was one of this name. Tasks that it has dispatched stay."""
    return bool(_rows().filter(name=name).delete()[0])


def following(schedule: TaskSchedule, now: datetime) -> datetime:
    """Its first time after now, as a row stores it; raises InvalidTask where it has none."""
    if schedule.cron:
        aware = now if timezone.is_aware(now) else timezone.make_aware(now)
        zone = recurrence.validated_zone(schedule.time_zone, schedule.name)
        cron = recurrence.validated_cron(schedule.cron, schedule.name)
        found = recurrence.next_cron(cron, zone, aware)
        return found if django_settings.USE_TZ else timezone.make_naive(found)
    interval = recurrence.validated_interval(schedule.interval, schedule.name)
    if schedule.next_run is None:
        return now + timedelta(seconds=interval)
    return recurrence.next_interval(schedule.next_run, interval, now)


# -- dispatching -----------------------------------------------------------------------------------


def dispatch_due() -> float | None:
    """Dispatches one task for each schedule whose time has come, up to a number of them.

    Returns the seconds until the next time, by the database's clock; None without one. An error of
    one schedule is logged, is in its `last_error`, and stops no other.
    """
    due = _enabled().filter(Q(next_run=None) | Q(next_run__lte=_now()))
    is_stuck = False
    for schedule in due.order_by("next_run", "pk")[:_BATCH]:
        try:
            _run(schedule, schedule.now)
        except Exception as error:
            emit("schedule.failed", schedule=schedule.name, error=error)
            is_stuck |= not _put_off(schedule, schedule.now, error)
    ahead = _enabled().order_by(F("next_run").asc(nulls_first=True)).first()
    if ahead is None:
        return None
    if is_stuck:
        return LEASE
    if ahead.next_run is None:
        return 0.0
    until: timedelta = ahead.next_run - ahead.now
    return max(0.0, until.total_seconds())


def work(leader: str, linger: float) -> None:
    """The turn of the one process that looks: dispatches what is due, stays for what comes within
    `linger` seconds, and leaves the time of the next look for the others. Once it does not lead any
    more, which is so when a schedule has changed, the next leader looks.
    """
    locks = get_lock_manager()
    end = time.monotonic() + linger
    while True:
        seconds = dispatch_due()
        longest = longest_pause()
        pause = longest if seconds is None else min(seconds, longest)
        if time.monotonic() + pause > end:
            # The next one is to be there before the time.
            locks.extend_lead(JOB, leader, max(0.0, pause - linger / 2))
            return
        if not locks.extend_lead(JOB, leader, pause + LEASE):
            return
        time.sleep(pause)


def longest_pause() -> float:
    """Seconds after which somebody looks again, whatever is known: rows may change unseen."""
    settings = get_settings()
    return 2 * max(settings.cleanup_interval, settings.ttl)


def _run(schedule: TaskSchedule, now: datetime) -> None:
    alias, due = _alias(), schedule.next_run
    next_run = following(schedule, now)
    if due is None:  # written by hand, and not looked at before
        _move(schedule, next_run)
        return
    if schedule.skip_if_running and _is_running(schedule):
        if _move(schedule, next_run):
            emit("schedule.skipped", schedule=schedule.name, due=due, task=schedule.last_task_id)
        return
    with transaction.atomic(using=alias):
        # The row first: who comes second waits here for the first one's commit, and finds it moved.
        if not _move(schedule, next_run, last_run=now, last_error=""):
            return
        task = dispatching.dispatch(
            schedule.function,
            schedule.args,
            schedule.kwargs,
            exclusive=schedule.exclusive,
            shared=schedule.shared,
            queue=schedule.queue,
            priority=schedule.priority,
        )
        _rows().filter(pk=schedule.pk).update(last_task=task)
    emit("schedule.dispatched", schedule=schedule.name, due=due, task=task.pk, next=next_run)


def _move(schedule: TaskSchedule, next_run: datetime, **changes: Any) -> bool:
    """Whether it was still at the time that was seen."""
    seen = _rows().filter(pk=schedule.pk, enabled=True, next_run=schedule.next_run)
    return bool(seen.update(next_run=next_run, **changes))


def _put_off(schedule: TaskSchedule, now: datetime, error: Exception) -> bool:
    """To its next time, or for a while where it has none. False if the database refuses that."""
    try:
        try:
            next_run = following(schedule, now)
        except Exception:
            next_run = now + timedelta(seconds=_RETRY_SECONDS)
        problem = f"{type(error).__name__}: {error}".replace("\0", "\\x00")
        _move(schedule, next_run, last_error=problem[:1000])
    except Exception:
        return False
    return True


def _is_running(schedule: TaskSchedule) -> bool:
    pk = schedule.last_task_id
    tasks = Task.objects.using(router.db_for_write(Task))
    return pk is not None and tasks.incomplete().filter(pk=pk).exists()


def _task(func: Function, args: Any, kwargs: Any, **options: Any) -> Task:
    """What would be dispatched, checked and not written."""
    return Order(func=func, args=args, kwargs=kwargs, **_DEFAULTS | options).task()


_DEFAULTS: dict[str, Any] = dispatching.dispatch.__kwdefaults__ or {}


def _now() -> Expression | DatabaseNow:
    # Without USE_TZ a database's naive time may be of another zone than ours.
    return DatabaseNow() if django_settings.USE_TZ else Value(timezone.now())


def _alias() -> str:
    return router.db_for_write(TaskSchedule)


def _rows() -> QuerySet[TaskSchedule]:
    return TaskSchedule.objects.using(_alias())


def _enabled() -> Any:
    """With the present time as `now`."""
    return _rows().filter(enabled=True).annotate(now=_now())


# -- telling those who wait ------------------------------------------------------------------------


def _look_again(sender: type[TaskSchedule], using: str, **kwargs: Any) -> None:
    def tell() -> None:  # no partial: Django asks a hook that fails for its __qualname__
        try:
            get_lock_manager().end_lead(JOB)
        except TaskLocksError as error:
            emit("schedule.not_told", error=error)

    transaction.on_commit(tell, using=using, robust=True)


def connect() -> None:
    for signal in (post_save, post_delete):
        signal.connect(
            _look_again,
            sender=TaskSchedule,
            dispatch_uid=f"django_task_locks.schedule.{id(signal)}",
        )
