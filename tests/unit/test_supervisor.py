"""What the supervisor works out by itself."""

from itertools import count

import pytest

from django_task_locks.worker.guard import now
from django_task_locks.worker.supervisor import Options, Supervisor


@pytest.mark.parametrize("pause", [1.0, 3600.0])
def test_a_pause_between_two_looks_at_the_clock_does_not_end_a_worker(
    pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a busy or suspended machine, in which every appointment may pass."""
    idle = Supervisor(Options(name="w"))
    idle._schedules.look_at = now() + 0.5
    clock = count(now(), pause)
    monkeypatch.setattr("django_task_locks.worker.supervisor.now", lambda: next(clock))

    assert 0 < idle._time_to_wait() <= 5.0
