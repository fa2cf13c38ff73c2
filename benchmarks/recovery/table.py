"""The times as a table in Markdown, for docs/reliability.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.recovery.cases import Case


def markdown(sections: Sequence[Mapping[str, Any]]) -> str:
    """A line for each case, a column for each peer; of sections as they are in JSON."""
    by_key = {section["key"]: section["figures"] for section in sections}
    kill, start = _cells(by_key["recovery"]), _cells(by_key["recovery-start"])
    names = list(dict.fromkeys(figure["what"] for figure in by_key["recovery"]))
    lines = [
        f"| a worker is killed in mid-task and ... | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for case in Case:
        if case == Case.ORDINARY:
            continue
        # How long it took to be started is not its time.
        found, unit = (start, "s *") if case == Case.SAME_NAME_LATER else (kill, "s")
        cells = [_shown(found[case, name], unit) for name in names]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Seconds from the kill until the next task on the same resource begins; * from the "
            "start of the new worker.",
        ]
    )


def _cells(figures: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(figure["group"], figure["what"]): figure for figure in figures}


def _shown(figure: Mapping[str, Any], unit: str) -> str:
    if figure["value"] is None:
        return str(figure["remark"])
    remark = f" ({figure['remark']})" if figure["remark"] else ""
    return f"{figure['value']['median']:.1f} {unit}{remark}"
