"""What a clean-up found, and what became of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django_task_locks.events import emit

PLANNED, DONE, FAILED = "planned", "done", "failed"


@dataclass(slots=True)
class Step:
    """One thing that clean-up found.

    kind     "process", "task", "request", "unsent"
    subject  the owner or the id
    reason   why it is here; action: what is done about it; status: planned, done, failed
    """

    kind: str
    subject: str
    owner: str
    reason: str
    action: str
    status: str = PLANNED
    error: str = ""


@dataclass(slots=True)
class Report:
    """What a clean-up found and did; with dry_run only found."""

    dry_run: bool = False
    steps: list[Step] = field(default_factory=list)

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if step.status == FAILED]

    @contextmanager
    def step(self, kind: str, subject: str, owner: str, why: str, action: str) -> Iterator[Step]:
        """One isolated step: an error inside is noted and logged, and goes no further."""
        step = Step(kind, subject, owner, why, action)
        self.steps.append(step)
        try:
            yield step
        except Exception as error:
            step.status, step.error = FAILED, f"{type(error).__name__}: {error}"
            emit("recovery.failed", kind=kind, subject=subject, owner=owner, error=error)
        else:
            step.status = PLANNED if self.dry_run else DONE
