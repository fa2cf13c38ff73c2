"""What the demo's tasks do at this moment, and what changed since the last look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django_task_locks.connections import get_lock_manager
from django_task_locks.models import Task

from mirror.demo.scenario import Job
from mirror.demo.verify import FINAL, Body, Outcome
from mirror.demo.workers import Kill
from mirror.models import TaskRun

Kind = Literal["note", "started", "completed", "failed", "killed", "restarted"]
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a viewer should be told once."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A task that runs, as its row says.

    `seconds` is None until the body has recorded its begin. One of a killed worker is cut off: it
    runs no more, and nobody has found out yet.
    """

    job: Job
    worker: str
    incarnation: UUID
    seconds: float | None
    is_cut_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A task that waits, and the tasks in its way; none in its way: for a free executor."""

    job: Job
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A task that holds a resource, or comes before, and that resource's title."""

    job: str
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All of it at one moment."""

    final: int
    total: int
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    events: tuple[Event, ...]


class Watcher:
    """Reads states from the database and queues from the lock service."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self.jobs: dict[UUID, Job] = {}
        self.kill: Kill | None = None
        self._manager = get_lock_manager()
        self._titles = titles
        self._states: dict[UUID, str] = {}

    def add(self, job: Job) -> None:
        self.jobs[job.task_id] = job

    @property
    def all_final(self) -> bool:
        return self.final_count == len(self.jobs)

    @property
    def final_count(self) -> int:
        return sum(state in FINAL for state in self._states.values())

    def look(self, *, queues: bool = True) -> View:
        """Without `queues` nobody's blockers are asked for."""
        rows = self._rows()
        begins = {run.task_id: run for run in TaskRun.objects.filter(ended=None)}
        events = tuple(self._changes(rows))
        running, waiting = [], []
        for id, row in rows.items():
            job = self.jobs[id]
            if row["state"] in {"running", "canceling"}:
                run = begins.get(id)
                running.append(
                    Running(
                        job=job,
                        worker=row["worker_name"],
                        incarnation=row["app_lock_id"],
                        is_cut_off=self.kill is not None
                        and self.kill.incarnation == row["app_lock_id"],
                        seconds=(time.monotonic_ns() - run.began) / SECOND if run else None,
                    )
                )
            elif row["state"] == "waiting":
                waiting.append(Waiting(job=job, blockers=self._blockers(job) if queues else ()))
        return View(
            final=self.final_count,
            total=len(self.jobs),
            running=tuple(running),
            waiting=tuple(waiting),
            events=events,
        )

    def outcomes(self) -> dict[UUID, Outcome]:
        return {
            id: Outcome(state=row["state"], reason=(row["error"] or {}).get("message", ""))
            for id, row in self._rows().items()
        }

    def bodies(self) -> list[Body]:
        """All bodies that ran; those that the kill cut off end when their process was gone."""
        bodies, kill = [], self.kill
        for run in TaskRun.objects.filter(task_id__in=self.jobs).order_by("began"):
            killed = kill is not None and run.incarnation == kill.incarnation
            cut_off = killed and run.ended is None
            bodies.append(
                Body(
                    job=self.jobs[run.task_id],
                    incarnation=run.incarnation,
                    began=run.began,
                    ended=kill.gone_at if kill is not None and cut_off else run.ended,
                    cut_off=cut_off,
                )
            )
        return bodies

    def _rows(self) -> dict[UUID, dict[str, Any]]:
        fields = ("id", "state", "worker_name", "app_lock_id", "result", "error")
        rows = {row["id"]: row for row in Task.objects.filter(id__in=self.jobs).values(*fields)}
        return {id: rows[id] for id in self.jobs if id in rows}

    def _changes(self, rows: Mapping[UUID, Mapping[str, Any]]) -> Iterable[Event]:
        for id, row in rows.items():
            before, now = self._states.get(id, "waiting"), row["state"]
            if before == now:
                continue
            job = self.jobs[id]
            where = "here, immediately" if job.immediate else f"on {row['worker_name']}"
            if before == "waiting" and now != "canceled":
                yield Event(kind="started", text=f"{job}, {where}")
            if now == "completed":
                yield Event(kind="completed", text=f"{job}: {_told(row['result'])}")
            elif now in FINAL:
                reason = (row["error"] or {}).get("message", "")
                yield Event(kind="failed", text=f"{job}: {reason or now}")
            self._states[id] = now

    def _blockers(self, job: Job) -> tuple[Blocker, ...]:
        request = self._manager.inspect_request(str(job.task_id))
        if request is None or request.state != "waiting":
            return ()
        names = {str(id): str(job) for id, job in self.jobs.items()}
        return tuple(
            Blocker(
                job=names.get(blocker.id, blocker.id),
                resource=self._titles.get(blocker.resource, blocker.resource),
            )
            for blocker in request.blockers
        )


def _told(result: Any) -> str:
    if not isinstance(result, dict):
        return str(result)
    return ", ".join(f"{key} {value}" for key, value in result.items() if isinstance(value, int))
