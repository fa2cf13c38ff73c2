"""What a case is, and what scenes are made of."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_task_locks import dispatch
from django_task_locks.models import Task
from django_task_locks.states import State
from tests.crash.bodies import work
from tests.crash.stage import Stage

PATIENCE = 8.0  # seconds for which a scene waits for a process
AGAIN: dict[str, Any] = {"on_worker_loss": "requeue", "max_attempts": 3}


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
    otherwise  label to other ends that a fault may bring, None: it is not there; the tasks that are
               not named end in any case as they do without a fault
    retried    labels of those that need another attempt even so
    does       what one of its commands has to be, as else it was another that did it
    loses_locks    whether Redis loses them
    strikes_later  whether the commands count only from the moment when `meanwhile` says so
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
    otherwise: Mapping[str, Collection[State | None]] = field(default_factory=dict)
    retried: Collection[str] = ()
    does: str = ""
    loses_locks: bool = False
    strikes_later: bool = False

    @property
    def id(self) -> str:
        return f"{self.scenario}/{self.process}"


def task(stage: Stage, label: str, seconds: float = 0.03, **options: Any) -> Task:
    return dispatch(work, stage.arguments(label, seconds), **options)


def worker(*queues: str, burst: bool = True) -> Callable[[Stage], int]:
    return lambda stage: stage.worker("w", *queues, burst=burst)
