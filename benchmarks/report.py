"""What a benchmark found, as a table in text and as JSON."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Spread:
    """Many values in short: low and high are the 10th and the 90th percentile."""

    median: float
    low: float
    high: float
    p99: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        # Of a single one there would be no quantiles.
        many = values if len(values) > 1 else [*values, *values]
        cuts = statistics.quantiles(many, n=100, method="inclusive")
        return cls(
            median=statistics.median(values),
            low=cuts[9],
            high=cuts[89],
            p99=cuts[98],
            minimum=min(values),
            maximum=max(values),
            count=len(values),
        )

    @classmethod
    def of_ratios(cls, values: Sequence[float], others: Sequence[float]) -> "Spread":
        """Of the ratios within each round."""
        return cls.of([value / other for value, other in zip(values, others, strict=True)])


@dataclass(frozen=True, slots=True)
class Target:
    """A limit of a figure's median, or of the median of its ratio: the most, or the least."""

    limit: float
    of: Literal["value", "ratio"] = "ratio"
    reached: bool = True  # whether the limit itself will do
    is_least: bool = False

    @property
    def text(self) -> str:
        sign = ">" if self.is_least else "<"
        return f"{sign}{'=' if self.reached else ''} {self.limit:.2f}"

    def is_met(self, value: float) -> bool:
        if value == self.limit:
            return self.reached
        return (value > self.limit) == self.is_least


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table. Figures of the same group stand together under its name."""

    what: str
    value: Spread | None = None
    ratio: Spread | None = None
    target: Target | None = None
    group: str = ""
    remark: str = ""  # behind the line

    @property
    def verdict(self) -> str:
        measured = self.value if self.target and self.target.of == "value" else self.ratio
        if self.target is None or measured is None:
            return ""
        return "ok" if self.target.is_met(measured.median) else "MISSED"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Section:
    """A table.

    key    names it in JSON
    unit   of the values
    ratio  what the ratios are to; "" if there are none
    spread which range stands beside a median: of few values all are in it
    """

    key: str
    title: str
    unit: str
    ratio: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    spread: Literal["p10 - p90", "min - max"] = "p10 - p90"

    def lines(self) -> list[str]:
        *columns, remarks = self._columns()
        columns = [*(column for column in columns if any(column[1:])), remarks]
        widths = [max(map(len, column)) for column in columns]
        lines = [self.title, "-" * len(self.title)]
        group = ""
        for figure, *row in zip([None, *self.figures], *columns, strict=True):
            if figure is not None and figure.group != group:
                group = figure.group
                lines.append(group)
            first, *rest, remark = row
            cells = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:-1]), remark]
            lines.append("  ".join(cells).rstrip())
        return [*lines, *self.notes]

    def _columns(self) -> list[list[str]]:
        """Each with its head first."""
        figures = self.figures
        return [
            ["", *(f"{'  ' if figure.group else ''}{figure.what}" for figure in figures)],
            *self._spreads(self.unit, [figure.value for figure in figures], places=1),
            *self._spreads(self.ratio, [figure.ratio for figure in figures], places=2),
            ["target", *(figure.target.text if figure.target else "" for figure in figures)],
            ["", *(figure.verdict for figure in figures)],
            ["", *(figure.remark for figure in figures)],
        ]

    def _spreads(self, head: str, spreads: Sequence[Spread | None], places: int) -> list[list[str]]:
        """A column of medians and one of ranges."""
        medians: list[str] = [head]
        ranges: list[str] = [self.spread]
        for spread in spreads:
            middle = between = ""
            if spread is not None:
                low, high = spread.low, spread.high
                if self.spread == "min - max":
                    low, high = spread.minimum, spread.maximum
                decimals = places if spread.median >= 10 else max(places, 2)
                middle = f"{spread.median:,.{decimals}f}"
                if spread.minimum < spread.maximum:
                    between = f"{low:,.{decimals}f} - {high:,.{decimals}f}"
            medians.append(middle)
            ranges.append(between)
        return [medians, ranges]

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "unit": self.unit,
            "ratio": self.ratio,
            "figures": [figure.as_dict() for figure in self.figures],
            "notes": list(self.notes),
            "spread": self.spread,
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures depend on, and what else the machine was doing."""

    load_before: tuple[float, ...] = field(default_factory=os.getloadavg)
    taken_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def as_dict(self) -> dict[str, Any]:
        """Asked at the end."""
        return {
            "taken_at": self.taken_at,
            "system": platform.platform(),
            "processor": _processor(),
            "cpu_count": os.cpu_count(),
            "load_before": self.load_before,
            "load_after": os.getloadavg(),
        }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


@dataclass(frozen=True, slots=True)
class Report:
    scenario: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    options: dict[str, Any]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    appendix: str = ""  # text that stands at the end as it is

    @property
    def missed(self) -> list[Figure]:
        figures = [figure for section in self.sections for figure in section.figures]
        return [figure for figure in figures if figure.verdict == "MISSED"]

    def json(self) -> str:
        document = {
            "scenario": self.scenario,
            "machine": self.machine,
            "versions": self.versions,
            "options": self.options,
            "notes": list(self.notes),
            "sections": [section.as_dict() for section in self.sections],
            "appendix": self.appendix,
            "missed": len(self.missed),
        }
        return json.dumps(document, indent=2) + "\n"

    def text(self) -> str:
        machine = self.machine
        before, after = (
            "/".join(f"{load:.1f}" for load in machine[name])
            for name in ("load_before", "load_after")
        )
        lines = [
            f"{self.scenario}, {machine['taken_at']}",
            ", ".join(f"{name} {version or 'absent'}" for name, version in self.versions.items()),
            f"{machine['processor']}, {machine['cpu_count']} CPUs, {machine['system']}",
            f"load {before} before, {after} after",
            *self.notes,
        ]
        for section in self.sections:
            lines += ["", *section.lines()]
        with_targets = [
            figure for section in self.sections for figure in section.figures if figure.verdict
        ]
        lines += ["", self.appendix] if self.appendix else []
        lines += ["", f"{len(with_targets)} targets, {len(self.missed)} missed"]
        return "\n".join(lines)
