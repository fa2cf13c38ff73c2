"""When something that repeats comes next: after an interval, or by a cron expression in a zone."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from django_task_locks.exceptions import InvalidTask

SHORTEST, LONGEST = 1, 366 * 86_400

# No clock is set by more.
_SHIFT = timedelta(hours=3)


def validated_interval(seconds: Any, name: str) -> float:
    """Returns the seconds; raises InvalidTask unless it is a number that an interval can be."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if is_number and SHORTEST <= seconds <= LONGEST:
        return float(seconds)
    raise InvalidTask(
        f"interval {seconds!r} of {name}: seconds from {SHORTEST} to {LONGEST} are accepted"
    )


def validated_zone(time_zone: Any, name: str) -> tzinfo:
    """The zone of this name, the default one for ""; raises InvalidTask for an unknown one."""
    try:
        return ZoneInfo(time_zone) if time_zone else timezone.get_default_timezone()
    except (ValueError, TypeError, OSError, KeyError, AttributeError):
        raise InvalidTask(
            f"time zone {time_zone!r} of {name}: a name such as 'Europe/Berlin', or '' for that of "
            "the settings, is accepted"
        ) from None


def validated_cron(expression: Any, name: str) -> str:
    """Returns the expression; raises InvalidTask unless it has times, in five fields or as an alias
    such as @daily, or where croniter is not installed.
    """
    if isinstance(expression, str) and "R" not in expression.split() and len(expression) <= 100:
        fields = expression.split()
        is_alias = len(fields) == 1 and expression.startswith("@")
        croniter = _croniter(name)
        if (len(fields) == 5 or is_alias) and croniter.is_valid(expression):
            try:
                croniter(expression, datetime(2000, 1, 1)).get_next(datetime)
                return expression
            except ValueError:  # as of the 31st of February
                pass
    raise InvalidTask(
        f"cron expression {expression!r} of {name}: five fields (minute, hour, day of month, "
        "month, day of week) that name a time, or @hourly, @daily, @weekly, @monthly or @yearly, "
        "are accepted"
    )


def next_interval(due: datetime, seconds: float, now: datetime) -> datetime:
    """The first time after now that is a whole number of intervals after `due`."""
    if due > now:
        return due
    missed = math.floor((now - due).total_seconds() / seconds) + 1
    return due + timedelta(seconds=missed * seconds)


def next_cron(expression: str, zone: tzinfo, now: datetime) -> datetime:
    """The first time after now, in UTC, at which the clocks of the zone show what is asked for.

    A time that is skipped when the clocks are set forward comes by so much later. One that they
    show twice when they are set back counts once, unless the expression asks for every hour (an
    hour field that begins with *).
    """
    wall = now.astimezone(zone).replace(tzinfo=None)
    first = next(_walls(expression, wall))
    if _is_plain(now, zone) and _is_plain(_instants(first, zone, False)[0], zone):
        return _instants(first, zone, False)[0]
    twice = _is_every_hour(expression)
    best: datetime | None = None
    for candidate in _walls(expression, wall - _SHIFT):
        later = [instant for instant in _instants(candidate, zone, twice) if instant > now]
        best = min([*later, best] if best else later, default=best)
        if best and candidate > best.astimezone(zone).replace(tzinfo=None) + _SHIFT:
            return best
    raise AssertionError("a valid expression has no last time")


def _walls(expression: str, after: datetime) -> Iterator[datetime]:
    croniter = _croniter(expression)
    times = croniter(expression, after)
    while True:
        yield times.get_next(datetime)


def _instants(wall: datetime, zone: tzinfo, twice: bool) -> list[datetime]:
    """When the clocks show this, in UTC; with `twice` both times."""
    first, second = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    offsets = first.utcoffset(), second.utcoffset()
    is_shown_twice = offsets[0] is not None and offsets[1] is not None and offsets[1] < offsets[0]
    shown = [first, second] if twice and is_shown_twice else [first]
    return [moment.astimezone(UTC) for moment in shown]


def _is_plain(moment: datetime, zone: tzinfo) -> bool:
    """Whether the clocks are not set anywhere near."""
    near = (moment - _SHIFT, moment, moment + _SHIFT)
    return len({time.astimezone(zone).utcoffset() for time in near}) == 1


def _is_every_hour(expression: str) -> bool:
    fields = expression.split()
    return expression == "@hourly" or (len(fields) == 5 and fields[1].startswith("*"))


def _croniter(name: str) -> Any:
    try:
        from croniter import croniter
    except ImportError:
        raise InvalidTask(
            f"cron expression of {name}: the package croniter is needed for it; "
            "pip install 'django-task-locks[schedules]'"
        ) from None
    return croniter
