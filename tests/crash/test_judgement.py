"""What the harness calls wrong, and which points it takes."""

from itertools import islice
from pathlib import Path

import pytest

from tests.crash import evidence
from tests.crash.campaign import all_points, chosen, sample
from tests.crash.cases import CASES
from tests.crash.evidence import Stay, overlaps
from tests.crash.point import Point
from tests.support.proxy import Fault


def stay(label: str, began: float, last: float, *, task: str = "", **modes: list[str]) -> Stay:
    exclusive, shared = modes.get("exclusive", []), modes.get("shared", [])
    return Stay(label, task or label, exclusive, shared, began, last)


READER = stay("reader", 1.0, 2.0, shared=["r"])


@pytest.mark.parametrize(
    ("other", "is_wrong"),
    [
        (stay("writer", 1.5, 3.0, exclusive=["r"]), True),
        (stay("within", 1.2, 1.3, exclusive=["r"]), True),
        (stay("later", 2.0, 3.0, exclusive=["r"]), False),
        (stay("another reader", 1.5, 3.0, shared=["r"]), False),
        (stay("elsewhere", 1.5, 3.0, exclusive=["s"]), False),
        (stay("again", 1.5, 3.0, task="reader"), True),
    ],
)
def test_bodies_that_conflict_must_not_be_there_at_the_same_time(
    other: Stay, is_wrong: bool
) -> None:
    assert overlaps([READER, other]) == ([(READER, other)] if is_wrong else [])


def test_evidence_that_is_just_being_written_does_not_count_yet(tmp_path: Path) -> None:
    file = tmp_path / "evidence"
    with evidence.recorded(str(file), "whole", "1", ["r"], []):
        pass
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    assert [stay.label for stay in evidence.read(file)] == ["whole"]
    file.write_text(whole[:40])
    assert evidence.read(file) == []


def test_evidence_tells_of_a_body_that_was_killed_until_when_it_lived_at_least(
    tmp_path: Path,
) -> None:
    file = tmp_path / "evidence"
    with evidence.recorded(str(file), "ended", "1", ["r"], []) as stamp:
        stamp.go_on(0.02)
    with evidence.recorded(str(file), "killed", "2", [], ["r"]) as stamp:
        stamp.go_on(0.02)
        lines = file.read_text()
    file.write_text(lines)

    ended, killed = evidence.read(file)

    assert (ended.label, ended.exclusive, ended.has_ended) == ("ended", ["r"], True)
    assert (killed.label, killed.shared, killed.has_ended) == ("killed", ["r"], False)
    assert killed.last >= killed.began + 0.02


def struck(*sent: str, every: bool = False) -> set[tuple[Fault, int]]:
    points = all_points({"run/dispatcher": list(sent)}, every=every)
    return {(point.fault, point.at) for point in points}


ALL, BEFORE = {*Fault}, {Fault.KILL_BEFORE, Fault.DROP_BEFORE, Fault.SWALLOW}
REQUEST, HELLO, NAME, LOOK = (
    "redis EVALSHA request",
    "redis HELLO",
    "redis CLIENT SETINFO",
    "redis EVALSHA look",
)


def test_every_fault_is_tried_at_every_command() -> None:
    assert struck(REQUEST, REQUEST) == {(fault, at) for fault in ALL for at in (1, 2)}


def test_before_and_after_are_one_at_a_command_that_changes_nothing() -> None:
    assert struck(LOOK) == {(fault, 1) for fault in BEFORE}
    assert struck(LOOK, every=True) == {(fault, 1) for fault in ALL}


def test_the_making_of_a_connection_is_struck_in_all_its_parts_twice() -> None:
    connections = [(HELLO, NAME, f"redis EVALSHA {number}") for number in range(5)]
    sent = [command for connection in connections for command in connection]
    at_names = {at for _, at in struck(*sent) if sent[at - 1] == NAME}
    assert at_names == {2, 5}
    assert {at for _, at in struck(*sent) if sent[at - 1] != NAME} == {
        at for at, command in enumerate(sent, 1) if command != NAME
    }


def test_what_is_repeated_while_a_process_waits_counts_twice() -> None:
    a_round = [f"redis {number}" for number in range(8)]
    once = struck(*a_round)
    assert len(struck(*a_round * 2)) == 2 * len(once)
    # Of the first round each command has another context than later.
    assert len(struck(*a_round * 50)) < 4 * len(once)
    assert len(struck(*a_round * 50, every=True)) == 50 * len(once)


def first(size: int, seed: int) -> list[Point]:
    commands = {case: [str(number) for number in range(5)] for case in CASES}
    return list(islice(sample(commands, seed), size))


def test_a_sample_repeats_with_its_seed_and_begins_with_every_case() -> None:
    assert first(100, seed=7) == first(100, seed=7)
    assert first(100, seed=7) != first(100, seed=8)
    assert {point.case for point in first(len(CASES), seed=7)} == set(CASES)
    assert {point.at for point in first(100, seed=7)} == {1, 2, 3, 4, 5}


def test_a_scenario_stands_for_all_its_processes() -> None:
    assert chosen(["run"]) == ["run/dispatcher", "run/executor", "run/supervisor"]
    assert chosen(["run/executor"]) == ["run/executor"]
    with pytest.raises(ValueError, match="scenario 'walk': accepted are run/dispatcher"):
        chosen(["walk"])
