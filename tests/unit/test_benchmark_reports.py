"""From turns to tables: of benchmarks beside others."""

import argparse
import json
import re
from pathlib import Path

import pytest

from benchmarks import markdown
from benchmarks.peers.catalog import OURS
from benchmarks.recovery import table
from benchmarks.recovery.cases import Case
from benchmarks.report import Figure, Machine, Report, Section, Spread, Target
from benchmarks.scenarios import common
from benchmarks.turns import Turns
from benchmarks.venvs import UsageError


def turns(**rates: list[float | None]) -> Turns:
    results = {
        (OURS if peer == "ours" else peer): [
            None if value is None else {"rate": value} for value in values
        ]
        for peer, values in rates.items()
    }
    return Turns(results=results)


def test_the_ratio_is_that_of_rounds_in_which_both_succeeded() -> None:
    ratio = common.ratio(turns(ours=[10, None, 30], peer=[5, 1, 10]), "peer", "rate")

    assert ratio is not None
    assert (ratio.minimum, ratio.maximum, ratio.count) == (2.0, 3.0, 2)


@pytest.mark.parametrize("theirs", [[None, None], [0, 0]], ids=["failed", "nothing"])
def test_no_ratio_to_nothing(theirs: list[float | None]) -> None:
    assert common.ratio(turns(ours=[1, 2], peer=theirs), "peer", "rate") is None


def test_ours_stand_first_then_the_best_and_at_last_who_failed() -> None:
    measured = turns(ours=[1], slow=[2], failed=[None], fast=[9])

    assert common.by_value(measured, "rate") == [OURS, "fast", "slow", "failed"]
    assert common.by_value(measured, "rate", reverse=False) == [OURS, "slow", "fast", "failed"]


@pytest.mark.parametrize("value", ["", "0", "1,x", "-1"])
def test_numbers_that_make_no_sense_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--executors"):
        common.counts("--executors", value)


def test_an_option_that_must_be_more_than_zero() -> None:
    with pytest.raises(UsageError, match=r"^--fill-seconds 0: more than 0"):
        common.check_positive(argparse.Namespace(fill_seconds=0), "fill_seconds")


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [
        (1.5, Target(1.5, is_least=True), "ok"),
        (1.4, Target(1.5, is_least=True), "MISSED"),
        (1.5, Target(1.5, reached=False, is_least=True), "MISSED"),
        (1.6, Target(1.5, reached=False, is_least=True), "ok"),
        (1.5, Target(1.5), "ok"),
        (1.6, Target(1.5), "MISSED"),
    ],
)
def test_a_target_may_be_the_least(value: float, target: Target, verdict: str) -> None:
    assert Figure("", ratio=Spread.of([value]), target=target).verdict == verdict


def a_report() -> Report:
    figures = [
        Figure(OURS, Spread.of([900.0, 1100.0, 1000.0]), group="4 executors"),
        Figure(
            "slow",
            Spread.of([500.0]),
            Spread.of([2.0]),
            Target(1.5, is_least=True),
            "4 executors",
        ),
        Figure("absent", group="4 executors", remark="cannot be installed: a | b"),
    ]
    section = Section(
        "plain", "Tasks", "tasks/s", "ours : it", figures, ["A note."], spread="min - max"
    )
    machine = Machine().as_dict()
    return Report("plain", machine, {"Python": "3"}, {"runs": 3}, [section], [f"{OURS}: so"])


def test_who_did_not_take_part_stands_in_the_table_with_the_reason() -> None:
    text = a_report().text()

    assert re.search(r"task_locks +1,000\.0 +900\.0 - 1,100\.0$", text, re.MULTILINE)
    assert re.search(r"slow +500\.0 .*2\.00 +>= 1\.50  ok$", text, re.MULTILINE)
    assert re.search(r"absent .*cannot be installed: a \| b$", text, re.MULTILINE)


def test_the_page_has_each_table_and_its_picture() -> None:
    page = markdown.page([json.loads(a_report().json())], {"plain": ["benchmarks/plain.svg"]})

    assert "![plain](benchmarks/plain.svg)" in page
    assert "| task_locks | 1,000.0 | 900.0 - 1,100.0 |  |  |  |" in page
    assert "| slow | 500.0 |  | 2.00 | >= 1.5 ok |  |" in page
    assert r"cannot be installed: a \| b" in page
    assert "* task_locks: so" in page


def test_pictures_are_drawn_from_the_files_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import main

    (tmp_path / "plain.json").write_text(a_report().json())

    assert main([str(tmp_path), "--to", str(tmp_path / "docs")]) == 0

    first = (tmp_path / "docs" / "benchmarks" / "plain.svg").read_bytes()
    assert b"<svg" in first
    assert "plain.svg" in (tmp_path / "docs" / "benchmarks.md").read_text()
    main([str(tmp_path), "--to", str(tmp_path / "docs")])
    assert (tmp_path / "docs" / "benchmarks" / "plain.svg").read_bytes() == first


def test_recovery_as_a_table_with_a_line_for_each_case() -> None:
    def section(key: str, value: float | None) -> Section:
        spread = None if value is None else Spread.of([value])
        remark = "" if value is not None else "not within 90 s"
        figures = [Figure(OURS, spread, group=case, remark=remark) for case in Case]
        return Section(key, "", "s", "", figures)

    lines = table.markdown(
        [section("recovery", None).as_dict(), section("recovery-start", 0.42).as_dict()]
    ).splitlines()

    assert lines[0].endswith("| task_locks |")
    assert f"| {Case.SAME_NAME} | not within 90 s |" in lines
    assert f"| {Case.SAME_NAME_LATER} | 0.4 s * |" in lines
    assert not any(line.startswith(f"| {Case.ORDINARY}") for line in lines)
