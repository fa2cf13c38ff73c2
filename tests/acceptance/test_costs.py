"""What workers cost the database and Redis: for each task, and while there is nothing to do."""

import os
import time
from collections import Counter
from hashlib import sha1
from pathlib import Path

import pytest

from django_task_locks import dispatch
from django_task_locks.locks import LockManager, scripts
from django_task_locks.models import AppStatus, State, Task
from tests.support import suite
from tests.support.processes import Workers, wait_for_state, wait_until, wait_until_final
from tests.support.statements import StatementLog, every_statement_logged, monitored
from tests.testapp import tasks

pytestmark = pytest.mark.skipif(
    "os.environ.get('TEST_DATABASE', 'postgres') != 'postgres'",
    reason="counted in PostgreSQL's log of statements",
)

HEARTBEAT = 'UPDATE "django_task_locks_appstatus" SET "last_heartbeat"'
TASK = '"django_task_locks_task"'


def call_of(locks: LockManager, script: str) -> str:
    """As it stands in the list of commands."""
    source = scripts.source(script, locks.keys, scripts.BATCH)
    return f"EVALSHA {sha1(source.encode(), usedforsecurity=False).hexdigest()}"


@pytest.mark.parametrize("contended", [False, True], ids=["free", "contended"])
def test_a_task_costs_three_statements_in_two_round_trips_and_one_call_to_redis(
    contended: bool, workers: Workers, locks: LockManager
) -> None:
    """From the second on, while there are more."""
    count = 100
    dispatched = [
        dispatch(tasks.add, [n], exclusive=["r" if contended else f"r{n}"]) for n in range(count)
    ]
    with every_statement_logged(), monitored(suite.valkey) as redis:
        log = StatementLog(suite.postgres)
        worker = workers.launch("--burst", ttl=60.0, cleanup_interval=3600.0)
        assert worker.wait() == 0
        statements = log.statements()
    assert {task.state for task in wait_until_final(dispatched)} == {State.COMPLETED}

    of_tasks = Counter(
        " ".join(part.split()[0] for part in line.split("; "))
        for line in statements
        if TASK in line
    )
    assert of_tasks["BEGIN UPDATE COMMIT SELECT"] == count, "start, and then load"
    assert of_tasks["UPDATE"] == count, "finish"
    # At the start and at the end the worker looks for what may be left.
    assert of_tasks["SELECT"] <= 2
    # No transaction around them either: these are of the worker's start and end.
    others = [line for line in statements if TASK not in line]
    assert len(others) < 20, others

    sent = redis.counts()
    assert sent[call_of(locks, "advance")] == count
    assert sent[call_of(locks, "claim")] <= 4
    # Of the worker's life, not of its tasks. Each connection begins with the same three.
    assert sent["HELLO"] < 20, sent
    apart = {"HELLO", "CLIENT", call_of(locks, "advance")}
    assert sum(n for command, n in sent.items() if command not in apart) < 35, sent


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_idle_workers_cost_their_heartbeats_and_little_else(
    workers: Workers, locks: LockManager, capsys: pytest.CaptureFixture[str]
) -> None:
    count, seconds, beat = 20, float(os.environ.get("TEST_IDLE_SECONDS", "12")), 2.0
    # The periodic clean-up is one process's of the whole deployment; it is left out here.
    given = {"ttl": 600.0, "heartbeat_interval": beat, "cleanup_interval": 3600.0}
    with every_statement_logged():
        for number in range(count):
            workers.launch("--name", f"w{number}", **given)
        for worker in workers.started:
            worker.wait_for_log("worker started", timeout=120)
        wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
        settled = time.monotonic() + beat  # each has heard of the new lane by then
        wait_until(lambda: time.monotonic() > settled)
        with monitored(suite.valkey) as redis:
            log = StatementLog(suite.postgres)
            began = time.monotonic()
            wait_until(lambda: time.monotonic() > began + seconds, timeout=seconds + 30)
            statements = log.statements()
            elapsed = time.monotonic() - began
    beats = count * (elapsed / beat + 1)
    of_heartbeats = [line for line in statements if line.startswith(HEARTBEAT)]
    sent = redis.counts()
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{count} idle workers, a heartbeat each {beat:g} s: "
            f"{len(statements) / elapsed:.1f} statements/s, "
            f"{sum(sent.values()) / elapsed:.1f} commands/s to Redis ({dict(sent)})"
        )
    assert [line for line in statements if TASK in line] == []
    assert len(statements) == len(of_heartbeats)
    assert len(of_heartbeats) <= beats
    # Of an executor: the bounded wait and the claim after it. Of a supervisor: beat, BLPOP and a
    # look at who leads the schedules.
    of_executors = sent["BZPOPMIN"] + sent[call_of(locks, "claim")]
    assert of_executors <= count * elapsed * 1.0
    assert sum(sent.values()) / elapsed <= count * 5 / beat * 1.25
    assert AppStatus.objects.online().filter(app_type="worker").count() == count
    assert Task.objects.count() == 1


def test_an_idle_executor_starts_a_granted_task_at_once(
    workers: Workers, locks: LockManager, tmp_path: Path
) -> None:
    """It is woken, and does not wait for its next look."""
    workers.start(ttl=60.0)
    wait_for_state(dispatch(tasks.add, [1]), State.COMPLETED)
    for _ in range(5):
        task = wait_for_state(dispatch(tasks.add, [1], exclusive=["r"]), State.COMPLETED)
        assert task.started_at is not None
        assert (task.started_at - task.created_at).total_seconds() < 0.5
