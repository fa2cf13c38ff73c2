"""One point: the scene, the fault, a fresh worker, quiet, and what is then wrong."""

import signal
import time
from dataclasses import dataclass, field
from zlib import crc32

from tests.crash import checks
from tests.crash.cases import CASES, Case
from tests.crash.stage import Process, Stage
from tests.support.proxy import Fault

_ENDS_WITHIN = 12.0
_QUIET_WITHIN = 20.0
_REAL_ONE_IN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """at 0 strikes nowhere: the commands are counted, and everything ends as it should."""

    case: str
    fault: Fault
    at: int

    def __str__(self) -> str:
        return f"--scenario {self.case} --fault {self.fault} --at {self.at}"

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
    """

    commands: list[str] = field(default_factory=list)
    struck: bool = False
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    log: str = ""


def take(point: Point, stage: Stage) -> Result:
    """Leaves the stage to the caller, who clears it."""
    began = time.monotonic()
    result = Result()
    case = CASES[point.case]
    workers = [stage.start_worker("bystander", "b")] if case.bystander else []
    case.prepare(stage)
    target = stage.aim(lambda: case.run(stage), case.child, point.at, point.fault)
    case.meanwhile(stage)
    stage.until(stage.is_over, _ENDS_WITHIN)
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
    result.problems += checks.problems(stage.stays())
    log = stage.log_file.read_text(errors="replace")
    if _must_end_as_ever(point, case, result.commands):
        result.problems += checks.surprises(case.ends, case.retried, log)
    if result.problems:
        result.log = log
    result.seconds = time.monotonic() - began
    return result


def _must_end_as_ever(point: Point, case: Case, commands: list[str]) -> bool:
    """Without a fault, and where a connection is lost or stalls that the process can do without."""
    if point.at == 0:
        return True
    if point.fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
        return False
    return all(
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
