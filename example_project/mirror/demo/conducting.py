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
from mirror.demo.watching import Event, Kind, Running, View, Watcher
from mirror.demo.workers import Fleet, Kill, wait_until_gone
from mirror.models import TaskRun

TICK = 0.1
# Seconds until the demo stops to wait; what has not ended by then is reported.
LIMIT = 70.0
# The kill comes when this part of the tasks has ended and the worker is amid two syncs; from the
# second part on, amid one.
KILL_FROM = 0.4
KILL_BY = 0.5
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
    number: int = 0

    def run(self) -> None:
        """Raises WorkerEnded if a worker ends by itself."""
        until = time.monotonic() + LIMIT
        self.fleet.start()
        for worker in self.fleet.workers.values():
            told = f"{worker.name} starts, with {worker.concurrency} executors (pid {worker.pid})"
            self._tell("note", told)
        self._dispatch(self.scenario.opening)
        self._watch(until, lambda view: len(view.running) >= 2)
        self._dispatch(self.scenario.rest)
        self._tell_who_waits()
        self._watch(until, self._kill_if_due)
        self._watch(until, lambda view: self.watcher.all_final)

    def checks(self, keys: Sequence[str], owners: Sequence[str]) -> list[Check]:
        """Takes what `check_lock_service` takes."""
        jobs = list(self.watcher.jobs.values())
        outcomes = self.watcher.outcomes()
        bodies = self.watcher.bodies()
        return [
            check_final_states(jobs, outcomes),
            check_failures(jobs, outcomes, bodies, self.watcher.kill),
            check_exclusion(bodies),
            check_order(bodies),
            check_lock_service(keys, owners),
        ]

    def _dispatch(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self.number += 1
            job = dispatch_order(order, self.number)
            self.watcher.add(job)
        first = self.number - len(orders) + 1
        self._tell("note", f"tasks #{first} to #{self.number} dispatched")

    def _tell_who_waits(self) -> None:
        view = self.watcher.look()
        self.display.show(view)
        for line in describe_waits(view):
            self._tell("note", line)

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
        if len(young) < (2 if view.final < KILL_BY * view.total else 1):
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
        self.watcher.kill = Kill(
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

    def _tell(self, kind: Kind, text: str) -> None:
        self.display.tell(Event(kind=kind, text=text))


def _has_far_to_go(running: Running) -> bool:
    is_young = running.seconds is not None and running.seconds < YOUNG
    return is_young and running.job.label.startswith("sync")
