"""python -m benchmarks.plot DIRECTORY [--to docs]: writes docs/benchmarks.md and its pictures from
the JSON files that `python -m benchmarks all --json DIRECTORY` has left.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.peers.catalog import OURS
from benchmarks.venvs import ROOT

# In this order, and of each the sections that are shown as pictures.
PICTURES: Mapping[str, Sequence[str]] = {
    "plain": ["plain"],
    "exclusive": ["exclusive"],
    "mixed": ["mixed"],
    "serial": ["serial", "serial-gaps"],
    "dispatch": ["dispatch", "dispatch-bulk"],
    "idle": ["idle-cpu", "idle-uss"],
    "backlog": ["backlog-latency"],
    "remote": ["remote-plain", "remote-exclusive", "remote-serial"],
    "recovery": ["recovery"],
    "locks": ["cleanup"],
}
_OWN, _OTHER = "#1f6f8b", "#b9c4cb"
_NOTHING = {"median": 0.0, "minimum": 0.0, "maximum": 0.0}
_LONGEST = 40


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "docs")
    chosen = parser.parse_args(arguments)
    files = [chosen.directory / f"{name}.json" for name in PICTURES]
    reports = [json.loads(file.read_text()) for file in files if file.exists()]
    if not reports:
        parser.error(f"{chosen.directory}: has no {', '.join(file.name for file in files)}")
    pictures = {report["scenario"]: draw_all(report, chosen.to) for report in reports}
    page = chosen.to / "benchmarks.md"
    page.write_text(markdown.page(reports, pictures))
    print(f"Wrote {page} and {sum(map(len, pictures.values()))} pictures.")
    return 0


def draw_all(report: Mapping[str, Any], to: Path) -> list[str]:
    """Paths of the pictures, from `to`."""
    wanted = PICTURES[report["scenario"]]
    sections = [section for section in report["sections"] if section["key"] in wanted]
    drawn = []
    for section in sections:
        if any(figure["value"] for figure in section["figures"]):
            path = Path("benchmarks") / f"{section['key']}.svg"
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            draw(section, to / path)
            drawn.append(path.as_posix())
    return drawn


def draw(section: Mapping[str, Any], file: Path) -> None:
    """A bar for each figure, a panel for each group; the line through a bar is its range. Where a
    peer has no figure, its remark stands in its place."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same file.
    matplotlib.rcParams |= {"svg.hashsalt": section["key"], "svg.fonttype": "none"}
    from matplotlib import pyplot

    panels: dict[str, list[Mapping[str, Any]]] = {}
    for figure in section["figures"]:
        if figure["value"] or figure["remark"]:
            panels.setdefault(figure["group"], []).append(figure)
    tallest = max(map(len, panels.values()))
    canvas, axes = pyplot.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 0.9 + 0.34 * tallest), squeeze=False
    )
    for axis, (group, figures) in zip(axes[0], panels.items(), strict=True):
        names = [figure["what"] for figure in figures]
        spreads = [figure["value"] or _NOTHING for figure in figures]
        medians = [spread["median"] for spread in spreads]
        reach = [
            [spread["median"] - spread["minimum"] for spread in spreads],
            [spread["maximum"] - spread["median"] for spread in spreads],
        ]
        labels = [
            f" {markdown.number(figure['value']['median']) if figure['value'] else _short(figure)}"
            for figure in figures
        ]
        colours = [_OWN if name.startswith((OURS, "ours")) else _OTHER for name in names]
        bars = axis.barh(names, medians, color=colours, xerr=reach, ecolor="#555555")
        axis.bar_label(bars, labels, fontsize=8)
        axis.margins(x=0.18)
        axis.invert_yaxis()
        axis.set_title(group, fontsize=9)
        axis.set_xlabel(section["unit"], fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    canvas.suptitle(section["title"], fontsize=10)
    canvas.tight_layout()
    canvas.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    pyplot.close(canvas)


def _short(figure: Mapping[str, Any]) -> str:
    remark = str(figure["remark"])
    return remark if len(remark) <= _LONGEST else f"{remark[:_LONGEST]}..."


if __name__ == "__main__":
    sys.exit(main())
