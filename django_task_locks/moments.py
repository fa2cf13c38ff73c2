"""Times of the future: as callers give them, as rows store them, as the lock manager takes them."""

import math
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks.requests import END_OF_TIME


def moment(value: Any, what: str, name: str) -> datetime | None:
    """An aware datetime, or a timedelta from now, as a row stores it; None as it is.

    what, name  name the argument and whose it is in the message of InvalidTask, raised for anything
                else
    """
    if value is None:
        return None
    try:
        if isinstance(value, timedelta) and value >= timedelta():
            return in_seconds(value.total_seconds())
        is_moment = isinstance(value, datetime) and timezone.is_aware(value)
        if is_moment and value.timestamp() < END_OF_TIME:
            return value if settings.USE_TZ else timezone.make_naive(value)
    except OverflowError:
        pass
    raise InvalidTask(
        f"{what} {value!r} of {name}: a datetime with a time zone, a timedelta from now that is "
        "not negative, or None is accepted"
    )


def in_seconds(seconds: float) -> datetime | None:
    """So many seconds from now, as a row stores it; None for none, which is now for every clock."""
    return timezone.now() + timedelta(seconds=seconds) if seconds else None


def unix(stored: datetime | None) -> float | None:
    """The Unix time of what a row stores; None as it is."""
    # Without USE_TZ it is naive in the zone that Django has made this process's own.
    return None if stored is None else max(0.0, stored.timestamp())


def validated_seconds(value: Any, what: str, name: str, low: float, high: float) -> float | None:
    """Returns seconds, None as it is; raises InvalidTask unless low <= seconds <= high."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high:
        return float(value)
    raise InvalidTask(
        f"{what} {value!r} of {name}: seconds from {low:g} to {high:g}, or None, are accepted"
    )
