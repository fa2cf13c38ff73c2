"""The demo's checks must be able to fail: each is shown what it exists to find."""

from __future__ import annotations

from uuid import UUID

from django.test import SimpleTestCase

from mirror.demo.scenario import Job
from mirror.demo.verify import (
    WORKER_GONE,
    Body,
    Outcome,
    check_exclusion,
    check_failures,
    check_final_states,
    check_lock_service,
    check_order,
)
from mirror.demo.workers import Kill

COMPLETED = Outcome(state="completed")
LOST = Outcome(state="failed", reason=WORKER_GONE)
KILLED, OTHER = UUID(int=1), UUID(int=2)


def job(
    number: int, *, exclusive: tuple[str, ...] = (), shared: tuple[str, ...] = (), priority: int = 0
) -> Job:
    return Job(
        number=number,
        label="work",
        task_id=UUID(int=number),
        exclusive=frozenset(exclusive),
        shared=frozenset(shared),
        priority=priority,
        immediate=False,
    )


def body(
    job: Job, began: int, ended: int | None, *, incarnation: UUID = OTHER, cut_off: bool = False
) -> Body:
    return Body(job=job, incarnation=incarnation, began=began, ended=ended, cut_off=cut_off)


def kill(*jobs: Job) -> Kill:
    task_ids = frozenset(job.task_id for job in jobs)
    return Kill(worker="w", pid=9, incarnation=KILLED, task_ids=task_ids, at=50, gone_at=51)


class FinalStates(SimpleTestCase):
    def test_all_final(self) -> None:
        one, two = job(1), job(2)
        assert check_final_states([one, two], {one.task_id: COMPLETED, two.task_id: LOST}).ok

    def test_unfinished_and_lost_rows_are_named(self) -> None:
        one, two = job(1), job(2)
        check = check_final_states([one, two], {one.task_id: Outcome(state="waiting")})
        assert check.problems == ("#1 work is waiting", "#2 work has no row")


class Failures(SimpleTestCase):
    def test_the_killed_one_failed_with_the_reason(self) -> None:
        lost, fine = job(1), job(2)
        bodies = [body(lost, 10, 51, incarnation=KILLED, cut_off=True), body(fine, 10, 20)]
        outcomes = {lost.task_id: LOST, fine.task_id: COMPLETED}
        assert check_failures([lost, fine], outcomes, bodies, kill(lost)).ok

    def test_a_kill_that_hit_nothing(self) -> None:
        fine = job(1)
        check = check_failures([fine], {fine.task_id: COMPLETED}, [body(fine, 1, 2)], kill())
        assert check.problems == ("the kill hit no running task",)

    def test_no_kill(self) -> None:
        assert not check_failures([], {}, [], None).ok

    def test_another_failure(self) -> None:
        lost, broken = job(1), job(2)
        bodies = [body(lost, 10, 51, incarnation=KILLED, cut_off=True), body(broken, 10, 20)]
        outcomes = {lost.task_id: LOST, broken.task_id: Outcome(state="failed", reason="Boom.")}
        check = check_failures([lost, broken], outcomes, bodies, kill(lost))
        assert check.problems == ("#2 work is failed: Boom.",)

    def test_a_task_of_the_living_worker_failed(self) -> None:
        alive = job(1)
        outcomes = {alive.task_id: LOST}
        check = check_failures([alive], outcomes, [body(alive, 10, 20)], kill())
        assert check.problems == ("#1 work failed, although another worker ran it",)

    def test_a_task_that_never_began_failed(self) -> None:
        waited = job(1)
        check = check_failures([waited], {waited.task_id: LOST}, [], kill())
        assert len(check.problems) == 1

    def test_a_killed_body_counts_as_completed(self) -> None:
        lost, odd = job(1), job(2)
        bodies = [body(j, 10, 51, incarnation=KILLED, cut_off=True) for j in (lost, odd)]
        outcomes = {lost.task_id: LOST, odd.task_id: COMPLETED}
        check = check_failures([lost, odd], outcomes, bodies, kill(lost, odd))
        assert check.problems == ("#2 work was cut off and is completed",)


class Exclusion(SimpleTestCase):
    def test_shared_holders_may_overlap(self) -> None:
        assert check_exclusion([body(job(n, shared=("a",)), 0, 10) for n in (1, 2)]).ok

    def test_one_after_the_other(self) -> None:
        bodies = [body(job(1, exclusive=("a",)), 0, 10), body(job(2, exclusive=("a",)), 10, 20)]
        assert check_exclusion(bodies).ok

    def test_exclusive_and_shared_overlap(self) -> None:
        bodies = [body(job(1, shared=("a",)), 5, 10), body(job(2, exclusive=("a",)), 0, 6)]
        assert check_exclusion(bodies).problems == ("#1 work and #2 work overlapped on a",)

    def test_an_unknown_end_overlaps_what_follows(self) -> None:
        bodies = [body(job(1, exclusive=("a",)), 0, None), body(job(2, exclusive=("a",)), 90, 99)]
        assert not check_exclusion(bodies).ok

    def test_a_body_that_ran_twice(self) -> None:
        twice = job(1, exclusive=("a",))
        check = check_exclusion([body(twice, 0, 1), body(twice, 2, 3)])
        assert check.problems == ("#1 work ran more than once",)


class Order(SimpleTestCase):
    def test_overtaken(self) -> None:
        first, second = job(1, shared=("a",)), job(2, exclusive=("a",))
        check = check_order([body(second, 0, 1), body(first, 2_000_000, 3_000_000)])
        assert check.problems == ("#2 work began 2 ms before #1 work, on a",)

    def test_a_higher_priority_may_overtake(self) -> None:
        first, second = job(1, exclusive=("a",)), job(2, exclusive=("a",), priority=1)
        assert check_order([body(second, 0, 1), body(first, 2, 3)]).ok

    def test_without_a_conflict_there_is_no_order(self) -> None:
        bodies = [body(job(2, exclusive=("b",)), 0, 1), body(job(1, exclusive=("a",)), 2, 3)]
        assert check_order(bodies).ok


class LockService(SimpleTestCase):
    def test_bookkeeping_may_stay(self) -> None:
        assert check_lock_service(["seq", "token", "lanes"]).ok

    def test_all_else_is_named(self) -> None:
        check = check_lock_service(["seq", "lock:a", "request:1", "owner:w@1"], ["w@1"])
        assert check.problems == (
            "left behind: lock:a",
            "left behind: owner:w@1",
            "left behind: request:1",
            "still registered: w@1",
        )
