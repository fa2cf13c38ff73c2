"""When an executor is worn out and a fresh one takes its place."""

import os
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass

_MB = 1024 * 1024


@dataclass(slots=True)
class Wear:
    """What one executor has done; either limit may be None.

    max_tasks   tasks that it may run
    max_memory  MB of resident memory that it may have after a task
    """

    max_tasks: int | None = None
    max_memory: float | None = None
    tasks: int = 0

    def reason(self) -> str:
        """Why it is to end; empty while it may go on."""
        if self.max_tasks is not None and self.tasks >= self.max_tasks:
            return f"{self.tasks} tasks"
        if self.max_memory is not None and (size := resident_memory()) > self.max_memory:
            return f"{size:.0f} MB of memory"
        return ""


def resident_memory() -> float:
    """This process's memory in MB: on Linux what it has now, elsewhere the most that it had."""
    with suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / _MB if sys.platform == "darwin" else most / 1024
