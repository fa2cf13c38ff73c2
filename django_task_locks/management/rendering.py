"""A clean-up's report as an operator reads it, and as a program does."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from django_task_locks.reports import Report, Step

_Row = tuple[str, ...]


def as_table(report: Report) -> str:
    """A line for each step, one for each class of them with its count, and a summary."""
    found = [*report.steps, *report.pending]
    if not found:
        return "Nothing to clean up."
    lines = _aligned([("KIND", "SUBJECT", "STATUS", "ACTION", "REASON"), *map(_row, found)])
    lines += ["", *_aligned([("COUNT", "KIND", "STATUS", "ACTION", "REASON"), *_classes(report)])]
    return "\n".join([*lines, "", _summary(report)])


def as_json(report: Report, *, indent: int | None = 2) -> str:
    """One object, on one line without an indent."""
    classes = [
        {"kind": step.kind, "status": step.status, "reason": step.reason, "count": count}
        for step, count in report.classes()
    ]
    return json.dumps(
        {
            "dry_run": report.dry_run,
            "failed": len(report.failures),
            "classes": classes,
            "steps": [asdict(step) for step in report.steps],
            "pending": [asdict(step) for step in report.pending],
        },
        indent=indent,
    )


def _row(step: Step) -> _Row:
    return step.kind, step.subject, step.status, step.action, step.error or step.reason


def _classes(report: Report) -> Iterable[_Row]:
    for step, count in report.classes():
        is_pending = step in report.pending
        action = "" if is_pending else step.action
        yield str(count), step.kind, step.status, action, step.reason


def _summary(report: Report) -> str:
    counts = Counter(step.kind for step in report.steps)
    verb = "would be cleaned" if report.dry_run else "found"
    found = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing"
    pending = f", {len(report.pending)} pending" if report.pending else ""
    return f"{found} {verb}; {len(report.failures)} failed{pending}."


def _aligned(rows: list[_Row]) -> list[str]:
    """The last column is as wide as it is."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in rows]
