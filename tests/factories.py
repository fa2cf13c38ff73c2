"""Objects as tests need them, in one line each."""

from datetime import timedelta
from typing import Any

import factory
from django.utils import timezone

from django_task_locks.ids import uuid7
from django_task_locks.models import AppStatus, State, Task, TaskSchedule
from tests.support.suite import TTL
from tests.testapp.models import Book


class BookFactory(factory.django.DjangoModelFactory[Book]):
    class Meta:
        model = Book

    title = factory.Sequence(lambda number: f"Book {number}")


class AppStatusFactory(factory.django.DjangoModelFactory[AppStatus]):
    """A worker that has just beaten; `stale=True` for one that was silent for longer than its TTL,
    `declared=True` for one that was declared missing."""

    class Meta:
        model = AppStatus

    class Params:
        stale = factory.Trait(
            last_heartbeat=factory.LazyFunction(lambda: timezone.now() - timedelta(hours=1))
        )
        declared = factory.Trait(missing_at=factory.LazyFunction(timezone.now))

    id = factory.LazyFunction(uuid7)
    name = factory.Sequence(lambda number: f"worker-{number}")
    app_type = AppStatus.AppType.WORKER
    ttl = timedelta(seconds=TTL)
    started_at = factory.LazyFunction(timezone.now)
    last_heartbeat = factory.LazyFunction(timezone.now)


class TaskFactory(factory.django.DjangoModelFactory[Task]):
    """A waiting row; nothing is sent to Redis. `running_by=status` for one that this process runs,
    with `lock_token`."""

    class Meta:
        model = Task

    id = factory.LazyFunction(uuid7)
    name = "tests.testapp.tasks.record"
    created_at = factory.LazyFunction(timezone.now)

    @classmethod
    def _create(cls, model_class: type[Task], *args: Any, **kwargs: Any) -> Task:
        if (process := kwargs.pop("running_by", None)) is not None:
            kwargs.setdefault("state", State.RUNNING)
            kwargs.setdefault("started_at", timezone.now())
            kwargs.update(app_lock=process, worker_name=process.name)
        return super()._create(model_class, *args, **kwargs)


class TaskScheduleFactory(factory.django.DjangoModelFactory[TaskSchedule]):
    """Once a minute; `due=True` for one whose time came a second ago."""

    class Meta:
        model = TaskSchedule

    class Params:
        due = factory.Trait(
            next_run=factory.LazyFunction(lambda: timezone.now() - timedelta(seconds=1))
        )

    name = factory.Sequence(lambda number: f"schedule {number}")
    function = "tests.testapp.tasks.record"
    interval = 60.0
