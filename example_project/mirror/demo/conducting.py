"""The order of events: dispatch, watch, kill and restart, watch on, verify."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirror.demo.display import Display, describe_waits
from mirror.demo.scenario import Order, Scenario, dispatch_order
from mirror.demo.verify import (
    Check,
    check_exclusion,
    check_failures,
    check_final_states,
    check_lock_service,
    check_order,
)
from mirror.demo.watching import Event, Running, View, Watcher
from mirror.demo.workers import Fleet, Kill, wait_until_gone
from mirror.models import TaskRun

TICK = 0.1
# Seconds until the demo stops to wait; what has not ended by then is reported.
LIMIT = 70.0
# The kill comes when this part of the tasks has ended; from the second part on it takes any body.
KILL_FROM = 0.4
KILL_BY = 0.6
# A sync that began this many seconds ago is far from its end.
YOUNG = 0.3


@dataclass(slots=True)
class Conductor:
    """Runs the scenario once."""

    scenario: Scenario
    fleet: Fleet
    display: Display
    watcher: Watcher
    victim: str
    kill: Kill | None = None
    number: int = 0

    def run(self) -> None:
        """Raises WorkerEnded if a worker ends by itself."""
        until = time.monotonic() + LIMIT
        self.fleet.start()
        self._tell("note", f"{' and '.join(self.fleet.workers)} start, two executors each")
        self._dispatch(self.scenario.opening)
        self._watch(until, lambda view: len(view.running) >= 2)
        self._dispatch(self.scenario.rest)
        self._tell("note", describe_waits(self.watcher.look()))
        self._watch(until, self._kill_if_due)
        self._watch(until, lambda view: self.watcher.all_final)

    def checks(self, keys: Sequence[str]) -> list[Check]:
        """Takes the names of all keys of the lock service, without the prefix."""
        jobs = list(self.watcher.jobs.values())
        outcomes = self.watcher.outcomes()
        bodies = self.watcher.bodies(self.kill)
        return [
            check_final_states(jobs, outcomes),
            check_failures(jobs, outcomes, bodies, self.kill),
            check_exclusion(bodies),
            check_order(bodies),
            check_lock_service(keys),
        ]

    def _dispatch(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self.number += 1
            job = dispatch_order(order, self.number)
            self.watcher.add(job)
        first = self.number - len(orders) + 1
        self._tell("note", f"tasks #{first} to #{self.number} dispatched")

    def _watch(self, until: float, is_enough: Callable[[View], bool]) -> None:
        while time.monotonic() < until and not self.watcher.all_final:
            self.fleet.check()
            view = self.watcher.look(queues=self.display.queues)
            self.display.show(view)
            if is_enough(view):
                return
            time.sleep(TICK)

    def _kill_if_due(self, view: View) -> bool:
        """Kills the victim once it is amid its tasks, and starts it again under the same name."""
        if view.final < KILL_FROM * view.total:
            return False
        amid = [running for running in view.running if running.worker == self.victim]
        young = [running for running in amid if _has_far_to_go(running)]
        in_mid_body = len(young) >= 2 or (young and view.final >= KILL_BY * view.total)
        if not in_mid_body:
            return False
        self._kill(amid)
        return True

    def _kill(self, amid: Sequence[Running]) -> None:
        worker = self.fleet.workers[self.victim]
        incarnation = amid[0].incarnation
        runs = TaskRun.objects.filter(incarnation=incarnation)
        pids = set(runs.values_list("pid", flat=True))
        pid = worker.pid
        at = worker.kill()
        worker.start()
        gone_at = wait_until_gone(pids, timeout=5)
        self.kill = Kill(
            worker=self.victim,
            pid=pid,
            incarnation=incarnation,
            task_ids=frozenset(running.job.task_id for running in amid),
            at=at,
            gone_at=gone_at,
        )
        tasks = " and ".join(str(running.job) for running in amid)
        self._tell("killed", f"{self.victim} (pid {pid}) with SIGKILL, amid {tasks}")
        after = f"{(gone_at - at) / 1e6:.0f} ms" if gone_at else "never within 5 s"
        self._tell("restarted", f"{self.victim} (pid {worker.pid}); old executors gone: {after}")

    def _tell(self, kind: str, text: str) -> None:
        self.display.tell(Event(kind=kind, text=text))


def _has_far_to_go(running: Running) -> bool:
    is_young = running.seconds is not None and running.seconds < YOUNG
    return is_young and running.job.label.startswith("sync")
