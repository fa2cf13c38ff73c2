"""The cases: a scene, the process of it that is under test, and how it ends.

Queue "a" is the process's under test; "b" that of a bystander, a live worker that takes over what
is released too early, and that cleans up. `losses` has those in which Redis loses the locks.
"""

import signal
from functools import partial
from typing import Any

from django.core.management import call_command
from django.db import transaction

from django_task_locks import cancel_task, dispatch, hold
from django_task_locks.models import AppStatus, Task
from django_task_locks.states import State
from tests.crash import evidence, losses
from tests.crash.bodies import die
from tests.crash.case import AGAIN, PATIENCE, Case, task, worker
from tests.crash.death import AFTER_DEATH, dead_worker, long_dead_worker
from tests.crash.stage import Stage
from tests.support.proxy import POSTGRES, REDIS

COMPLETED, FAILED, CANCELED = State.COMPLETED, State.FAILED, State.CANCELED
_LONG = 1.5
_WHILE = 0.25


# -- dispatch and run to the end -------------------------------------------------------------------


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
        hold(exclusive=["r"], timeout=5) as held,
        evidence.recorded(stage.evidence, "immediate", held.id, ["r"], []) as stamp,
    ):
        stamp.go_on(_WHILE)


def rival_of_immediate(stage: Stage) -> None:
    """Not before: a rival that has what an immediate task needs is an answer, and no fault."""
    stage.until(lambda: stage.has_begun("immediate") or stage.has_target_ended(), PATIENCE)
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
    stage.until(lambda: stage.has_begun("long") or stage.is_over(), PATIENCE)
    cancel("long")


# -- clean-up --------------------------------------------------------------------------------------


def end_after_clean_up(stage: Stage) -> None:
    stage.until(lambda: stage.is_over() or not AppStatus.objects.filter(name="w").exists(), 8.0)
    # It may have been stalled or cut: it has the time to go on by itself.
    stage.until(lambda: not AppStatus.objects.filter(name="w").exists(), 3.0)
    if stage.target is not None:
        stage.target.send(signal.SIGTERM)


# --------------------------------------------------------------------------------------------------

WORKER: dict[str, Any] = {"is_worker": True, "endures": (REDIS, POSTGRES)}
EXECUTOR, SUPERVISOR = {"process": "executor", "child": 1}, {"process": "supervisor"}


def _cases() -> list[Case]:
    two = dict.fromkeys(("one", "two"), COMPLETED)
    rivals = dict.fromkeys(("one", "rival"), COMPLETED)
    shared = dict.fromkeys(("reader", "other reader", "writer", "next"), COMPLETED)
    canceled = {"long": CANCELED, "rival": COMPLETED}
    cases = [
        Case(
            scenario="run",
            process="dispatcher",
            run=dispatch_two,
            endures=[REDIS],
            ends=two,
            otherwise={"one": [None], "two": [None]},
        )
    ]
    for role in (EXECUTOR, SUPERVISOR):
        at_work: dict[str, Any] = {**role, **WORKER}
        beside: dict[str, Any] = {**at_work, "run": worker("a"), "bystander": True}
        cases += [
            Case(
                scenario="run",
                prepare=dispatch_two,
                run=worker(),
                ends=two,
                otherwise={"two": [FAILED]},
                **at_work,
            ),
            Case(
                scenario="rival",
                prepare=with_rival,
                ends=rivals,
                otherwise={"one": [FAILED]},
                **beside,
            ),
            Case(
                scenario="shared",
                prepare=shared_and_exclusive,
                ends=shared,
                otherwise={"next": [FAILED]},
                **beside,
            ),
            Case(
                scenario="cancel-running",
                prepare=partial(long_and_rival, "a"),
                meanwhile=cancel_long,
                ends=canceled,
                otherwise={"long": [FAILED]},
                **beside,
            ),
        ]
    client: dict[str, Any] = {"process": "client", "endures": [REDIS]}
    beside = {**client, "bystander": True}
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
            run=run_immediately,
            meanwhile=rival_of_immediate,
            ends={"immediate": COMPLETED, "rival": COMPLETED},
            otherwise={"immediate": [FAILED, None]},
            **beside,
        ),
        Case(
            scenario="immediate-in-transaction",
            run=run_immediately_in_transaction,
            meanwhile=rival_of_immediate,
            ends={"immediate": COMPLETED, "with it": COMPLETED, "rival": COMPLETED},
            otherwise={"immediate": [None], "with it": [None]},
            **beside,
        ),
        Case(
            scenario="hold",
            run=hold_a_while,
            meanwhile=rival_of_immediate,
            ends={"rival": COMPLETED},
            **beside,
        ),
        Case(
            scenario="cancel-waiting",
            prepare=three_waiting,
            run=cancel_two,
            ends={"granted": CANCELED, "waiting": CANCELED, "last": COMPLETED},
            otherwise={"granted": [COMPLETED], "waiting": [COMPLETED]},
            **client,
        ),
        Case(
            scenario="cancel-running",
            prepare=partial(long_and_rival, "b"),
            run=cancel_long,
            ends=canceled,
            otherwise={"long": [COMPLETED]},
            **beside,
        ),
        Case(
            scenario="start-up",
            process="supervisor",
            **WORKER,
            prepare=dead_worker,
            run=worker(),
            ends=AFTER_DEATH,
            # They may be running here when this one is killed.
            otherwise=dict.fromkeys(AFTER_DEATH.keys() - {"again", "canceling"}, (FAILED,)),
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
    return cases + losses.cases()


CASES = {case.id: case for case in _cases()}
