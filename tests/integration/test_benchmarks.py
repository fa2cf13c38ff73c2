"""The benchmarks run, and report in the shape that readers of their JSON rely on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.report import Figure, Spread, Target

ROOT = Path(__file__).parents[2]
SMALL = [
    "--peers=none",
    "--transports=unix",
    "--runs=2",
    "--pairs=2",
    "--handoffs=2",
    "--foreign=20,40",
]


def of(value: float) -> Spread:
    return Spread.of([value])


def test_locks_in_small(tmp_path: Path) -> None:
    file = tmp_path / "made" / "locks.json"

    text = subprocess.check_output(
        [sys.executable, "-m", "benchmarks", "locks", *SMALL, "--json", file], cwd=ROOT, text=True
    )

    report = json.loads(file.read_text())
    assert report["scenario"] == "locks"
    assert {"cpu_count", "load_before", "load_after"} <= set(report["machine"])
    assert {"redis", "hiredis", "django-redis", "Valkey"} <= set(report["versions"])
    sections = {section["key"]: section for section in report["sections"]}
    assert list(sections) == [
        "pairs-unix",
        "server",
        "handoff-unix",
        "cleanup",
        "cleanup-commands",
    ]
    for section in sections.values():
        assert section["title"] in text
        for figure in section["figures"]:
            assert figure["what"] in text
            assert is_measured(figure)
    floors = [
        figure["ratio"]["median"]
        for figure in sections["pairs-unix"]["figures"]
        if figure["what"].startswith("floor")
    ]
    assert floors == [1.0, 1.0, 1.0]
    assert report["missed"] == text.count("MISSED")


@pytest.mark.slow
def test_a_scenario_beside_peers_in_small(tmp_path: Path) -> None:
    file = tmp_path / "serial.json"
    command = [sys.executable, "-m", "benchmarks", "serial", "--peers=none", "--runs=1"]

    text = subprocess.check_output(
        [*command, "--tasks=30", "--executors=2", "--json", file], cwd=ROOT, text=True
    )

    report = json.loads(file.read_text())
    assert {"PostgreSQL", "Valkey", "Django"} <= set(report["versions"])
    assert report["notes"][-1] == "task_locks: one worker, defaults"
    rates, gaps = report["sections"]
    assert rates["figures"][0]["value"]["median"] > 0
    assert rates["figures"][0]["remark"] == "", "all have run, and none beside another"
    assert [figure["what"] for figure in gaps["figures"]] == [
        "task_locks, p50",
        "task_locks, p99",
        "task_locks, p99 : p50",
    ]
    assert rates["title"] in text


def is_measured(figure: dict[str, Any]) -> bool:
    return (
        figure["value"]["median"] > 0
        and (figure["target"] is None) == (figure["verdict"] == "")
        and figure["verdict"] in ("", "ok", "MISSED")
    )


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("", value=of(9), ratio=of(1), target=Target(1)), "ok"),
        (Figure("", value=of(9), ratio=of(1), target=Target(1, reached=False)), "MISSED"),
        (Figure("", value=of(0.5), ratio=of(1.1), target=Target(1)), "MISSED"),
        (Figure("", value=of(9), ratio=of(1), target=Target(8, of="value")), "MISSED"),
        (Figure("", value=of(9), ratio=of(1)), ""),
    ],
)
def test_verdict(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


def test_paired_ratio_is_that_within_rounds() -> None:
    assert Spread.of_ratios([1, 10, 100], [2, 20, 200]).maximum == 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        ("--peers", "nobody"),
        ("--peers", "redis-py==8.1.0"),
        ("--parts", "all"),
        ("--foreign", "many"),
        ("--runs", "0"),
    ],
)
def test_wrong_argument(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["locks", *arguments])

    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
