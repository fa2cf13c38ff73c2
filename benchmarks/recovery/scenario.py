"""Seconds until the next task on a killed worker's resource begins, by case and peer."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.client import ClientFailed
from benchmarks.peers.catalog import OURS
from benchmarks.peers.peer import Locks, Peer
from benchmarks.recovery import table
from benchmarks.recovery.cases import Case
from benchmarks.recovery.trial import Outcome, trial
from benchmarks.report import Figure, Section, Spread, Target
from benchmarks.scenarios import common
from benchmarks.stage import PeerFailed, Run, Stage

HELP = "a worker is killed in mid-task: seconds until the next task on its resource begins"
RUNS = 1
LEAST = Locks.ONE
_POLL = 0.01
_AT_ONCE = 2.0  # after its successor was started
_AFTER_TTL = 5.0
# Those that wait longest first, as they wait together.
_ORDER = (Case.OTHER_RUNS, Case.OTHER_NAME, Case.SAME_NAME_LATER, Case.SAME_NAME, Case.ORDINARY)


@dataclass(slots=True)
class Cell:
    """What came of one peer in one case."""

    outcomes: list[Outcome] = field(default_factory=list)
    failure: str = ""


Cells = dict[tuple[Case, str], Cell]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ttl", type=float, default=30.0, help="seconds, of all who have one")
    parser.add_argument(
        "--give-up", type=float, help="seconds after the kill (default: three times the TTL)"
    )


def check(arguments: argparse.Namespace) -> None:
    arguments.give_up = arguments.give_up or 3 * arguments.ttl
    common.check_positive(arguments, "runs", "ttl", "give_up")


def measure(
    stage: Stage, peers: Sequence[Peer], arguments: argparse.Namespace
) -> Sequence[Section]:
    cells: Cells = {
        (case, peer.name): Cell(failure=stage.absent.get(peer.name, ""))
        for case in Case
        for peer in peers
    }
    for number in range(arguments.runs):
        _round(stage, peers, cells, arguments.ttl, arguments.give_up, number + 1)
    return tables(cells, [peer.name for peer in peers], arguments)


def appendix(sections: Sequence[Section]) -> str:
    return table.markdown([section.as_dict() for section in sections])


def _round(
    stage: Stage, peers: Sequence[Peer], cells: Cells, ttl: float, give_up: float, number: int
) -> None:
    """Every peer in every case. They are begun one after the other; what waits, waits together."""
    with ExitStack() as runs:
        under_way: list[_Trial] = []
        for case in _ORDER:
            for peer in stage.present(peers):
                print(f"recovery, round {number}: {peer.name}, {case} ...", file=sys.stderr)
                cell = cells[case, peer.name]
                run = runs.enter_context(stage.run(peer, ttl=ttl))
                outcome = Outcome()
                steps = trial(run, case, ttl, give_up, outcome)
                under_way.append(_Trial(run, steps, cell, outcome))
                under_way[-1].step()
                under_way = [one for one in under_way if one.step()]
        while under_way:
            under_way = [one for one in under_way if one.step()]
            time.sleep(_POLL)


@dataclass(frozen=True, slots=True)
class _Trial:
    run: Run
    steps: Iterator[bool]
    cell: Cell
    outcome: Outcome

    def step(self) -> bool:
        """A step, or as many as need that nobody else does anything; whether there are more."""
        try:
            while next(self.steps):
                time.sleep(_POLL)
        except StopIteration:
            self.cell.outcomes.append(self.outcome)
        except (PeerFailed, ClientFailed) as error:
            print(f"{error}\n{error.log}", file=sys.stderr, flush=True)
            self.cell.failure = str(error)
        else:
            return True
        self.run.close()
        return False


def tables(cells: Cells, names: Sequence[str], arguments: argparse.Namespace) -> list[Section]:
    def figure(case: Case, name: str, measure: str, target: Target | None) -> Figure:
        cell = cells[case, name]
        values = [getattr(outcome, measure) for outcome in cell.outcomes]
        found = [value for value in values if value is not None]
        remark = cell.failure
        if missing := len(values) - len(found):
            remark = f"not within {arguments.give_up:g} s"
            remark += f" ({missing} of {len(values)})" if found else ""
        return Figure(
            name, Spread.of(found) if found else None, None, target, group=case, remark=remark
        )

    at_once, after = Target(_AT_ONCE, of="value"), Target(arguments.ttl + _AFTER_TTL, of="value")
    # The first two are about a successor of the same name, which need not wait for the TTL.
    same = (Case.SAME_NAME, Case.SAME_NAME_LATER)
    return [
        Section(
            "recovery",
            f"From the kill until the next task begins, TTL {arguments.ttl:g} s",
            "s",
            "",
            [
                figure(
                    case,
                    name,
                    "since_kill",
                    after if name == OURS and case not in same else None,
                )
                for case in Case
                # After the TTL the time is that of its start and a wait for its turn.
                if case not in (Case.ORDINARY, Case.SAME_NAME_LATER)
                for name in names
            ],
            [
                "All processes of the worker are killed at once, as when its container ends.",
                "A lock that expires counts its time from its taking, shortly before the kill.",
            ],
            spread="min - max",
        ),
        Section(
            "recovery-start",
            "From the start of the successor until the next task begins",
            "s",
            "",
            [
                figure(
                    case, name, "since_start", at_once if name == OURS and case in same else None
                )
                for case in Case
                if case.has_successor or case == Case.ORDINARY
                for name in names
            ],
            ["It has a new interpreter and the imports in it, which the first case shows alone."],
            spread="min - max",
        ),
    ]
