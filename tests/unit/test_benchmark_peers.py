"""Who takes part in which benchmark."""

import sys
from pathlib import Path

import pytest

from benchmarks import everything, venvs
from benchmarks.__main__ import SCENARIOS, main, parser
from benchmarks.peers import catalog
from benchmarks.peers.catalog import OURS, PEERS
from benchmarks.peers.peer import Locks, Peer
from benchmarks.venvs import NoInterpreter, UsageError

ROOT = Path(__file__).parents[2]


def names(peers: str, least: Locks | None = Locks.NONE) -> list[str]:
    return [peer.name for peer in catalog.chosen(peers, least)]


def test_ours_always_take_part() -> None:
    assert names("none") == [OURS]
    assert names("celery") == [OURS, "celery"]
    assert names("all")[0] == OURS


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(UsageError, match="'nobody': all, none, or some of task_locks"):
        names("celery,nobody")


def test_who_cannot_lock_takes_no_part_where_tasks_need_it() -> None:
    assert "django-tasks-db" not in names("all", Locks.ONE)
    assert "procrastinate" in names("all", Locks.ONE)
    assert "procrastinate" not in names("procrastinate", Locks.SEVERAL)


def test_without_locks_a_peer_runs_in_one_of_its_ways_only() -> None:
    assert "celery-lock" not in names("all")
    assert "celery" in names("all")
    assert {"celery", "celery-lock"} <= set(names("all", None))


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_each_peer_has_its_tasks_and_says_how_it_is_set_up(peer: Peer) -> None:
    assert (ROOT / "benchmarks" / "engines" / f"{peer.engine}.py").is_file()
    assert peer.setup
    assert peer.commands(4, "worker")


def test_each_peer_is_pinned() -> None:
    for peer in PEERS.values():
        assert peer.requirements is None or "==" in peer.requirements[0]


@pytest.mark.parametrize("quick", [False, True])
def test_all_has_options_for_each_scenario(quick: bool) -> None:
    options = everything.options(SCENARIOS, quick=quick)

    assert list(options) == list(SCENARIOS)
    for name, given in options.items():
        assert parser().parse_args([name, *given]).scenario == name


def test_only_takes_known_scenarios() -> None:
    assert everything.wanted("plain,idle", SCENARIOS) == ["plain", "idle"]
    with pytest.raises(UsageError, match="--only fast: some of plain"):
        everything.wanted("plain,fast", SCENARIOS)


@pytest.mark.parametrize(
    "arguments",
    [
        ("plain", "--peers", "nobody"),
        ("plain", "--executors", "none"),
        ("serial", "--tasks", "0"),
        ("idle", "--seconds", "0"),
        ("backlog", "--backlogs", "many"),
        ("remote", "--milliseconds", "0"),
        ("recovery", "--ttl", "0"),
        ("all", "--only", "nothing"),
        ("all", "--peers", "nobody"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_named_before_anything_is_measured(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_this_python_will_do_where_it_is_new_enough() -> None:
    assert venvs.interpreter((3, 11)) == Path(sys.executable)


def test_a_python_that_is_nowhere_is_told() -> None:
    with pytest.raises(NoInterpreter, match=r"it needs Python 3\.90 or newer"):
        venvs.interpreter((3, 90))
