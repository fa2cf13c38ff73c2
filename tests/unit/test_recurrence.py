"""When something that repeats comes next; also where clocks are set forward and back."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from django_task_locks.exceptions import InvalidTask
from django_task_locks.recurrence import (
    next_cron,
    next_interval,
    validated_cron,
    validated_interval,
    validated_zone,
)

BERLIN = ZoneInfo("Europe/Berlin")  # 2026: +1 to +2 on March 29 at 2:00, back on October 25 at 3:00
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # by half an hour
NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def times(expression: str, zone: ZoneInfo, start: str, count: int) -> list[str]:
    """The next ones as the clocks of the zone show them, with the offset to UTC."""
    moment = datetime.fromisoformat(start)
    found = []
    for _ in range(count):
        later = next_cron(expression, zone, moment)
        assert later > moment
        moment = later
        found.append(f"{moment.astimezone(zone):%d %H:%M%z}".removesuffix("00"))
    return found


class TestInterval:
    def test_is_counted_from_the_time_before_and_not_from_now(self) -> None:
        assert next_interval(NOW, 60, NOW + timedelta(seconds=3)) == NOW + timedelta(seconds=60)

    def test_leaves_out_what_was_missed(self) -> None:
        late = NOW + timedelta(days=1, seconds=7)
        assert next_interval(NOW, 60, late) == NOW + timedelta(days=1, seconds=60)

    def test_at_the_time_itself_the_next_is_one_later(self) -> None:
        due = NOW + timedelta(seconds=60)
        assert next_interval(NOW, 60, due) == due + timedelta(seconds=60)

    def test_a_time_to_come_stays(self) -> None:
        assert next_interval(NOW, 60, NOW - timedelta(days=1)) == NOW

    @pytest.mark.parametrize("seconds", [1, 0.5 + 1, 86_400])
    def test_of_seconds_is_accepted(self, seconds: float) -> None:
        assert validated_interval(seconds, "s") == seconds

    @pytest.mark.parametrize("seconds", [0, -1, 0.9, True, "60", None, float("nan"), 10**9])
    def test_of_anything_else_is_refused(self, seconds: Any) -> None:
        with pytest.raises(InvalidTask, match=r"interval .* of s: seconds from 1 to"):
            validated_interval(seconds, "s")


class TestCron:
    def test_means_the_clocks_of_the_zone(self) -> None:
        assert times("30 9 * * 1", BERLIN, "2026-06-01T12:00+00:00", 2) == [
            "08 09:30+02",
            "15 09:30+02",
        ]

    def test_time_that_is_skipped_comes_later_that_day(self) -> None:
        assert times("30 2 * * *", BERLIN, "2026-03-28T00:00+00:00", 3) == [
            "28 02:30+01",
            "29 03:30+02",
            "30 02:30+02",
        ]

    def test_time_that_comes_twice_counts_once(self) -> None:
        assert times("30 2 * * *", BERLIN, "2026-10-24T12:00+00:00", 2) == [
            "25 02:30+02",
            "26 02:30+01",
        ]

    def test_every_hour_is_every_hour_that_passes(self) -> None:
        assert times("45 * * * *", BERLIN, "2026-10-24T23:50+00:00", 4) == [
            "25 02:45+02",
            "25 02:45+01",
            "25 03:45+01",
            "25 04:45+01",
        ]
        assert times("@hourly", BERLIN, "2026-03-29T00:30+00:00", 2) == [
            "29 03:00+02",
            "29 04:00+02",
        ]

    def test_every_few_minutes_goes_on_without_a_gap(self) -> None:
        moment = datetime(2026, 10, 24, 23, 3, tzinfo=UTC)
        for _ in range(60):
            later = next_cron("*/5 * * * *", BERLIN, moment)
            assert later - moment <= timedelta(minutes=5)
            assert later.minute % 5 == 0
            moment = later

    def test_goes_on_where_clocks_are_set_by_half_an_hour(self) -> None:
        found = times("15 2 * * *", LORD_HOWE, "2026-10-03T00:00+00:00", 2)
        assert found == ["04 02:45+11", "05 02:15+11"]

    def test_before_and_after_a_skipped_time_nothing_is_lost(self) -> None:
        assert times("59 2,3 * * *", BERLIN, "2026-03-28T20:00+00:00", 2) == [
            "29 03:59+02",
            "30 02:59+02",
        ]
        assert times("0,59 2,3 * * *", BERLIN, "2026-03-28T20:00+00:00", 3) == [
            "29 03:00+02",
            "29 03:59+02",
            "30 02:00+02",
        ]

    @pytest.mark.parametrize("expression", ["* * * * *", "0 0 29 2 *", "@daily", "0 9 * * mon-fri"])
    def test_expression_is_accepted(self, expression: str) -> None:
        assert validated_cron(expression, "s") == expression

    @pytest.mark.parametrize(
        "expression",
        [
            "",
            "x",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "0 0 31 2 *",
            "R R * * *",
            "@reboot",
            None,
            7,
        ],
    )
    def test_expression_without_a_time_is_refused(self, expression: Any) -> None:
        with pytest.raises(InvalidTask, match=r"cron expression .* of s: five fields"):
            validated_cron(expression, "s")

    def test_without_croniter_it_is_told_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "croniter", None)
        with pytest.raises(InvalidTask, match=r"pip install 'django-task-locks\[schedules\]'"):
            validated_cron("* * * * *", "s")


class TestZone:
    def test_has_a_name(self) -> None:
        assert validated_zone("Europe/Berlin", "s") == BERLIN

    def test_is_that_of_the_settings_by_default(self, settings: Any) -> None:
        settings.TIME_ZONE = "Asia/Kathmandu"
        assert str(validated_zone("", "s")) == "Asia/Kathmandu"

    @pytest.mark.parametrize("name", ["Nowhere/City", "../etc/passwd", 7, "\0"])
    def test_of_another_name_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidTask, match=r"time zone .* of s: a name such as"):
            validated_zone(name, "s")
