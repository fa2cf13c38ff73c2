"""What must be so when all is quiet after a crash."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import inf
from uuid import UUID

from django.db import connection

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import EVENTS
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.crash.evidence import Stay, overlaps
from tests.support.intervals import conflict
from tests.support.redis_state import leftovers

# Every change of a task's state, written down by the database itself.
HISTORY = """
CREATE TABLE crash_history (id serial, task uuid, old text, new text);
CREATE FUNCTION crash_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO crash_history (task, old, new) VALUES (NEW.id, '', NEW.state);
    ELSIF NEW.state <> OLD.state THEN
        INSERT INTO crash_history (task, old, new) VALUES (NEW.id, OLD.state, NEW.state);
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
    return found


def problems(stays: list[Stay]) -> list[str]:
    """What is wrong at the end, when no process is there any more."""
    return [
        *(f"overlap: {one} and {other}" for one, other in overlaps(stays)),
        *_in_history(stays),
        *_left(),
    ]


def surprises(ends: Mapping[str, State], retried: Collection[str], log: str) -> list[str]:
    """Tasks that came to another end than without a fault, or not at the first attempt. Nothing can
    be said where a process lost its heartbeat: then its tasks are lost with it, as they should.
    """
    if any(EVENTS[event].wording in log for event in ("worker.fenced", "presence.lost")):
        return []
    tasks = {task.args[1]: task for task in Task.objects.all()}
    found = [f"{label} is not there" for label in ends.keys() - tasks.keys()]
    for label in ends.keys() & tasks.keys():
        task = tasks[label]
        if task.state != ends[label]:
            found.append(f"{label} is {task.state}, not {ends[label].value}: {task.error}")
        if task.attempt > 1 and label not in retried:
            found.append(f"{label} needed {task.attempt} attempts")
    return found


def _left() -> list[str]:
    manager = get_lock_manager()
    found = [f"process left: {status.owner}" for status in AppStatus.objects.all()]
    found += [f"key left: {key}" for key in _keys_left()]
    found += [f"owner left in Redis: {owner}" for owner in manager.owners()]
    return found


def _keys_left() -> list[str]:
    return sorted(leftovers(get_lock_manager()))


@dataclass(frozen=True, slots=True)
class _History:
    """A task, and its states in order, each with the place of its change among all changes."""

    task: Task
    changes: list[tuple[int, str]]

    @property
    def label(self) -> str:
        return str(self.task.args[1])

    @property
    def states(self) -> list[str]:
        return [state for _, state in self.changes]

    @property
    def runs(self) -> list[tuple[int, float]]:
        """From which to which place a process owned it: it had its locks for longer than that."""
        found: list[tuple[int, float]] = []
        for place, state in self.changes:
            if state == State.RUNNING:
                found.append((place, inf))
            elif found and found[-1][1] == inf and state not in State.owned():
                found[-1] = (found[-1][0], place)
        return found

    def __str__(self) -> str:
        return f"{self.label}: {' > '.join(self.states)}"


def _histories() -> list[_History]:
    changes: dict[UUID, list[tuple[int, str]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute("SELECT task, id, new FROM crash_history ORDER BY id")
        for task, place, state in cursor.fetchall():
            changes[task].append((place, state))
    return [_History(task, changes[task.pk]) for task in Task.objects.all()]


def _in_history(stays: list[Stay]) -> list[str]:
    histories = _histories()
    found = [
        f"{one.label} and {other.label} were running at the same time, by their rows"
        for one, other in combinations(histories, 2)
        if conflict(one.task, other.task)
        and any(a[0] < b[1] and b[0] < a[1] for a in one.runs for b in other.runs)
    ]
    for history in histories:
        found += [f"{problem}: {history}" for problem in _in_one(history, stays)]
    return found


def _in_one(history: _History, stays: list[Stay]) -> Iterator[str]:
    task, states = history.task, history.states
    own = [stay for stay in stays if stay.task == str(task.pk)]
    if [state for state in states if State(state).is_final] != states[-1:]:
        yield "not final exactly once"
    if len(own) > len(history.runs):
        yield f"its body began {len(own)} times"
    if len(history.runs) > task.max_attempts:
        yield "ran more often than it may"
    if task.state == State.COMPLETED and not any(stay.has_ended for stay in own):
        yield "its body never came to its end"
    if task.app_lock_id is not None:
        yield "final, and still names a process"
