"""What must be so when all is quiet after a crash."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import inf
from uuid import UUID

from django.db import connection

from django_task_locks import rebuilding
from django_task_locks.connections import get_lock_manager
from django_task_locks.models import AppStatus, Task, described
from django_task_locks.settling import MISSING
from django_task_locks.states import State
from tests.crash.evidence import Stay, overlaps
from tests.crash.lock_record import Span
from tests.crash.tenure import Need, faults
from tests.support.intervals import conflict
from tests.support.redis_state import leftovers

# Every change of a task's state, written down by the database itself.
HISTORY = """
CREATE TABLE crash_history (
    id serial, task uuid, new text, written timestamptz DEFAULT clock_timestamp()
);
CREATE FUNCTION crash_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR NEW.state <> OLD.state THEN
        INSERT INTO crash_history (task, new) VALUES (NEW.id, NEW.state);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER crash_history AFTER INSERT OR UPDATE ON django_task_locks_task
    FOR EACH ROW EXECUTE FUNCTION crash_note();
"""


def what_is_unquiet(workers: Collection[int]) -> list[str]:
    """What is still to be done, while the workers of these pids live."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM django_task_locks_task WHERE state = ANY(%s)), "
            "(SELECT array_agg(pid) FROM django_task_locks_appstatus)",
            [[state.value for state in State.incomplete()]],
        )
        incomplete, pids = cursor.fetchone()
    found = []
    if incomplete:
        found.append(f"{incomplete} tasks without a final state")
    if sorted(pids or []) != sorted(workers):
        found.append(f"processes {pids}, of which {workers} live")
    if not found:
        found += [f"key left: {key}" for key in _keys_left()]
    if not found:
        present = {status.owner for status in AppStatus.objects.all()}
        found += [
            f"owner left in Redis: {owner}"
            for owner in get_lock_manager().owners().keys() - present
        ]
    if not found and not rebuilding.are_locks_right():
        found.append("the locks are not those of the present epoch")
    return found


def problems(stays: list[Stay], locks: list[Span], *, may_lose_locks: bool = False) -> list[str]:
    """What is wrong at the end, when no process is there any more.

    locks           who had them, see `lock_record`
    may_lose_locks  the server has lost everything meanwhile
    """
    return [
        *(f"overlap: {one} and {other}" for one, other in overlaps(stays)),
        *_in_history(_histories(), stays, locks, may_lose_locks=may_lose_locks),
        *_left(),
    ]


def surprises(
    accepted: Mapping[str, Collection[State | None]], retried: Collection[str]
) -> list[str]:
    """Tasks that came to an end that is not accepted for their label (None: that they are not
    there), with a reason that is none, or after an attempt too many.
    """
    tasks = {task.args[1]: task for task in Task.objects.all()}
    found = []
    for label, states in accepted.items():
        task = tasks.get(label)
        if task is None:
            found += [f"{label} is not there"] * (None not in states)
        elif task.state not in states:
            found.append(f"{label} is {task.state}, not {_named(states)}: {task.error}")
        elif task.attempt > 1 and label not in retried:
            found.append(f"{label} needed {task.attempt} attempts")
        elif task.state == State.FAILED and not described(task.error or {}).startswith(_LOSSES):
            found.append(f"{label} failed for another reason than a loss: {task.error}")
    return found


_LOSSES = ("Killed by signal", "Its process exited", "Its start was not confirmed", MISSING)


def _named(states: Collection[State | None]) -> str:
    return " or ".join(state.value if state else "absent" for state in states)


def _left() -> list[str]:
    manager = get_lock_manager()
    found = [f"process left: {status.owner}" for status in AppStatus.objects.all()]
    found += [f"key left: {key}" for key in _keys_left()]
    found += [f"owner left in Redis: {owner}" for owner in manager.owners()]
    return found


def _keys_left() -> list[str]:
    return sorted(leftovers(get_lock_manager()))


@dataclass(frozen=True, slots=True)
class _Change:
    """A new state of a row: when it was written and when that was committed, by the server."""

    state: str
    written: float
    committed: float


@dataclass(frozen=True, slots=True)
class _History:
    """A task, and the changes of its state, in order."""

    task: Task
    changes: list[_Change]

    @property
    def label(self) -> str:
        return str(self.task.args[1])

    @property
    def states(self) -> list[str]:
        return [change.state for change in self.changes]

    @property
    def runs(self) -> list[tuple[float, float]]:
        """From when to when a process owned it: it had its locks for longer than that."""
        found: list[tuple[float, float]] = []
        for change in self.changes:
            if change.state == State.RUNNING:
                found.append((change.written, inf))
            elif found and found[-1][1] == inf and change.state not in State.owned():
                found[-1] = (found[-1][0], change.committed)
        return found

    def __str__(self) -> str:
        return f"{self.label}: {' > '.join(self.states)}"


def _histories() -> list[_History]:
    changes: dict[UUID, list[_Change]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT task, new, extract(epoch FROM written), "
            "extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM crash_history ORDER BY id"
        )
        for task, state, written, committed in cursor.fetchall():
            changes[task].append(_Change(state, float(written), float(committed)))
    return [_History(task, changes[task.pk]) for task in Task.objects.all()]


def _in_history(
    histories: list[_History], stays: list[Stay], locks: list[Span], *, may_lose_locks: bool
) -> list[str]:
    needs = [need for stay in stays if (need := _of_body(stay))]
    for history in histories:
        for began, ended in history.runs:
            has_body = any(
                stay.task == str(history.task.pk) and began <= stay.began <= ended for stay in stays
            )
            # What was claimed before the loss is handed back before its body begins.
            if has_body or not may_lose_locks:
                needs.append(_of_row(history.task, began, ended))
    found = [
        f"{one.what} and {other.what} were running at the same time"
        for one, other in combinations(needs, 2)
        if one.id != other.id
        and conflict(one, other)
        and one.began < other.ended
        and other.began < one.ended
    ]
    found += faults(needs, locks)
    for history in histories:
        found += [f"{problem}: {history}" for problem in _in_one(history, stays)]
    return found


def _of_body(stay: Stay) -> Need | None:
    if stay.last <= stay.began:
        return None
    return Need(
        what=f"the body of {stay.label}",
        id=stay.task,
        exclusive=stay.exclusive,
        shared=stay.shared,
        began=stay.began,
        ended=stay.last,
    )


def _of_row(task: Task, began: float, ended: float) -> Need:
    return Need(
        what=f"{task.args[1]}, by its row,",
        id=str(task.pk),
        exclusive=task.exclusive,
        shared=task.shared,
        began=began,
        ended=ended,
    )


def _in_one(history: _History, stays: list[Stay]) -> Iterator[str]:
    task, states = history.task, history.states
    own = [stay for stay in stays if stay.task == str(task.pk)]
    if [state for state in states if State(state).is_final] != states[-1:]:
        yield "not final exactly once"
    if len(own) > min(len(history.runs), task.max_attempts):
        yield f"its body began {len(own)} times"
    if task.attempt > task.max_attempts:
        yield f"it is at attempt {task.attempt} of {task.max_attempts}"
    if task.state == State.COMPLETED and not any(stay.has_ended for stay in own):
        yield "its body never came to its end"
    if task.app_lock_id is not None:
        yield "final, and still names a process"
