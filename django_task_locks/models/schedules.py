"""TaskSchedule: what is dispatched again and again."""

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models

from django_task_locks import recurrence
from django_task_locks.exceptions import InvalidTask
from django_task_locks.ids import uuid7
from django_task_locks.models.fields import NamesField
from django_task_locks.models.tasks import Task


class TaskSchedule(models.Model):
    """What is dispatched again and again, and when next. `schedules.set_schedule` makes one.

    interval, cron   seconds between two tasks, or a cron expression: one of them
    next_run         None until somebody has looked at it
    last_task        the one dispatched at `last_run`, though its row may be gone
    last_error       why the last time came to no task
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(max_length=200, unique=True)
    function = models.CharField(max_length=255)
    args = models.JSONField(default=list, blank=True)
    kwargs = models.JSONField(default=dict, blank=True)
    exclusive = NamesField(default=list, blank=True)
    shared = NamesField(default=list, blank=True)
    queue = models.CharField(max_length=100, default="default")
    priority = models.SmallIntegerField(default=0)
    interval = models.FloatField(null=True, blank=True)
    cron = models.CharField(max_length=100, blank=True)
    time_zone = models.CharField(max_length=100, blank=True)
    skip_if_running = models.BooleanField(default=True)
    enabled = models.BooleanField(default=True)
    next_run = models.DateTimeField(null=True, blank=True)
    last_run = models.DateTimeField(null=True, blank=True)
    last_task = models.ForeignKey(
        Task, models.DO_NOTHING, null=True, blank=True, db_constraint=False, related_name="+"
    )
    last_error = models.TextField(blank=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["enabled", "next_run"], name="task_locks_schedule_next"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        try:
            self.check_timing()
        except InvalidTask as error:
            raise ValidationError(str(error)) from error

    def check_timing(self) -> None:
        """Raises InvalidTask unless it has an interval or a cron expression, and a known zone."""
        if (self.interval is None) is not bool(self.cron):
            raise InvalidTask(
                f"interval {self.interval!r} and cron expression {self.cron!r} of {self.name}: "
                "one of them is accepted"
            )
        if self.interval is not None:
            recurrence.validated_interval(self.interval, self.name)
        else:
            recurrence.validated_cron(self.cron, self.name)
        recurrence.validated_zone(self.time_zone, self.name)
