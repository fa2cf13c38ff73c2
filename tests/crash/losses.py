"""Redis loses everything while tasks run and wait, and holds are held; the process under test is
the one that rebuilds the locks, or one that restores its own.
"""

from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.test import override_settings

from django_task_locks import dispatch, epochs, hold, recovery
from django_task_locks.connections import get_lock_manager
from django_task_locks.messages import send_look_at_epoch
from django_task_locks.models import AppStatus, LockEpoch
from django_task_locks.states import State
from tests.crash import evidence
from tests.crash.bodies import work_and_hold, work_through_loss
from tests.crash.case import PATIENCE, Case, task, worker
from tests.crash.death import AFTER_DEATH, long_dead_worker
from tests.crash.stage import SLOW, Stage
from tests.support.proxy import POSTGRES, REDIS

COMPLETED, FAILED = State.COMPLETED, State.FAILED
_LONG = 1.2
_WHILE = 0.7


# -- who is there ----------------------------------------------------------------------------------


def hold_until_loss(stage: Stage) -> None:
    """Holds "h", for a while after the loss too."""
    with (
        hold(exclusive="h", timeout=5) as held,
        evidence.recorded(stage.evidence, "holder", held.id, ["h"], []) as stamp,
    ):
        stamp.go_on(PATIENCE, until=_sign(stage))
        stamp.go_on(_WHILE)


def a_holder(stage: Stage) -> None:
    """A process that holds "h"; a task waits for that."""

    def run() -> None:
        override_settings(TASK_LOCKS=settings.TASK_LOCKS | SLOW).enable()
        hold_until_loss(stage)

    stage.fork("holder", run)
    assert stage.until(lambda: stage.has_begun("holder"), PATIENCE)
    task(stage, "after holder", exclusive="h", queue="b")


def task_and_holder(stage: Stage) -> None:
    """The live worker runs a task, for which another one waits."""
    task(stage, "long", _LONG, exclusive="r", queue="b")
    task(stage, "rival", exclusive="r", queue="b")
    a_holder(stage)
    assert stage.until(lambda: stage.has_begun("long"), PATIENCE)


def task_that_holds(stage: Stage) -> None:
    """The worker under test will run a task that holds something besides; others wait for both."""
    arguments = stage.arguments("mine", _LONG, "n")
    dispatch(work_and_hold, arguments, exclusive="r", queue="a")
    task(stage, "rival", exclusive="r", queue="b")
    a_holder(stage)
    # The child that rebuilds is the first that its worker has besides the executor.
    assert get_lock_manager().lead("cleanup", "nobody", PATIENCE)


def through_loss(stage: Stage) -> None:
    """Holds, and runs an immediate task in an open transaction."""
    with (
        hold(exclusive="h", timeout=5) as held,
        evidence.recorded(stage.evidence, "holder", held.id, ["h"], []) as stamp,
        transaction.atomic(),
    ):
        arguments = stage.arguments("immediate", _LONG, str(_sign(stage)))
        dispatch(work_through_loss, arguments, exclusive="i", immediate=True, deferred=False)
        stamp.go_on(0.01)


def rivals_of_both(stage: Stage) -> None:
    stage.apart(lambda: task(stage, "after holder", exclusive="h", queue="b"))
    stage.apart(lambda: task(stage, "after immediate", exclusive="i", queue="b"))


# -- the loss --------------------------------------------------------------------------------------


def lose(stage: Stage) -> None:
    stage.lose_locks()
    _sign(stage).touch()


def lose_and_clean_up(stage: Stage) -> None:
    lose(stage)
    recovery.clean_up(second_look=True)  # as the command does, which others overtake


def lose_and_start(stage: Stage) -> int:
    lose(stage)
    return stage.worker("w", burst=True)


def lose_while_it_holds(stage: Stage, *, later: bool = False) -> None:
    """The worker under test is the first to hear of it."""
    stage.until(lambda: stage.has_begun("hold of mine") or stage.is_over(), PATIENCE)
    if later:
        stage.strike_from_now()
    lose(stage)
    for status in AppStatus.objects.filter(name="w"):
        send_look_at_epoch(get_lock_manager(), status.owner)


def lose_under_immediate(stage: Stage) -> None:
    stage.until(lambda: stage.has_begun("immediate") or stage.has_target_ended(), PATIENCE)
    rivals_of_both(stage)
    stage.strike_from_now()
    lose(stage)


def _sign(stage: Stage) -> Path:
    return stage.directory / "lost"


def never_had_locks(stage: Stage) -> None:
    """A deployment before its first epoch, in which something was dispatched already."""
    stage.lose_locks()
    LockEpoch.objects.all().delete()
    epochs.forget()
    stage.apart(lambda: task(stage, "early", exclusive="e", queue="b"))


# --------------------------------------------------------------------------------------------------


def cases() -> list[Case]:
    common: dict[str, Any] = {"scenario": "rebuild", "loses_locks": True}
    at_work: dict[str, Any] = {
        **common,
        "is_worker": True,
        "endures": (REDIS, POSTGRES),
        "prepare": task_that_holds,
        "run": worker("a"),
        "ends": dict.fromkeys(("mine", "rival", "after holder"), COMPLETED),
    }
    return [
        Case(
            **common,
            process="command",
            does="begin_rebuild",
            bystander=True,
            prepare=task_and_holder,
            run=lose_and_clean_up,
            ends=dict.fromkeys(("long", "rival", "after holder"), COMPLETED),
        ),
        Case(
            **at_work,
            process="worker",
            child=2,
            does="begin_rebuild",
            meanwhile=lose_while_it_holds,
        ),
        Case(
            **at_work,
            process="supervisor",
            does="restore",
            strikes_later=True,
            meanwhile=partial(lose_while_it_holds, later=True),
            otherwise={"mine": [FAILED]},
        ),
        Case(
            **at_work,
            process="executor",
            child=1,
            does="restore",
            meanwhile=lose_while_it_holds,
            otherwise={"mine": [FAILED]},
        ),
        Case(
            **common,
            process="client",
            does="begin_rebuild",
            strikes_later=True,
            run=through_loss,
            meanwhile=lose_under_immediate,
            endures=[REDIS],
            ends=dict.fromkeys(("immediate", "after holder", "after immediate"), COMPLETED),
            otherwise={"immediate": [None]},
        ),
        Case(
            **common,
            process="starting",
            does="begin_rebuild",
            is_worker=True,
            endures=(REDIS, POSTGRES),
            prepare=long_dead_worker,
            run=lose_and_start,
            ends=AFTER_DEATH,
            # They may be running here when this one is killed.
            otherwise=dict.fromkeys(AFTER_DEATH.keys() - {"again", "canceling"}, (FAILED,)),
            retried=["again"],
        ),
        Case(
            **common,
            process="first",
            does="begin_rebuild",
            prepare=never_had_locks,
            run=hold_until_loss,
            meanwhile=lambda stage: _sign(stage).touch(),
            ends={"early": COMPLETED},
        ),
    ]
