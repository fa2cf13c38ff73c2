"""What a clean-up is about, what it found, and what became of it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django_task_locks.events import emit
from django_task_locks.scanning import Survey
from django_task_locks.scopes import Scope

PLANNED, DONE, FAILED, PENDING = "planned", "done", "failed", "pending"


@dataclass(slots=True)
class Step:
    """One thing that clean-up found.

    kind     "process", "task", "request", "unsent", "group", "lock"
    subject  the owner or the id
    reason   why it is here; action: what is done about it; status: planned, done, failed, pending
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
    """What a clean-up found and did; with dry_run only found.

    steps    what there was to do
    pending  what it is too early, or not for clean-up, to act on
    scope    what it is limited to
    survey   what a scan finds, if one is needed
    """

    dry_run: bool = False
    steps: list[Step] = field(default_factory=list)
    pending: list[Step] = field(default_factory=list)
    scope: Scope = field(default=Scope(), repr=False, compare=False)
    survey: Survey = field(default_factory=Survey, repr=False, compare=False)

    @property
    def failures(self) -> list[Step]:
        return [step for step in self.steps if step.status == FAILED]

    def classes(self) -> list[tuple[Step, int]]:
        """Of those that have all but the subject in common the first, and how many there are."""
        found = [*self.steps, *self.pending]
        counts = Counter(map(_class_of, found))
        firsts = {_class_of(step): step for step in reversed(found)}
        return [(firsts[key], count) for key, count in counts.items()]

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

    def postpone(self, kind: str, subject: str, owner: str, why: str, action: str) -> None:
        """Notes what is left as it is, for now or for good."""
        self.pending.append(Step(kind, subject, owner, why, action, PENDING))


def _class_of(step: Step) -> tuple[str, str, str, str]:
    # What is pending tells in its action how long it still is.
    action = "" if step.status == PENDING else step.action
    return step.kind, step.status, action, step.reason
