"""TaskSchedule: one task for each time, whoever looks and however often."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from django_task_locks import dispatching, schedules
from django_task_locks.exceptions import InvalidTask
from django_task_locks.locks import LockManager
from django_task_locks.models import Task, TaskSchedule
from django_task_locks.schedules import JOB, dispatch_due, remove_schedule, set_schedule
from django_task_locks.states import State
from tests.factories import TaskFactory, TaskScheduleFactory
from tests.integration.by_hand import info
from tests.integration.transactions import at_once
from tests.testapp import tasks

MINUTE = timedelta(minutes=1)


def present(schedule: TaskSchedule) -> TaskSchedule:
    return TaskSchedule.objects.get(pk=schedule.pk)


def ahead(schedule: TaskSchedule) -> timedelta:
    """Until its next time."""
    next_run = present(schedule).next_run
    assert next_run is not None
    return next_run - timezone.now()


def define(options: dict[str, Any]) -> TaskSchedule:
    return set_schedule(**options)


class TestSet:
    def test_says_what_is_dispatched_and_when(self, locks: LockManager) -> None:
        schedule = set_schedule(
            "nightly",
            tasks.add,
            [1],
            {"b": 2},
            every=60,
            exclusive=["r"],
            shared=["s"],
            queue="bulk",
            priority=3,
        )
        found = present(schedule)
        assert (found.function, found.args) == ("tests.testapp.tasks.add", [1])
        assert (found.kwargs, found.queue, found.priority) == ({"b": 2}, "bulk", 3)
        assert (found.exclusive, found.shared) == (["r"], ["s"])
        assert (found.enabled, found.skip_if_running) == (True, True)
        assert timedelta(seconds=30) < ahead(schedule) <= MINUTE
        assert not Task.objects.exists()

    def test_by_cron_expression_in_a_zone(self, locks: LockManager) -> None:
        schedule = set_schedule("a", tasks.add, cron="30 9 * * *", time_zone="Asia/Tokyo")
        next_run = present(schedule).next_run
        assert next_run is not None
        assert (next_run.astimezone(UTC).hour, next_run.minute) == (0, 30)

    @pytest.mark.parametrize("start", [MINUTE * 5, datetime(2100, 1, 1, tzinfo=UTC)])
    def test_the_first_time_of_an_interval_may_be_given(
        self, locks: LockManager, start: Any
    ) -> None:
        schedule = set_schedule("a", tasks.add, every=timedelta(hours=1), start=start)
        assert ahead(schedule) > MINUTE * 4
        assert schedule.interval == 3600

    def test_again_changes_nothing(self, locks: LockManager) -> None:
        first = set_schedule("a", tasks.add, [1], every=60, exclusive=["r"])
        locks.lead(JOB, "somebody", 60)

        again = set_schedule("a", tasks.add, (1,), every=60.0, exclusive="r")

        assert (again.pk, again.next_run) == (first.pk, present(first).next_run)
        assert locks.lead_ends_in(JOB) > 0

    def test_another_function_leaves_the_next_time(self, locks: LockManager) -> None:
        first = set_schedule("a", tasks.add, every=60)
        set_schedule("a", tasks.record, every=60)
        found = present(first)
        assert (found.function, found.next_run) == ("tests.testapp.tasks.record", first.next_run)

    def test_another_timing_brings_another_next_time(self, locks: LockManager) -> None:
        schedule = set_schedule("a", tasks.add, every=60)
        set_schedule("a", tasks.add, every=3600)
        assert ahead(schedule) > 30 * MINUTE

    def test_switched_on_again_it_does_not_make_up_for_the_past(self, locks: LockManager) -> None:
        schedule = set_schedule("a", tasks.add, every=60)
        set_schedule("a", tasks.add, every=60, enabled=False)
        TaskSchedule.objects.update(next_run=timezone.now() - MINUTE)
        assert dispatch_due() is None
        set_schedule("a", tasks.add, every=60)
        dispatch_due()
        assert not Task.objects.exists()
        assert ahead(schedule) > timedelta(seconds=30)

    def test_tells_those_who_wait_for_the_next_time(self, locks: LockManager) -> None:
        locks.lead(JOB, "somebody", 60)
        with transaction.atomic():
            set_schedule("a", tasks.add, every=60)
            assert locks.lead_ends_in(JOB) > 0
        assert locks.lead_ends_in(JOB) == 0

    def test_counts_though_nobody_can_be_told(self, no_redis: str) -> None:
        set_schedule("a", tasks.add, every=60)
        assert TaskSchedule.objects.count() == 1

    def test_at_the_same_time_makes_one(self, locks: LockManager) -> None:
        calls = [partial(set_schedule, "a", tasks.add, every=60)] * 3
        assert len({schedule.pk for schedule in at_once(*calls)}) == 1

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({}, "interval None and cron expression '' of a: one of them"),
            ({"every": 60, "cron": "@daily"}, "interval 60 and cron expression '@daily' of a"),
            ({"every": 0}, "interval 0 of a: seconds from 1"),
            ({"cron": "never"}, "cron expression 'never' of a"),
            ({"cron": "@daily", "time_zone": "Moon"}, "time zone 'Moon' of a"),
            ({"every": 60, "func": "nowhere.at_all"}, "function 'nowhere.at_all'"),
            ({"every": 60, "args": [object()]}, "args"),
            ({"every": 60, "queue": ""}, "queue ''"),
            ({"every": 60, "exclusive": [""]}, "''"),
            ({"every": 60, "start": datetime(2100, 1, 1)}, "start datetime.* of a"),
            ({"every": 60, "name": ""}, "schedule ''"),
        ],
    )
    def test_what_is_wrong_is_refused_before_anything_is_written(
        self, locks: LockManager, options: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(ValueError, match=problem):
            define({"name": "a", "func": tasks.add} | options)
        assert not TaskSchedule.objects.exists()

    def test_a_row_from_a_form_is_checked_too(self, locks: LockManager) -> None:
        schedule = TaskScheduleFactory.build(interval=None, cron="never")
        with pytest.raises(ValidationError, match="cron expression 'never'"):
            schedule.full_clean()

    def test_removed_it_is_gone_and_its_tasks_stay(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(name="a", due=True)
        dispatch_due()
        assert remove_schedule("a")
        assert not remove_schedule("a")
        assert Task.objects.count() == 1


class TestDispatch:
    def test_at_its_time_there_is_a_task(self, locks: LockManager) -> None:
        schedule = TaskScheduleFactory.create(
            due=True, args=["x"], exclusive=["r"], queue="bulk", priority=4
        )

        seconds = dispatch_due()

        task = Task.objects.get()
        assert (task.name, task.args, task.exclusive) == (schedule.function, ["x"], ["r"])
        assert (task.queue, task.priority) == ("bulk", 4)
        assert info(locks, task).state == "granted"
        found = present(schedule)
        assert found.last_task_id == task.pk
        assert found.last_run is not None
        assert seconds is not None
        assert 0 < seconds <= 60

    def test_before_its_time_there_is_none(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(next_run=timezone.now() + MINUTE)
        seconds = dispatch_due()
        assert seconds == pytest.approx(60, abs=20)
        assert not Task.objects.exists()

    def test_without_schedules_there_is_no_next_time(self, locks: LockManager) -> None:
        assert dispatch_due() is None

    def test_each_time_comes_to_one_task_however_many_look(self, locks: LockManager) -> None:
        for _ in range(5):
            TaskScheduleFactory.create(due=True)
        at_once(*[dispatch_due] * 6)
        assert Task.objects.count() == 5

    def test_times_that_were_missed_come_to_one_task(self, locks: LockManager) -> None:
        schedule = TaskScheduleFactory.create(
            next_run=timezone.now() - timedelta(days=3), skip_if_running=False
        )
        for _ in range(3):
            dispatch_due()
        assert Task.objects.count() == 1
        assert timedelta() < ahead(schedule) <= MINUTE

    def test_it_keeps_its_rhythm(self, locks: LockManager) -> None:
        due = timezone.now() - 5 * MINUTE - timedelta(seconds=10)
        schedule = TaskScheduleFactory.create(next_run=due)
        dispatch_due()
        assert present(schedule).next_run == due + 6 * MINUTE

    @pytest.mark.parametrize("state", State.incomplete())
    def test_a_time_is_left_out_while_the_task_before_is_incomplete(
        self, locks: LockManager, state: State
    ) -> None:
        schedule = TaskScheduleFactory.create(due=True, last_task=TaskFactory.create(state=state))
        dispatch_due()
        assert Task.objects.count() == 1
        assert ahead(schedule) > timedelta()

    def test_it_is_not_where_that_is_wanted_or_the_task_has_ended(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(due=True, last_task=TaskFactory.create(), skip_if_running=False)
        TaskScheduleFactory.create(due=True, last_task=TaskFactory.create(state=State.FAILED))
        dispatch_due()
        assert Task.objects.count() == 4

    def test_a_row_written_by_hand_gets_its_first_time(self, locks: LockManager) -> None:
        schedule = TaskScheduleFactory.create(next_run=None)
        dispatch_due()
        assert timedelta(seconds=30) < ahead(schedule) <= MINUTE
        assert not Task.objects.exists()

    def test_redis_may_be_away(self, no_redis: str) -> None:
        TaskScheduleFactory.create(due=True)
        dispatch_due()
        assert Task.objects.get().state == State.WAITING

    def test_a_number_of_them_is_one_step(
        self, locks: LockManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schedules, "_BATCH", 2)
        for _ in range(3):
            TaskScheduleFactory.create(due=True)
        assert dispatch_due() == 0
        assert Task.objects.count() == 2


class TestError:
    @pytest.fixture
    def broken(self) -> TaskSchedule:
        return TaskScheduleFactory.create(due=True, function="nowhere.at_all", name="broken")

    def test_it_stops_no_other(self, locks: LockManager, broken: TaskSchedule) -> None:
        TaskScheduleFactory.create(due=True)
        dispatch_due()
        assert Task.objects.count() == 1

    def test_it_is_told_and_the_next_time_is_tried(
        self, locks: LockManager, broken: TaskSchedule, caplog: pytest.LogCaptureFixture
    ) -> None:
        dispatch_due()
        assert "function 'nowhere.at_all' cannot be imported" in present(broken).last_error
        assert ahead(broken) > timedelta()
        assert "could not be dispatched" in caplog.text
        TaskSchedule.objects.update(
            next_run=timezone.now() - MINUTE, function="tests.testapp.tasks.add"
        )
        dispatch_due()
        assert present(broken).last_error == ""

    def test_one_without_a_next_time_is_tried_in_a_while(self, locks: LockManager) -> None:
        schedule = TaskScheduleFactory.create(due=True, interval=None, cron="never")
        dispatch_due()
        assert ahead(schedule) > timedelta(seconds=30)
        assert "cron expression 'never'" in present(schedule).last_error

    def test_a_crash_before_the_commit_leaves_the_time(
        self, locks: LockManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the task nor the next time is there without the other."""

        class Crash(BaseException):
            pass

        def crash(*args: Any, **options: Any) -> Task:
            original(*args, **options)
            raise Crash

        schedule = TaskScheduleFactory.create(due=True)
        original = dispatching.dispatch
        with monkeypatch.context() as patch:
            patch.setattr(dispatching, "dispatch", crash)
            with pytest.raises(Crash):
                dispatch_due()
        assert not Task.objects.exists()
        assert present(schedule).next_run == schedule.next_run
        dispatch_due()
        assert Task.objects.count() == 1


