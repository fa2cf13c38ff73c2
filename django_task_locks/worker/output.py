"""What a worker prints: lines for a person, or JSON for a machine that collects them."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from django_task_locks.events import sentence

_LOGGER = "django_task_locks"


class HumanFormatter(logging.Formatter):
    """One line an event; under a failure its traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)
        shown.message = sentence(record.__dict__.get("event", ""), _fields(record)) or (
            record.getMessage()
        )
        if (details := _traceback(record)) and details not in shown.message and not record.exc_info:
            shown.message += "".join(f"\n    {line}" for line in details.rstrip().splitlines())
        return super().formatMessage(shown)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, event, message, the event's fields, and
    where there is one the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **{name: _plain(value) for name, value in _fields(record).items()},
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.__dict__.get("event", ""),
            "message": str(record.args[0])
            if "event" in record.__dict__ and isinstance(record.args, tuple) and record.args
            else record.getMessage(),
        }
        if details := _traceback(record):
            line["traceback"] = details
        return json.dumps(line)


def log_to_terminal(*, as_json: bool = False) -> None:
    """A worker that says nothing helps nobody: it prints to stdout, unless the project's LOGGING
    decides. JSON is asked for by hand, and goes there in any case.
    """
    logger = logging.getLogger(_LOGGER)
    if logger.hasHandlers() and not as_json:
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    if as_json:
        logger.handlers.clear()
        logger.propagate = False
    logger.addHandler(handler)
    logger.setLevel(min(logger.level or logging.INFO, logging.INFO))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = record.__dict__.get("fields")
    return dict(fields) if isinstance(fields, dict) else {}


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[0]:
        return "".join(traceback.format_exception(*record.exc_info))
    return str(record.__dict__.get("traceback") or "")


def _plain(value: object) -> object:
    if isinstance(value, bool | int | str | None):
        return value
    return round(value, 6) if isinstance(value, float) else str(value)
