"""Schedules by example: periods, days, and their common rules."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, time, timedelta, timezone
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import delayed_queue.cron.schedules
from delayed_queue import CronSchedule, DailySchedule, PeriodicSchedule
from delayed_queue.cron.rules import MissedTicks, missed
from delayed_queue.exceptions import InvalidConfiguration
from tests.cron.instants import HOUR, MILLISECOND, SECOND, daily, utc


class TestPeriodic:
    def test_is_aligned_to_the_epoch(self):
        assert PeriodicSchedule(HOUR).next_times(utc("2026-02-07 10:37:42.123")) == [
            utc(f"2026-02-07 {hour}:00") for hour in (11, 12, 13, 14)
        ]

    def test_is_strictly_in_the_future(self):
        on_time = utc("2026-02-07 11:00")
        schedule = PeriodicSchedule(HOUR)
        assert schedule.next_times(on_time)[0] == on_time + HOUR
        assert schedule.next_times(on_time - timedelta(microseconds=1))[0] == on_time

    def test_reads_now_of_any_zone(self):
        now = datetime(2026, 2, 7, 10, 40, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        (first, *_) = PeriodicSchedule(HOUR).next_times(now)
        assert (first, first.tzinfo) == (utc("2026-02-07 06:00"), UTC)

    def test_is_aligned_before_the_epoch(self):
        (first, *_) = PeriodicSchedule(timedelta(days=7)).next_times(utc("1969-12-30 00:00"))
        assert first == utc("1970-01-01 00:00")

    @given(
        st.integers(1, 10**10),
        st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
    )
    def test_is_a_multiple_of_the_period_at_most_one_period_off(self, milliseconds, now):
        now = now.replace(tzinfo=UTC)
        period = timedelta(milliseconds=milliseconds)
        first, second, *_ = PeriodicSchedule(period).next_times(now)
        assert now < first <= now + period
        assert second - first == period
        assert (first - utc("1970-01-01")) % period == timedelta(0)

    @pytest.mark.parametrize(
        ("period", "interval", "count"),
        [
            (HOUR, timedelta(minutes=15), 4),
            (4 * SECOND, SECOND, 4),
            (SECOND, SECOND, 4),
            (100 * MILLISECOND, SECOND, 20),
        ],
    )
    def test_is_written_ahead_past_the_next_check(self, period, interval, count):
        schedule = PeriodicSchedule(period)
        now = utc("2026-02-07 10:37:42")
        assert schedule.interval == interval
        assert len(schedule.next_times(now)) == count
        assert schedule.next_times(now)[-1] >= now + 2 * interval

    def test_writes_ahead_as_many_as_asked(self):
        assert len(PeriodicSchedule(HOUR, ticks_ahead=24).next_times(utc("2026-02-07"))) == 24

    @pytest.mark.parametrize(
        "period",
        [
            timedelta(0),
            -HOUR,
            timedelta(microseconds=999),
            timedelta(milliseconds=1, microseconds=500),
            timedelta(days=9999),
            "soon",
            None,
        ],
    )
    def test_refuses_periods_it_cannot_keep(self, period):
        with pytest.raises(ValueError, match="period") as caught:
            PeriodicSchedule(period)
        assert caught.type is InvalidConfiguration

    @pytest.mark.parametrize("count", [0, -1, 1001, 2.0, True, None])
    def test_refuses_a_bad_number_of_ticks(self, count):
        with pytest.raises(InvalidConfiguration, match="ticks_ahead"):
            PeriodicSchedule(HOUR, ticks_ahead=count)


class TestDaily:
    def test_gives_the_window_after_now(self):
        schedule = daily("18:00", "02:00", "18:00", ahead=timedelta(days=2))
        assert schedule.next_times(utc("2026-02-07 02:00")) == [
            utc("2026-02-07 18:00"),
            utc("2026-02-08 02:00"),
            utc("2026-02-08 18:00"),
            utc("2026-02-09 02:00"),
        ]

    def test_gives_at_least_one_beyond_the_window(self):
        now = utc("2026-02-07 02:00")
        assert daily("02:00", ahead=HOUR).next_times(now) == [utc("2026-02-08 02:00")]
        assert daily("02:00").next_times(now) == [utc("2026-02-08 02:00")]

    def test_writes_four_days_ahead_every_six_hours_by_default(self):
        schedule = DailySchedule(timezone="UTC", hours=[time(2)])
        assert schedule.interval == timedelta(hours=6)
        assert schedule.next_times(utc("2026-02-07 12:00")) == [
            utc(f"2026-02-{day:02} 02:00") for day in (8, 9, 10, 11)
        ]

    def test_moves_with_the_zone(self):
        schedule = daily("09:00", zone="Europe/Bucharest")
        assert schedule.next_times(utc("2026-01-10")) == [utc("2026-01-10 07:00")]
        assert schedule.next_times(utc("2026-07-10")) == [utc("2026-07-10 06:00")]

    def test_gives_whole_milliseconds_as_the_queue_keeps_them(self):
        schedule = daily("12:00:00.123456")
        (tick,) = schedule.next_times(utc("2026-02-07"))
        assert tick == utc("2026-02-07 12:00:00.123")
        assert schedule.next_times(tick) == [tick + timedelta(days=1)]

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"hours": []}, "at least one"),
            ({"hours": None}, "at least one"),
            ({"hours": "02:30"}, "at least one"),
            ({"hours": ["02:30"]}, "An hour is a datetime.time"),
            ({"hours": [time(2, tzinfo=UTC)]}, "without a zone"),
            ({"timezone": "Mars/Olympus"}, "Unknown time zone 'Mars/Olympus'"),
            ({"timezone": "../etc/passwd"}, "Unknown time zone"),
            ({"timezone": "Europe"}, "Unknown time zone"),
            ({"timezone": ""}, "IANA name"),
            ({"timezone": UTC}, "IANA name"),
            ({"schedule_in_advance": -SECOND}, "schedule_in_advance"),
            ({"schedule_interval": timedelta(0)}, "schedule_interval"),
            ({"schedule_interval": -HOUR}, "schedule_interval"),
            ({"schedule_interval": timedelta(microseconds=999)}, "schedule_interval"),
            ({"schedule_interval": "soon"}, "schedule_interval"),
            ({"gap": "jump"}, "gap must be one of shift, skip"),
            ({"fold": "both"}, "fold must be one of first, second"),
        ],
    )
    def test_refuses_what_it_cannot_keep(self, wrong, reason):
        with pytest.raises(InvalidConfiguration, match=reason):
            DailySchedule(**{"timezone": "UTC", "hours": [time(2)], **wrong})


SCHEDULES = [
    PeriodicSchedule(HOUR),
    DailySchedule(timezone="Europe/Paris", hours=[time(2, 30), time(9)]),
    CronSchedule("*/5 * * * *", timezone="Europe/Paris"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: type(each).__name__)
class TestAll:
    def test_prints_as_it_is_made(self, schedule):
        # repr() of datetime's values names their module.
        names = {**vars(delayed_queue.cron.schedules), "datetime": sys.modules["datetime"]}
        assert eval(repr(schedule), names) == schedule  # noqa: S307

    def test_refuses_a_now_without_a_zone(self, schedule):
        naive = datetime(2026, 2, 7)  # noqa: DTZ001
        for wrong in (naive, None, naive.date(), 0):
            with pytest.raises(InvalidConfiguration, match="now must be an aware datetime"):
                schedule.next_times(wrong)
        with pytest.raises(InvalidConfiguration, match="years 2 to 9899"):
            schedule.next_times(datetime.max.replace(tzinfo=UTC))

    @pytest.mark.parametrize("now", ["0002-01-01", "1890-06-01", "9899-12-31"])
    def test_works_at_the_ends_of_the_calendar(self, schedule, now):
        assert schedule.next_times(utc(now))[0] > utc(now)

    def test_lists_the_times_between_two_instants(self, schedule):
        after = utc("2026-02-07 01:00")
        times = list(islice(schedule.times_after(after), 7))
        until = times[4]
        assert schedule.times_between(after, until, 100) == times[:5]
        assert schedule.times_between(times[0], until, 100) == times[1:5]
        assert schedule.times_between(after, until, 2) == times[:2]
        assert schedule.times_between(until, until, 2) == []
        assert schedule.times_between(until, after, 2) == []
        assert schedule.latest_between(after, until, 2) == times[3:5]
        assert schedule.latest_between(after, until, 100) == times[:5]
        assert schedule.latest_between(until, after, 2) == []
        with pytest.raises(InvalidConfiguration, match="limit"):
            schedule.times_between(after, until, 0)

    def test_gives_what_was_missed_by_policy(self, schedule):
        times = list(islice(schedule.times_after(utc("2026-02-07 01:00")), 6))
        mark, now = times[0], times[5] - SECOND
        assert missed(schedule, mark, now) == [times[4]]
        assert missed(schedule, mark, now, MissedTicks.SKIP) == []
        assert missed(schedule, mark, now, "skip") == []
        assert missed(schedule, mark, now, "all") == times[1:5]
        assert missed(schedule, mark, now, MissedTicks.ALL, cap=3) == times[2:5]
        # A tick due this very moment is missed: next_times() starts after it.
        assert missed(schedule, mark, times[5]) == [times[5]]

    def test_has_missed_nothing_without_an_earlier_tick(self, schedule):
        now = utc("2026-02-07 01:02:03")
        next_one = schedule.next_times(now)[0]
        for mark in (None, now, now + timedelta(days=1), next_one):
            assert missed(schedule, mark, now, "all") == []

    def test_refuses_other_policies(self, schedule):
        now = utc("2026-02-07")
        for policy in ("some", "", "ALL"):
            with pytest.raises(InvalidConfiguration, match="missed ticks"):
                missed(schedule, now - HOUR, now, policy)
        for cap in (0, -1, True):
            with pytest.raises(InvalidConfiguration, match="cap"):
                missed(schedule, now - HOUR, now, cap=cap)


def test_a_default_zone_is_for_schedules_without_one():
    loose = CronSchedule("0 9 * * *")
    assert loose.timezone_name == "UTC"
    paris = loose.with_default_timezone("Europe/Paris")
    assert paris == CronSchedule("0 9 * * *", timezone="Europe/Paris")
    assert paris.with_default_timezone("Asia/Tokyo") is paris
    hours = DailySchedule(hours=[time(9)])
    assert hours.with_default_timezone("Asia/Tokyo").canonical_text.startswith(
        "\ndaily-cron:\n  zone: Asia/Tokyo\n"
    )
    with pytest.raises(InvalidConfiguration, match="Unknown time zone"):
        loose.with_default_timezone("Mars/Olympus")


def test_schedules_need_no_django():
    script = (
        "import sys\n"
        "from delayed_queue import CronMessage, CronSchedule, DailySchedule, PeriodicSchedule\n"
        "sys.exit(any(name.split('.')[0] == 'django' for name in sys.modules))"
    )
    root = Path(delayed_queue.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
