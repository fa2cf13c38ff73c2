"""Reports, as they are in JSON, as a page in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_HEAD = """\
# Benchmarks

What this package costs and how fast it is, beside what one would use instead, measured in one run
on the same servers. Written by `python -m benchmarks.plot`; to repeat it, in a clone:

```sh
pip install -e ".[test,hiredis,benchmarks]"
python -m benchmarks all --json build/benchmarks/all
python -m benchmarks.plot build/benchmarks/all
```

The runner starts a PostgreSQL and a Valkey of its own on free ports, and makes a virtual
environment for each peer. Peers take turns, round by round. Every task has the same body: it
appends the times of its begin and its end to a file. From these alone come rates, gaps and
latencies, and whether tasks overlapped that exclude each other. The tasks are dispatched first,
then the workers start; the first tenth of the tasks does not count. Where a peer could not take
part, the table says why.

Read the figures as ratios: another machine has others. What a ratio does not tell: plain Celery,
Dramatiq and Huey keep no record of a task in the database; and locks that expire are soon free
again because they let two tasks run at once when one takes longer than its lock lives.
"""


def page(reports: Sequence[Document], pictures: Mapping[str, Sequence[str]]) -> str:
    """The whole page; `pictures` are the paths of those of each scenario."""
    parts = [_HEAD, _machine(reports)]
    for report in reports:
        parts.append(f"## {report['scenario']}\n")
        parts += [f"![{report['scenario']}]({path})\n" for path in pictures[report["scenario"]]]
        parts += [_section(section) for section in report["sections"]]
        if appendix := report.get("appendix"):
            parts.append(f"{appendix}\n")
        parts.append(_options(report))
    return "\n".join(parts).rstrip() + "\n"


def _machine(reports: Sequence[Document]) -> str:
    machine = reports[0]["machine"]
    versions: dict[str, str | None] = {}
    setups: dict[str, None] = {}
    for report in reports:
        versions |= report["versions"]
        if report["scenario"] != "locks":  # which says in its own notes what it compares
            setups |= dict.fromkeys(report["notes"])
    lines = [
        f"Measured on {machine['processor']}, {machine['cpu_count']} CPUs, {machine['system']}, "
        f"from {machine['taken_at']} on.",
        "",
        ", ".join(f"{name} {version or 'absent'}" for name, version in versions.items()) + ".",
        "",
        "The servers, who takes part, and how each is set up:",
        "",
        *(f"* {setup}" for setup in setups),
        "",
    ]
    return "\n".join(lines)


def _section(section: Document) -> str:
    """Columns that are empty everywhere are left out."""
    figures = section["figures"]
    unit, ratio, spread = section["unit"], section["ratio"], section["spread"]
    columns = [
        [unit or "median", *(_median(figure["value"]) for figure in figures)],
        [spread, *(_range(figure["value"], spread) for figure in figures)],
        [ratio, *(_median(figure["ratio"]) for figure in figures)],
        [spread, *(_range(figure["ratio"], spread) for figure in figures)],
        ["target", *(_target(figure) for figure in figures)],
        ["", *(figure["remark"].replace("|", "\\|") for figure in figures)],
    ]
    shown = [column for column in columns if any(column[1:])]
    lines = [
        f"### {section['title']}",
        "",
        f"| | {' | '.join(column[0] for column in shown)} |",
        f"|---|{'---:|' * len(shown)}",
    ]
    group = ""
    for number, figure in enumerate(figures, start=1):
        if figure["group"] != group:
            group = figure["group"]
            lines.append(f"| **{group}** |{' |' * len(shown)}")
        lines.append(f"| {figure['what']} | {' | '.join(c[number] for c in shown)} |")
    return "\n".join([*lines, "", " ".join(section["notes"]), ""])


def number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _median(spread: Document | None) -> str:
    return number(spread["median"]) if spread else ""


def _range(spread: Document | None, kind: str) -> str:
    if not spread or spread["minimum"] == spread["maximum"]:
        return ""
    low, high = ("minimum", "maximum") if kind == "min - max" else ("low", "high")
    return f"{number(spread[low])} - {number(spread[high])}"


def _target(figure: Document) -> str:
    target = figure["target"]
    if not target:
        return ""
    sign = ">" if target["is_least"] else "<"
    text = f"{sign}{'=' if target['reached'] else ''} {target['limit']:g}"
    return f"{text} {figure['verdict']}".rstrip()


def _options(report: Document) -> str:
    given = ", ".join(
        f"{name} {value}" for name, value in report["options"].items() if value not in ("", None)
    )
    machine = report["machine"]
    before, after = (machine[name][0] for name in ("load_before", "load_after"))
    return f"Options: {given}. Load {before:.1f} before, {after:.1f} after.\n"