class TestTurn:
    def test_it_ends_with_the_time_of_the_next_look(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(next_run=timezone.now() + timedelta(seconds=4))
        locks.lead(JOB, "somebody", 60)
        schedules.work("somebody", linger=0)
        assert 0 < locks.lead_ends_in(JOB) <= 4

    def test_the_next_one_is_there_before_the_time(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(next_run=timezone.now() + timedelta(seconds=7))
        locks.lead(JOB, "somebody", 60)
        schedules.work("somebody", linger=4)
        assert 0 < locks.lead_ends_in(JOB) <= 5

    def test_somebody_looks_again_whatever_is_known(self, locks: LockManager) -> None:
        locks.lead(JOB, "somebody", 3600)
        schedules.work("somebody", linger=0)
        assert 0 < locks.lead_ends_in(JOB) <= schedules.longest_pause()

    def test_it_stays_for_what_comes_soon(self, locks: LockManager) -> None:
        TaskScheduleFactory.create(next_run=timezone.now() + timedelta(seconds=0.3))
        locks.lead(JOB, "somebody", 60)
        schedules.work("somebody", linger=2)
        assert Task.objects.count() == 1

    def test_it_says_nothing_about_a_time_that_has_changed_since(self, locks: LockManager) -> None:
        schedules.work("somebody", linger=0)
        assert locks.lead_ends_in(JOB) == 0

    def test_it_says_nothing_once_another_one_looks(self, locks: LockManager) -> None:
        locks.lead(JOB, "another", 3000)
        schedules.work("somebody", linger=0)
        schedules.work("somebody", linger=600)
        assert locks.lead_ends_in(JOB) > 2900


def test_the_zone_of_a_schedule_is_no_matter_of_the_worker(locks: LockManager) -> None:
    with pytest.raises(InvalidTask, match="time zone"):
        TaskScheduleFactory.build(cron="@daily", interval=None, time_zone="X").check_timing()
