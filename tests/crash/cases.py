"""The cases: a scene, the process of it that is under test, and how it ends without a fault.

Queue "a" is the process's under test; "b" that of a bystander, a live worker that takes over what
is released too early, and that cleans up. The rebuild after Redis has lost everything gets its
cases here, too: a case is all that it needs.
"""

import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management import call_command
from django.db import transaction

from django_task_locks import cancel_task, dispatch, hold, presence
from django_task_locks.connections import get_lock_manager
from django_task_locks.locks.requests import Claimant, Claimed, Lanes
from django_task_locks.managers import DatabaseNow
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.crash import evidence
from tests.crash.bodies import die, work
from tests.crash.stage import Stage
from tests.support.proxy import POSTGRES, REDIS

COMPLETED, FAILED, CANCELED = State.COMPLETED, State.FAILED, State.CANCELED
_LONG = 1.5
_WHILE = 0.25
_PATIENCE = 8.0


def nothing(stage: Stage) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """scenario   what happens
    process    whose commands are counted
    child      0: those of the process that `run` is; n: of its n-th child that connects
    prepare    what is there before
    run        the process under test
    meanwhile  what others do, once it runs
    bystander  whether the live worker of queue "b" is there
    is_worker  whether a worker is under test
    endures    servers to which a connection may be lost without another end than that
    ends       label to final state without a fault
    retried    labels of those that need another attempt even so
    """

    scenario: str
    process: str
    run: Callable[[Stage], object]
    ends: Mapping[str, State]
    child: int = 0
    prepare: Callable[[Stage], object] = nothing
    meanwhile: Callable[[Stage], object] = nothing
    bystander: bool = False
    is_worker: bool = False
    endures: Collection[str] = ()
    retried: Collection[str] = ()

    @property
    def id(self) -> str:
        return f"{self.scenario}/{self.process}"


def task(stage: Stage, label: str, seconds: float = 0.03, **options: Any) -> Task:
    return dispatch(work, stage.arguments(label, seconds), **options)


def worker(*queues: str, burst: bool = True) -> Callable[[Stage], int]:
    return lambda stage: stage.worker("w", *queues, burst=burst)


# -- dispatch and run to the end -------------------------------------------------------------------

AGAIN: dict[str, Any] = {"on_worker_loss": "requeue", "max_attempts": 3}


def dispatch_two(stage: Stage) -> None:
    task(stage, "one", exclusive=["r"], **AGAIN)
    with transaction.atomic():
        task(stage, "two", exclusive=["r"])


# -- a rival waits; shared and exclusive -----------------------------------------------------------


def with_rival(stage: Stage) -> None:
    task(stage, "one", _WHILE, exclusive=["r"], queue="a")
    task(stage, "rival", exclusive=["r"], queue="b")


def shared_and_exclusive(stage: Stage) -> None:
    task(stage, "reader", _WHILE, shared=["s"], exclusive=["x"], queue="a", **AGAIN)
    task(stage, "other reader", _WHILE, shared=["s"], queue="b")
    task(stage, "writer", exclusive=["s"], queue="b")
    task(stage, "next", shared=["s"], exclusive=["x"], queue="a")


def lose_executor(stage: Stage) -> None:
    dispatch(die, stage.arguments("victim"), exclusive=["r"], queue="a")
    task(stage, "rival", exclusive=["r"], queue="b")


# -- immediate, hold -------------------------------------------------------------------------------


def run_immediately(stage: Stage) -> None:
    task(stage, "immediate", _WHILE, exclusive=["r"], immediate=True)


def run_immediately_in_transaction(stage: Stage) -> None:
    with transaction.atomic():
        task(stage, "immediate", _WHILE, exclusive=["r"], immediate=True, deferred=False)
        task(stage, "with it", exclusive=["r"])


def hold_a_while(stage: Stage) -> None:
    with (
        hold(exclusive=["r"], timeout=5),
        evidence.recorded(stage.evidence, "immediate", "", ["r"], []) as stamp,
    ):
        stamp.go_on(_WHILE)


def rival_of_immediate(stage: Stage) -> None:
    stage.until(lambda: stage.has_begun("immediate") or stage.is_over(), _PATIENCE)
    task(stage, "rival", exclusive=["r"], queue="b")


# -- cancel ----------------------------------------------------------------------------------------


def three_waiting(stage: Stage) -> None:
    for label in ("granted", "waiting", "last"):
        task(stage, label, exclusive=["r"])


def cancel(label: str) -> None:
    cancel_task(Task.objects.get(args__1=label))


def cancel_two(stage: Stage) -> None:
    cancel("waiting")
    cancel("granted")


def long_and_rival(queue: str, stage: Stage) -> None:
    task(stage, "long", _LONG, exclusive=["r"], queue=queue)
    task(stage, "rival", exclusive=["r"], queue="b")


def cancel_long(stage: Stage) -> None:
    stage.until(lambda: stage.has_begun("long") or stage.is_over(), _PATIENCE)
    cancel("long")


# -- clean-up --------------------------------------------------------------------------------------


