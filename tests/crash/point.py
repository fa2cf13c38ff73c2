"""One point: the scene, the fault, a fresh worker, quiet, and what is then wrong."""

import signal
import time
from dataclasses import dataclass, field
from zlib import crc32

from django_task_locks.events import EVENTS
from tests.crash import checks
from tests.crash.case import Case
from tests.crash.cases import CASES
from tests.crash.stage import Process, Stage
from tests.support.proxy import Fault, Plan

_ENDS_WITHIN = 12.0
_QUIET_WITHIN = 20.0
_REAL_ONE_IN = 25
_LOSSES = ("worker.fenced", "presence.lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """at 0 strikes nowhere: the commands are counted, and everything ends as it should."""

    case: str
    fault: Fault
    at: int

    def __str__(self) -> str:
        return f"--scenario {self.case} --fault {self.fault} --at {self.at}"

    @property
    def kills(self) -> bool:
        return self.fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER)

    @property
    def is_after_restart(self) -> bool:
        """Whether the fresh worker has the name of the dead one; half of them have."""
        return (self.at + list(Fault).index(self.fault)) % 2 == 0

    @property
    def is_by_command(self) -> bool:
        """Whether the fresh worker is a new `manage.py task_worker`; some are."""
        return crc32(str(self).encode()) % _REAL_ONE_IN == 0


@dataclass(slots=True, kw_only=True)
class Result:
    """commands   what the process under test has sent, in order, up to the report
    struck     whether it came to the command of the fault
    lost_heartbeat  whether a process did, so that the ends of its tasks were not compared
    """

    commands: list[str] = field(default_factory=list)
    struck: bool = False
    lost_heartbeat: bool = False
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    log: str = ""


def take(point: Point, stage: Stage) -> Result:
    """Leaves the stage to the caller, who clears it."""
    began = time.monotonic()
    result = Result()
    case = CASES[point.case]
    workers = []
    if case.bystander:
        workers.append(stage.start_worker("bystander", "b", is_slow=case.loses_locks))
    case.prepare(stage)
    target = stage.aim(
        lambda: case.run(stage),
        Plan(pid=0, child=case.child, at=point.at, fault=point.fault),
        is_later=case.strikes_later,
    )
    case.meanwhile(stage)
    # A worker that goes on may take its tasks; anybody else is to end what it was at.
    goes_on = not point.kills and not case.is_worker
    stage.until(target.has_ended if goes_on else stage.is_over, _ENDS_WITHIN)
    workers.append(_fresh_worker(point, stage))
    if not stage.until(target.has_ended, _ENDS_WITHIN):
        result.problems.append(f"the {case.process} under test does not end by itself")
    pids = [process.pid for process in workers]
    if not stage.until(lambda: not checks.what_is_unquiet(pids), _QUIET_WITHIN, step=0.08):
        result.problems.append(f"not quiet after {_QUIET_WITHIN:g} s")
        result.problems += checks.what_is_unquiet(pids)
    result.problems += _ended(workers, stage)
    count = stage.count()
    result.commands = count.commands
    result.struck = count.struck_at is not None
    result.problems += checks.problems(
        stage.stays(), stage.locks(), may_lose_locks=case.loses_locks
    )
    log = stage.log_file.read_text(errors="replace")
    # Its tasks are lost with it, as they should be; a machine that is too busy does it, too.
    result.lost_heartbeat = any(EVENTS[event].wording in log for event in _LOSSES)
    if not result.lost_heartbeat:
        result.problems += _surprises(point, case, result.commands, log)
    if result.problems:
        result.log = log
    result.seconds = time.monotonic() - began
    return result


def _surprises(point: Point, case: Case, commands: list[str], log: str) -> list[str]:
    is_as_ever = _must_end_as_ever(point, case, commands)
    accepted = {
        label: {state} if is_as_ever else {state, *case.otherwise.get(label, ())}
        for label, state in case.ends.items()
    }
    found = checks.surprises(accepted, case.retried if is_as_ever else case.ends)
    if EVENTS["hold.lost"].wording in log:
        found.append("a hold was lost")
    return found


def _must_end_as_ever(point: Point, case: Case, commands: list[str]) -> bool:
    """Without a fault, and where a connection is lost or stalls that the process can do without."""
    if point.at == 0:
        return True
    return not point.kills and all(
        command.startswith(tuple(case.endures)) for command in commands[point.at - 1 : point.at]
    )


def _fresh_worker(point: Point, stage: Stage) -> Process:
    name = "w" if point.is_after_restart else "fresh"
    return stage.start_command(name) if point.is_by_command else stage.start_worker(name)


def _ended(workers: list[Process], stage: Stage) -> list[str]:
    for worker in workers:
        worker.send(signal.SIGTERM)
    found = []
    for worker in workers:
        if not stage.until(worker.has_ended, _ENDS_WITHIN):
            found.append(f"worker {worker.name} does not end on SIGTERM")
        elif worker.status() != 0:
            found.append(f"worker {worker.name} ended with status {worker.status()}")
    return found
