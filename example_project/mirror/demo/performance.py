"""One performance from an empty stage to the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror.demo.catalog import build_catalog, describe_catalog
from mirror.demo.conducting import Conductor
from mirror.demo.display import Display, PlainDisplay
from mirror.demo.premises import clear, ended_owners, remaining_keys, sole_use
from mirror.demo.scenario import build_scenario
from mirror.demo.verify import Check
from mirror.demo.watching import Watcher
from mirror.demo.workers import Fleet

WORKERS = ("mirror-1", "mirror-2")
VICTIM = WORKERS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    manage: Path
    var: Path
    write: Callable[[str], object]
    is_terminal: bool

    def run(self) -> list[Check]:
        """Raises Occupied, TooFewDistributions or WorkerEnded; ends all that it started."""
        with sole_use(self.var / "demo.lock"):
            self.write("Starts with an empty database and an empty lock service.")
            clear()
            catalog = build_catalog()
            scenario = build_scenario(catalog)
            self.write(f"Mirrors {describe_catalog(catalog)}.")
            fleet = Fleet(WORKERS, manage=self.manage, logs=self.var / "log")
            with fleet, self._display(fleet) as display:
                conductor = Conductor(
                    scenario=scenario,
                    fleet=fleet,
                    display=display,
                    watcher=Watcher(scenario.titles),
                    victim=VICTIM,
                )
                conductor.run()
            return conductor.checks(remaining_keys(), ended_owners())

    def _display(self, fleet: Fleet) -> Display:
        plain = PlainDisplay(self.write)
        if not self.is_terminal:
            return plain
        try:
            from rich.console import Console

            from mirror.demo.live import LiveDisplay
        except ImportError:
            self.write("Install rich for a live view.")
            return plain
        console = Console()
        if console.is_dumb_terminal:
            return plain
        workers = {name: worker.concurrency for name, worker in fleet.workers.items()}
        return LiveDisplay(console, workers)
