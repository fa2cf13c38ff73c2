"""From what was measured to tables with targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.locks import (
    FIFTY,
    FLOOR,
    HANDOFF,
    ONE,
    OTHERS,
    OURS,
    OWN,
    PLAIN,
    PULPCORE,
    PUSH,
    ROUND_TRIP,
    TEN,
)
from benchmarks.report import Figure, Section, Spread, Target

Samples = Mapping[str, Sequence[float]]

# Most times the floor, by case.
_TO_FLOOR = {
    PLAIN: {
        ONE: 1.5,
        TEN: 1.9,
        FIFTY: 2.6,
    },
    OWN: {
        ONE: 1.0,
        TEN: 1.3,
        FIFTY: 1.9,
    },
}
_TO_PULPCORE = {
    ONE: 0.92,
    TEN: 0.85,
    FIFTY: 0.60,
}
_SERVER_TIME = 2.5
_HANDOFF = 3.0
# Among the same number of foreign locks, the medians of 300 rounds were within 1.01 of each other.
_NOISE = 1.05

_NAMES = {"unix": "unix socket", "tcp": "TCP loopback"}


def pairs(
    measured: Mapping[str, Samples], transport: str, options: Mapping[str, Any]
) -> list[Section]:
    """Against the floor, and ours against each of the others."""
    to_floor, to_others = [], []
    for case, samples in measured.items():
        for name, values in samples.items():
            limit = _TO_FLOOR.get(name, {}).get(case)
            to_floor.append(
                Figure(
                    name,
                    Spread.of(values),
                    Spread.of_ratios(values, samples[FLOOR]),
                    Target(limit) if limit else None,
                    group=case,
                )
            )
        for other in (name for name in samples if name in OTHERS):
            for name in OURS:
                target = Target(1.0, reached=False)
                if other == PULPCORE:
                    target = Target(_TO_PULPCORE[case])
                to_others.append(
                    Figure(
                        f"{name} : {other}",
                        ratio=Spread.of_ratios(samples[name], samples[other]),
                        target=target,
                        group=case,
                    )
                )
    how = f"{options['rounds']} rounds of {options['pairs']} pairs of each, medians"
    sections = [
        Section(
            f"pairs-{transport}",
            f"Uncontended acquire and release, {_NAMES[transport]}: {how}",
            "us",
            "x floor",
            to_floor,
        )
    ]
    if to_others:
        sections.append(
            Section(
                f"others-{transport}",
                f"The same work, ours : theirs, {_NAMES[transport]}",
                "",
                "ratio",
                to_others,
                ["Theirs and ours with the plain client are on the same client as the floor."],
            )
        )
    return sections


def server(measured: Mapping[str, Samples]) -> list[Section]:
    figures = [
        Figure(
            name,
            Spread.of(values),
            target=Target(_SERVER_TIME, of="value") if name in OURS else None,
            group=case,
        )
        for case, samples in measured.items()
        for name, values in samples.items()
    ]
    title = "Time of the server for each of 1,000 resources, acquire and release together"
    return [Section("server", title, "us", "", figures)]


def handoff(measured: Samples, transport: str) -> list[Section]:
    trips, pushes, handoffs = measured[ROUND_TRIP], measured[PUSH], measured[HANDOFF]
    trip, spread = Spread.of(trips), Spread.of(handoffs)
    figures = [
        Figure(ROUND_TRIP, trip),
        Figure(PUSH, Spread.of(pushes), Spread.of_ratios(pushes, trips)),
        Figure(HANDOFF, spread, Spread.of_ratios(handoffs, trips), Target(_HANDOFF)),
    ]
    return [
        Section(
            f"handoff-{transport}",
            "From a release until the next waiter's hold() returns in another process, "
            f"{_NAMES[transport]}: {len(handoffs)} hand-offs",
            "us",
            "round trips",
            figures,
            [f"p99 is {spread.p99:.1f} us, {spread.p99 / trip.median:.2f} round trips"],
        )
    ]


def cleanup(measured: Mapping[str, Any], transport: str) -> list[Section]:
    took: Samples = measured["microseconds"]
    commands: Mapping[str, Mapping[str, int]] = measured["commands"]
    counts = list(took)
    few = counts[0]
    totals = {count: float(sum(commands[count].values())) for count in counts}
    times = [
        Figure(
            _among(count),
            Spread.of(took[count]),
            Spread.of_ratios(took[count], took[few]),
            None if count == few else Target(_NOISE),
        )
        for count in counts
    ]
    work = [
        Figure(
            _among(count),
            Spread.of([totals[count]]),
            Spread.of([totals[count] / totals[few]]),
            None if count == few else Target(1.0),
        )
        for count in counts
    ]
    # Once, where it is the same.
    lists = {
        count: ", ".join(f"{calls} {name}" for name, calls in sorted(commands[count].items()))
        for count in counts
    }
    notes = [f"{_among(count)}: {list}" for count, list in lists.items()]
    if len(set(lists.values())) == 1:
        notes = [lists[few]]
    title = "Clean-up of an owner with 5 locks (close, release, forget)"
    return [
        Section(
            "cleanup",
            f"{title}, {_NAMES[transport]}: {len(took[few])} rounds, medians",
            "us",
            f"x that {_among(few)}",
            times,
            [
                "The others' are held by requests with 20 resources, a quarter of them shared, ten",
                "requests by each owner.",
            ],
        ),
        Section(
            "cleanup-commands",
            f"{title}: commands of the server",
            "commands",
            f"x that {_among(few)}",
            work,
            notes,
        ),
    ]


def _among(count: str) -> str:
    return f"among {int(count):,} locks of others"
