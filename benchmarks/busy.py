"""How busy the machine was while something was measured, and with what else."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Shares of all CPUs, from 0 to 1.

    own    the servers, the workers and who measures
    other  everybody else on this machine
    steal  what the host of a virtual machine gave to others
    """

    own: float
    other: float
    steal: float


class CpuWatch:
    """Counts from its making on; `use` may be asked while what is measured still runs."""

    def __init__(self) -> None:
        self._started_at = monotonic()
        self._busy, self._steal = _machine()
        self._own = tree_seconds()

    def use(self) -> CpuUse:
        busy, steal = _machine()
        available = (monotonic() - self._started_at) * (os.cpu_count() or 1)
        own = tree_seconds() - self._own
        other = max(0.0, busy - self._busy - own)
        return CpuUse(own / available, other / available, (steal - self._steal) / available)


def _machine() -> tuple[float, float]:
    """CPU seconds since its start: work, and stolen time. Zeros where there is no /proc."""
    if not _STAT.exists():
        return 0.0, 0.0
    fields = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, steal / ticks


def tree_seconds() -> float:
    """CPU seconds of this process and all its descendants, also of those that have ended."""
    me = psutil.Process()
    return cpu_seconds([me, *me.children(recursive=True)])


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """With their children that have ended and were reaped."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
