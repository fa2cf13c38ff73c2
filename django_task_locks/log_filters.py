"""Filters for LOGGING."""

import logging

from django_task_locks.context import current_task


class TaskIdFilter(logging.Filter):
    """Puts `task_id` and `task_name` on each record: those of the task whose code logs it, "" where
    no task runs. It lets every record pass.

    Names that a record has already, from `extra`, are left as they are.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        task = current_task()
        vars(record).setdefault("task_id", str(task.pk) if task else "")
        vars(record).setdefault("task_name", task.name if task else "")
        return True
