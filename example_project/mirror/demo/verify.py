"""The checks at the end: pure functions over what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from uuid import UUID

from mirror.demo.scenario import Job
from mirror.demo.workers import Kill

FINAL = frozenset({"completed", "failed", "canceled"})
WORKER_GONE = "Worker has gone missing."
# What may stay in the lock service when no task is left: counters and bookkeeping, by the first
# part of the key. A lane's wake-up marker is no lock, and neither is the turn to clean up.
BOOKKEEPING = frozenset(
    {"seq", "token", "epoch", "lanes", "owners", "closed", "suspects", "wake", "leader"}
)
MILLISECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A statement, whether it holds, and the evidence where it does not."""

    text: str
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a task ended, as its row says."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """When a task's body ran, in nanoseconds of a clock that all processes share.

    The end of a body that was cut off is the moment at which its process was gone. None: unknown,
    so that everything that conflicts and began later counts as an overlap.
    """

    job: Job
    incarnation: UUID | None
    began: int
    ended: int | None
    cut_off: bool = False

    def __str__(self) -> str:
        return str(self.job)


def conflicts(one: Job, other: Job) -> frozenset[str]:
    """The resources over which two tasks exclude each other."""
    return (
        one.exclusive & other.exclusive
        | one.exclusive & other.shared
        | one.shared & other.exclusive
    )


def check_final_states(jobs: Sequence[Job], outcomes: Mapping[UUID, Outcome]) -> Check:
    counts = Counter(outcome.state for outcome in outcomes.values())
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    problems = []
    for job in jobs:
        outcome = outcomes.get(job.task_id)
        if outcome is None:
            problems.append(f"{job} has no row")
        elif outcome.state not in FINAL:
            problems.append(f"{job} is {outcome.state}")
    return Check(
        text=f"All {len(jobs)} tasks have a final state: {told}.", problems=tuple(problems)
    )


def check_failures(
    jobs: Sequence[Job], outcomes: Mapping[UUID, Outcome], bodies: Sequence[Body], kill: Kill | None
) -> Check:
    """The tasks of the killed worker failed, with that reason, and nothing else did."""
    if kill is None:
        return Check(text="A worker was killed.", problems=("no worker was killed",))
    failed = {job for job in jobs if _state(outcomes, job) != "completed"}
    by_job = {body.job: body for body in bodies}
    problems = [] if failed else ["the kill hit no running task"]
    for job in sorted(failed, key=lambda job: job.number):
        outcome = outcomes.get(job.task_id, Outcome(state="gone"))
        body = by_job.get(job)
        if outcome.state != "failed" or outcome.reason != WORKER_GONE:
            problems.append(f"{job} is {outcome.state}: {outcome.reason or 'no reason'}")
        elif body is None and job.task_id not in kill.task_ids:
            problems.append(f"{job} failed, although the killed worker was not seen to run it")
        elif body is not None and body.incarnation != kill.incarnation:
            problems.append(f"{job} failed, although another worker ran it")
    for body in bodies:
        if body.cut_off and body.job not in failed:
            problems.append(f"{body} was cut off and is {_state(outcomes, body.job)}")
    names = " and ".join(str(job) for job in sorted(failed, key=lambda job: job.number))
    return Check(
        text=f'Of the killed {kill.worker}, {names or "no task"} failed: "{WORKER_GONE}" '
        "Nothing else failed.",
        problems=tuple(problems),
    )


def check_exclusion(bodies: Sequence[Body]) -> Check:
    """No two conflicting bodies ran at the same time, and none ran twice."""
    pairs = list(_conflicting_pairs(bodies))
    problems = [f"{one} ran more than once" for one in _repeated(body.job for body in bodies)]
    for one, other, resources in pairs:
        if _runs_into(one, other):
            problems.append(f"{one} and {other} overlapped on {', '.join(sorted(resources))}")
    return Check(
        text="No two conflicting bodies overlapped: "
        f"{len(bodies)} bodies, {len(pairs)} conflicting pairs.",
        problems=tuple(problems),
    )


def check_order(bodies: Sequence[Body]) -> Check:
    """Of two conflicting tasks of one priority, the one dispatched first began first."""
    compared, problems = 0, []
    for one, other, resources in _conflicting_pairs(bodies):
        if one.job.priority != other.job.priority:
            continue
        compared += 1
        first, second = sorted((one, other), key=lambda body: body.job.number)
        if second.began < first.began:
            problems.append(
                f"{second} began {(first.began - second.began) // MILLISECOND} ms before {first}, "
                f"on {', '.join(sorted(resources))}"
            )
    return Check(
        text="First come, first served on every resource: "
        f"{compared} conflicting pairs of one priority.",
        problems=tuple(problems),
    )


def check_lock_service(keys: Collection[str], owners: Collection[str] = ()) -> Check:
    """Takes the names of all keys, without the prefix, and the processes that are registered
    although they have ended.
    """
    left = [key for key in sorted(keys) if key.partition(":")[0] not in BOOKKEEPING]
    stays = ", ".join(key for key in sorted(keys) if key not in left) or "nothing at all"
    return Check(
        text=f"The lock service holds no lock, request or registry; bookkeeping stays: {stays}.",
        problems=tuple(
            [f"left behind: {key}" for key in left]
            + [f"still registered: {owner}" for owner in sorted(owners)]
        ),
    )


def _state(outcomes: Mapping[UUID, Outcome], job: Job) -> str:
    outcome = outcomes.get(job.task_id)
    return outcome.state if outcome else "gone"


def _conflicting_pairs(bodies: Sequence[Body]) -> Iterator[tuple[Body, Body, frozenset[str]]]:
    for one, other in combinations(bodies, 2):
        if one.job is not other.job and (resources := conflicts(one.job, other.job)):
            yield one, other, resources


def _runs_into(one: Body, other: Body) -> bool:
    first, second = sorted((one, other), key=lambda body: body.began)
    return first.ended is None or second.began < first.ended


def _repeated(jobs: Iterable[Job]) -> list[Job]:
    return [job for job, count in Counter(jobs).items() if count > 1]