def dead_worker(stage: Stage) -> None:
    """A worker that was killed in the middle of everything: tasks that ran, may run again, were
    being canceled, were claimed and not started, and had ended without the release; rivals wait.
    """
    labels: dict[str, dict[str, Any]] = {
        "ran": {},
        "again": AGAIN,
        "canceling": {},
        "claimed": {},
        "ended": {},
    }
    for label, options in labels.items():
        task(stage, label, exclusive=[label], **options)
        task(stage, f"after {label}", exclusive=[label])

    def live_and_die() -> None:
        present = presence.prepare("w", AppStatus.AppType.WORKER)
        presence.register(present)
        for slot, label in enumerate(labels):
            claimed = _claim(replace(present.claimant, slot=f"{slot}.1"))
            found = Task.objects.get(pk=claimed.id)
            if label == "claimed":
                continue
            found.start(present.status, claimed.token)
            begun = evidence.recorded(
                stage.evidence, label, claimed.id, found.exclusive, found.shared
            )
            begun.__enter__()
            if label == "canceling":
                cancel(label)
            if label == "ended":
                begun.__exit__(None, None, None)
                # As the one who dies between commit and release.
                Task.objects.filter(pk=claimed.id).update(state=COMPLETED, app_lock=None)
        os.kill(os.getpid(), signal.SIGKILL)

    dead = stage.fork("dead", live_and_die)
    assert stage.until(dead.has_ended, _PATIENCE)
    assert dead.status() == -signal.SIGKILL, stage.log_file.read_text()


def _claim(claimant: Claimant) -> Claimed:
    """The next that is ready; there is one."""
    locks, version = get_lock_manager(), ""
    lanes: tuple[str, ...] = ()
    while not isinstance(reply := locks.claim(claimant, version, lanes), Claimed):
        assert isinstance(reply, Lanes), "nothing is ready"
        version, lanes = reply.version, tuple(reply.lanes)
    return reply


def long_dead_worker(stage: Stage) -> None:
    dead_worker(stage)
    AppStatus.objects.update(last_heartbeat=DatabaseNow() - timedelta(hours=1))


def end_after_clean_up(stage: Stage) -> None:
    stage.until(lambda: stage.is_over() or not AppStatus.objects.filter(name="w").exists(), 8.0)
    # It may have been stalled or cut: it has the time to go on by itself.
    stage.until(lambda: not AppStatus.objects.filter(name="w").exists(), 3.0)
    if stage.target is not None:
        stage.target.send(signal.SIGTERM)


AFTER_DEATH = {
    "ran": FAILED,
    "again": COMPLETED,
    "canceling": CANCELED,
    "claimed": COMPLETED,
    "ended": COMPLETED,
    **{f"after {label}": COMPLETED for label in ("ran", "again", "canceling", "claimed", "ended")},
}

# --------------------------------------------------------------------------------------------------

WORKER: dict[str, Any] = {"is_worker": True, "endures": (REDIS, POSTGRES)}
EXECUTOR, SUPERVISOR = {"process": "executor", "child": 1}, {"process": "supervisor"}


def _cases() -> list[Case]:
    two = dict.fromkeys(("one", "two"), COMPLETED)
    rivals = dict.fromkeys(("one", "rival"), COMPLETED)
    shared = dict.fromkeys(("reader", "other reader", "writer", "next"), COMPLETED)
    canceled = {"long": CANCELED, "rival": COMPLETED}
    cases = [
        Case(scenario="run", process="dispatcher", run=dispatch_two, ends=two, endures=[REDIS])
    ]
    for role in (EXECUTOR, SUPERVISOR):
        at_work: dict[str, Any] = {**role, **WORKER}
        beside: dict[str, Any] = {**at_work, "run": worker("a"), "bystander": True}
        cases += [
            Case(scenario="run", prepare=dispatch_two, run=worker(), ends=two, **at_work),
            Case(scenario="rival", prepare=with_rival, ends=rivals, **beside),
            Case(scenario="shared", prepare=shared_and_exclusive, ends=shared, **beside),
            Case(
                scenario="cancel-running",
                prepare=partial(long_and_rival, "a"),
                meanwhile=cancel_long,
                ends=canceled,
                **beside,
            ),
        ]
    cases += [
        Case(
            scenario="executor-loss",
            process="settling",
            child=2,
            **WORKER,
            prepare=lose_executor,
            run=worker("a"),
            bystander=True,
            ends={"victim": FAILED, "rival": COMPLETED},
        ),
        Case(
            scenario="immediate",
            process="client",
            run=run_immediately,
            endures=[REDIS],
            meanwhile=rival_of_immediate,
            bystander=True,
            ends={"immediate": COMPLETED, "rival": COMPLETED},
        ),
        Case(
            scenario="immediate-in-transaction",
            process="client",
            run=run_immediately_in_transaction,
            endures=[REDIS],
            meanwhile=rival_of_immediate,
            bystander=True,
            ends={"immediate": COMPLETED, "with it": COMPLETED, "rival": COMPLETED},
        ),
        Case(
            scenario="hold",
            process="client",
            run=hold_a_while,
            endures=[REDIS],
            meanwhile=rival_of_immediate,
            bystander=True,
            ends={"rival": COMPLETED},
        ),
        Case(
            scenario="cancel-waiting",
            process="client",
            prepare=three_waiting,
            run=cancel_two,
            ends={"granted": CANCELED, "waiting": CANCELED, "last": COMPLETED},
        ),
        Case(
            scenario="cancel-running",
            process="client",
            prepare=partial(long_and_rival, "b"),
            run=cancel_long,
            bystander=True,
            ends=canceled,
        ),
        Case(
            scenario="start-up",
            process="supervisor",
            **WORKER,
            prepare=dead_worker,
            run=worker(),
            ends=AFTER_DEATH,
            retried=["again"],
        ),
        Case(
            scenario="clean-up",
            process="command",
            prepare=long_dead_worker,
            run=lambda stage: call_command("cleanup_locks"),
            ends=AFTER_DEATH,
            retried=["again"],
        ),
        Case(
            scenario="clean-up",
            process="worker",
            child=2,
            **WORKER,
            prepare=long_dead_worker,
            run=lambda stage: stage.worker("cleaner", "none"),
            meanwhile=end_after_clean_up,
            ends=AFTER_DEATH,
            retried=["again"],
        ),
    ]
    return cases


CASES = {case.id: case for case in _cases()}
