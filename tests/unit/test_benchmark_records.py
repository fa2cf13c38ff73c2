"""What the bodies of benchmarks leave, and what is told from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import jobs, records
from benchmarks.jobs import Job
from benchmarks.records import Interval

ROOT = Path(__file__).parents[2]


def ran(number: int, begin: float, end: float | None) -> Interval:
    return Interval(number, 1, begin, end)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "records"


def run(file: Path, program: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"from benchmarks.records import body\n{program}"],
        cwd=ROOT,
        env=os.environ | {records.FILE: str(file)},
        check=True,
    )


def test_each_body_leaves_when_it_began_and_ended(file: Path) -> None:
    run(file, "body(0, 0.02); body(7)")

    first, second = records.read(file)

    assert (first.number, second.number) == (0, 7)
    assert first.ended_at is not None
    assert first.ended_at - first.began_at >= 0.02
    assert second.began_at >= first.ended_at
    assert records.entries(file) == 4


def test_a_body_that_was_killed_has_no_end(file: Path) -> None:
    run(file, "import os, threading\nthreading.Timer(0.1, os._exit, [0]).start()\nbody(5, 60)")

    (interval,) = records.read(file)

    assert (interval.number, interval.ended_at) == (5, None)


def test_nothing_has_run_without_a_file(file: Path) -> None:
    assert records.entries(file) == 0
    assert records.read(file) == []


def test_the_rate_leaves_out_the_first_tenth() -> None:
    slow_start = [ran(0, 0, 50)]
    steady = [ran(number, 50 + number, 51 + number) for number in range(9)]

    assert records.rate(slow_start + steady) == pytest.approx(1.0)


def test_where_more_were_to_come_the_rate_counts_the_wait_for_them() -> None:
    assert records.rate([ran(0, 0, 1), ran(1, 1, 2)], until=8) == pytest.approx(0.25)


def test_there_is_no_rate_of_one_body() -> None:
    with pytest.raises(ValueError, match="1 bodies have ended"):
        records.rate([ran(0, 0, 1), ran(1, 1, None)])


def test_gaps_are_from_an_end_to_the_next_begin() -> None:
    assert records.gaps([ran(0, 0, 1), ran(1, 1.5, 2), ran(2, 2.25, 3)]) == [0.5, 0.25]


EXCLUSIVE = Job(number=0, exclusive=("r",)), Job(number=1, exclusive=("r",))
SHARED = Job(number=0, shared=("r",)), Job(number=1, shared=("r",))
BOTH = Job(number=0, exclusive=("r",)), Job(number=1, shared=("r",))
FREE = Job(number=0, exclusive=("r",)), Job(number=1, exclusive=("s",))


@pytest.mark.parametrize(
    ("todo", "found"), [(EXCLUSIVE, 1), (SHARED, 0), (BOTH, 1), (FREE, 0)], ids=str
)
def test_an_overlap_of_bodies_that_exclude_each_other(todo: tuple[Job, Job], found: int) -> None:
    assert records.overlaps([ran(0, 0, 2), ran(1, 1, 3)], todo) == found
    assert records.overlaps([ran(0, 0, 1), ran(1, 1, 3)], todo) == 0
    assert records.overlaps([ran(0, 0, None), ran(1, 1, 3)], todo) == found


@pytest.mark.parametrize("make", [jobs.plain, jobs.exclusive, jobs.mixed, jobs.serial])
def test_jobs_survive_their_way_to_the_dispatching_process(make: object, file: Path) -> None:
    assert callable(make)
    made = make(20)

    jobs.save(made, file)

    assert jobs.load(file) == made
    assert [job.number for job in made] == list(range(20))


def test_a_mixed_job_has_three_exclusive_and_two_shared_resources() -> None:
    for job in jobs.mixed(50):
        assert (len(job.exclusive), len(job.shared)) == (3, 2)
        assert len({*job.exclusive, *job.shared}) == 5
