"""Named events: everything this package logs, with its level and wording, in one place.

`emit("task.finished", task=..., seconds=...)` logs one line on the logger
`django_task_locks.<part before the dot>`: the wording and the fields as key=value. The record has
the attributes `event` and `fields` for formatters that want them.
"""

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class Event(NamedTuple):
    level: int
    wording: str


EVENTS = {
    "task.started": Event(INFO, "started"),
    "task.finished": Event(INFO, "finished"),
    "task.failed": Event(WARNING, "failed"),
    "task.canceled": Event(INFO, "canceled"),
    "task.retry": Event(WARNING, "failed; another attempt follows"),
    "task.requeued": Event(WARNING, "handed back to the queue"),
    "task.deferred": Event(INFO, "took too long here, and is left to a worker"),
    "task.not_sent": Event(
        WARNING, "dispatched, but its request could not be sent; it is repeated"
    ),
    "task.sent_late": Event(INFO, "request sent after all"),
    "tasks.not_sent": Event(
        WARNING, "dispatched, but their requests could not be sent; they are repeated"
    ),
    "task.not_recorded": Event(WARNING, "outcome could not be stored; it is repeated"),
    "task.late": Event(
        WARNING, "outcome refused: the task was taken from this process in the meantime"
    ),
    "task.not_claimable": Event(INFO, "not started: it was decided elsewhere in the meantime"),
    "task.overdue": Event(WARNING, "time limit exceeded; it is stopped"),
    "task.unknown": Event(
        WARNING,
        "claimed, but this database does not know it: deleted, or another deployment uses the same "
        "Redis and prefix",
    ),
    "task.cancel_not_sent": Event(
        WARNING, "canceling, but the message to its process could not be sent; its beat finds it"
    ),
    "progress.not_stored": Event(WARNING, "progress could not be stored; the next report may be"),
    "release.postponed": Event(WARNING, "release could not be sent; it is repeated"),
    "release.repeated": Event(INFO, "release sent after all"),
    "presence.announced": Event(DEBUG, "process announced"),
    "presence.lost": Event(
        ERROR, "this process was declared missing; what it held is no longer its own"
    ),
    "presence.left_behind": Event(
        WARNING, "process ended without taking its record along; clean-up does"
    ),
    "presence.beat_failed": Event(WARNING, "heartbeat failed; it is repeated"),
    "presence.beat_again": Event(INFO, "heartbeat works again"),
    "embedded.started": Event(INFO, "Valkey server for development started"),
    "embedded.server_ended": Event(INFO, "server ended"),
    "embedded.ending": Event(INFO, "no user is left; ending the server"),
    "embedded.resisting": Event(ERROR, "server did not end on a signal"),
    "embedded.unreachable": Event(WARNING, "server cannot be reached"),
    "schedule.dispatched": Event(INFO, "dispatched by its schedule"),
    "schedule.skipped": Event(INFO, "left out: the task before is not complete"),
    "schedule.failed": Event(ERROR, "could not be dispatched; the next time is tried"),
    "schedule.postponed": Event(WARNING, "schedules could not be looked at; that is tried again"),
    "schedule.not_told": Event(
        WARNING, "schedules have changed, but workers could not be told; they look in a while"
    ),
    "worker.started": Event(INFO, "worker started"),
    "worker.evicting": Event(
        WARNING,
        "Redis drops locks when its memory is full, and then lets tasks run that exclude each "
        "other; set its maxmemory-policy to noeviction",
    ),
    "worker.waiting": Event(WARNING, "not started yet, since a service that it needs is away"),
    "worker.reloading": Event(INFO, "source file changed; starting anew"),
    "worker.reload_waits": Event(
        WARNING, "worker ended; it is started again when a source file changes"
    ),
    "worker.predecessor": Event(WARNING, "predecessor of the same name found"),
    "worker.stopping": Event(INFO, "stopping: no new tasks"),
    "worker.aborting": Event(WARNING, "aborting running tasks"),
    "worker.stopped": Event(INFO, "worker stopped"),
    "worker.unclean_end": Event(WARNING, "worker ended with something left; clean-up releases it"),
    "worker.beat_failed": Event(WARNING, "unavailable for a heartbeat; it is repeated"),
    "worker.error": Event(ERROR, "unexpected error in the supervisor; it goes on"),
    "worker.unavailable": Event(WARNING, "unavailable; tried again with growing delay"),
    "worker.available": Event(INFO, "available again"),
    "worker.fenced": Event(
        ERROR,
        "no heartbeat in time, or declared missing: executors were stopped; "
        "starting as a new incarnation",
    ),
    "worker.settle_failed": Event(
        WARNING, "what an ended executor left could not be settled; tried again"
    ),
    "executor.started": Event(DEBUG, "executor started"),
    "executor.ended": Event(DEBUG, "executor ended"),
    "executor.worn": Event(INFO, "executor replaced by a fresh one"),
    "executor.lingering": Event(
        WARNING, "executor was killed, but something that it started does not end; its locks stay"
    ),
    "executor.died": Event(WARNING, "executor died"),
    "executor.not_restored": Event(
        WARNING, "what a task holds by itself could not be restored yet; it is repeated"
    ),
    "executor.given_up": Event(
        ERROR, "executor killed: it did not restore what its task holds by itself within half a TTL"
    ),
    "executor.error": Event(ERROR, "unexpected error in an executor"),
    "recovery.missing": Event(WARNING, "process declared missing"),
    "recovery.task": Event(WARNING, "settled, since its process has ended"),
    "recovery.released": Event(WARNING, "request released by clean-up"),
    "recovery.orphan": Event(WARNING, "owner without a process record cleaned"),
    "recovery.freed": Event(WARNING, "resource freed from who had no request"),
    "recovery.registry_lost": Event(
        WARNING, "an owner's registry is missing; all requests are looked at instead"
    ),
    "recovery.scanned": Event(INFO, "every key of the lock service was looked at"),
    "recovery.resent": Event(WARNING, "waiting task was unknown to the lock service; sent again"),
    "recovery.failed": Event(ERROR, "clean-up step failed; the next clean-up repeats it"),
    "recovery.finished": Event(INFO, "clean-up finished"),
    "epoch.first": Event(DEBUG, "the first epoch of these locks has begun"),
    "epoch.rebuilding": Event(WARNING, "Redis does not hold the present locks; they are rebuilt"),
    "epoch.opened": Event(INFO, "the locks are rebuilt, and granted again"),
    "epoch.rebuild_failed": Event(WARNING, "the locks could not be rebuilt yet; it is tried again"),
    "epoch.not_restored": Event(ERROR, "a request cannot be restored; clean-up looks at it"),
    "epoch.adopted": Event(INFO, "this process has restored its locks in the new epoch"),
    "epoch.demoted": Event(
        ERROR,
        "this process reaches a Redis that the others have left, and does not use it; if it is to "
        "be used from now on, empty it",
    ),
    "request.restored": Event(
        WARNING, "held, but Redis alone had lost it, or a part of it; restored"
    ),
    "request.not_restored": Event(
        ERROR, "held, but Redis has lost it, or a part of it, and it cannot be restored"
    ),
    "task.unlocked": Event(
        ERROR, "runs without all of its locks: Redis had lost them, and somebody else has them now"
    ),
    "hold.lost": Event(ERROR, "a hold has lost its locks while its code goes on"),
}


