"""The models, and the states of a task."""

from django_task_locks.models.fields import NamesField
from django_task_locks.models.groups import GroupSummary, TaskGroup
from django_task_locks.models.processes import AppStatus, LockEpoch
from django_task_locks.models.schedules import TaskSchedule
from django_task_locks.models.tasks import Task, described, reason
from django_task_locks.states import OnWorkerLoss, State

__all__ = [
    "AppStatus",
    "GroupSummary",
    "LockEpoch",
    "NamesField",
    "OnWorkerLoss",
    "State",
    "Task",
    "TaskGroup",
    "TaskSchedule",
    "described",
    "reason",
]
