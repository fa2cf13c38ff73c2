"""What must be so when all is quiet after a crash."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from django.db import connection

from django_task_locks.connections import get_lock_manager
from django_task_locks.events import EVENTS
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.crash.evidence import Stay, overlaps
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


def _in_history(stays: list[Stay]) -> list[str]:
    final = {state.value for state in State if state.is_final}
    changes: dict[str, list[str]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute("SELECT task, new FROM crash_history ORDER BY id")
        for task, state in cursor.fetchall():
            changes[str(task)].append(state)
    runs = Counter(stay.task for stay in stays)
    found = []
    for task in Task.objects.all():
        label, states = task.args[1], changes[str(task.pk)]
        if [state for state in states if state in final] != states[-1:]:
            found.append(f"{label} is not final exactly once: {' > '.join(states)}")
        if runs[str(task.pk)] > states.count(State.RUNNING.value):
            found.append(f"{label} began {runs[str(task.pk)]} times: {' > '.join(states)}")
        if states.count(State.RUNNING.value) > task.max_attempts:
            found.append(f"{label} ran more often than it may: {' > '.join(states)}")
        ended = any(stay.has_ended for stay in stays if stay.task == str(task.pk))
        if task.state == State.COMPLETED and not ended:
            found.append(f"{label} is completed, but never came to its end")
        if task.app_lock_id is not None:
            found.append(f"{label} is final and still names a process")
    return found