class _Fields:
    """Formats fields only when a handler wants the line."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        return "".join(f" {name}={_shown(value)}" for name, value in self.fields.items())


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    shown = str(value)
    is_plain = shown.isprintable() and not any(character in ' "=' for character in shown)
    return shown if shown and is_plain else json.dumps(shown)


# What a person reads of the most frequent ones; an event that lacks a field is shown as any other.
_SENTENCES = {
    "task.started": "{name} started, waited {waited} [{task}]",
    "task.finished": "{name} finished in {seconds}, waited {waited} [{task}]",
    "task.failed": "{name} failed after {seconds}, waited {waited}: {reason} [{task}]",
    "task.canceled": "{name} canceled after {seconds}, waited {waited} [{task}]",
    "worker.waiting": "not started yet: {what} is away; next try in {next_try_in}: {error}",
}


def sentence(name: str, fields: Mapping[str, object]) -> str:
    """The event in a sentence; empty if there is none for it."""
    shown = {
        key: _duration(value) if isinstance(value, float) else _printable(value)
        for key, value in fields.items()
    }
    try:
        return _SENTENCES[name].format_map(shown)
    except KeyError:
        return ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _printable(value: object) -> str:
    shown = str(value)
    return shown if shown.isprintable() else json.dumps(shown)


def emit(
    name: str,
    /,
    *,
    exc_info: bool | BaseException = False,
    traceback: str = "",
    **fields: object,
) -> None:
    """Logs the event with its fields; an exception is added with its traceback if asked for, or the
    text of a traceback for formatters that show it.
    """
    event = EVENTS[name]
    logging.getLogger(f"django_task_locks.{name.partition('.')[0]}").log(
        event.level,
        "%s%s",
        event.wording,
        _Fields(fields),
        exc_info=exc_info,
        extra={"event": name, "fields": fields, "traceback": traceback},
    )
