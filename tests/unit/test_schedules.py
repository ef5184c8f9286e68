"""Schedules by example: hashes, refusals, horizons, keys of ticks, missed ticks."""

from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, time, timedelta, timezone
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import delayed_queue
from delayed_queue import CronMessage, CronSchedule, DailySchedule, PeriodicSchedule
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.schedules import (
    MissedTicks,
    Schedule,
    check_config_hash,
    check_key_prefix,
    missed,
    tick_key,
)

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
MILLISECOND = timedelta(milliseconds=1)
MD5 = "4916474562628112070d240d515ba44d"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def daily(*hours, zone="UTC", ahead=timedelta(0), **policies) -> DailySchedule:
    times = [time.fromisoformat(each) for each in hours]
    return DailySchedule(timezone=zone, hours=times, schedule_in_advance=ahead, **policies)


def local(schedule: DailySchedule | CronSchedule, after: str, count: int) -> list[str]:
    """The next times on the zone's own wall clock, from an ISO instant with its offset."""
    times = islice(schedule.times_after(datetime.fromisoformat(after)), count)
    return [at.astimezone(schedule.zone).strftime("%d %H:%M%z") for at in times]


class TestHashes:
    def test_of_a_period(self):
        schedule = PeriodicSchedule(HOUR)
        assert schedule.canonical_text == "\nperiodic-tick:\n  period-ms: 3600000\n"
        assert schedule.config_hash == MD5
        assert PeriodicSchedule(HOUR, ticks_ahead=9).config_hash == MD5

    @pytest.mark.parametrize(
        ("hour", "text"),
        [
            (time(2), "02:00"),
            (time(14, 5), "14:05"),
            (time(14, 5, 9), "14:05:09"),
            (time(0, 0, 0, 500_000), "00:00:00.500"),
            (time(1, 2, 3, 40_000), "01:02:03.040"),
            (time(1, 2, 3, 4), "01:02:03.000004"),
            (time(23, 59, 59, 999_999), "23:59:59.999999"),
        ],
    )
    def test_prints_an_hour_with_no_more_than_is_set(self, hour, text):
        schedule = DailySchedule(timezone="UTC", hours=[hour])
        assert schedule.canonical_text == f"\ndaily-cron:\n  zone: UTC\n  hours: {text}\n"

    def test_of_days_keeps_the_given_order_of_hours(self):
        schedule = daily("18:00", "02:30", "18:00", zone="Europe/Bucharest")
        text = "\ndaily-cron:\n  zone: Europe/Bucharest\n  hours: 18:00, 02:30, 18:00\n"
        assert schedule.canonical_text == text
        assert schedule.config_hash == hashlib.md5(text.encode()).hexdigest()  # noqa: S324
        assert schedule.config_hash != daily("02:30", "18:00").config_hash

    def test_of_days_leaves_out_how_it_is_written_ahead(self):
        longer = DailySchedule("UTC", [time(2)], timedelta(days=9), timedelta(minutes=1))
        assert longer.config_hash == daily("02:00").config_hash

    def test_of_a_cron_expression(self):
        schedule = CronSchedule(" 0  9 * *\tMON-fri ", timezone="Europe/Paris")
        assert schedule.canonical_text == (
            "\ncron-expression:\n  zone: Europe/Paris\n  expression: 0 9 * * mon-fri\n"
        )

    def test_is_the_same_for_a_name_and_what_it_stands_for(self):
        assert CronSchedule("@Daily").config_hash == CronSchedule("0 0 * * *").config_hash

    def test_tells_policies_apart_and_leaves_out_the_default_ones(self):
        plain = CronSchedule("30 1 * * *")
        named = CronSchedule("30 1 * * *", gap="shift", fold="first")
        assert plain == named
        assert plain.config_hash == named.config_hash
        every = CronSchedule("*/5 * * * *")
        assert every.fold == "both"
        assert every == CronSchedule("*/5 * * * *", fold="both")
        schedules: list[Schedule] = [
            plain,
            every,
            CronSchedule("30 1 * * *", gap="skip"),
            CronSchedule("30 1 * * *", fold="second"),
            CronSchedule("30 1 * * *", timezone="Europe/Paris"),
            CronSchedule("*/5 * * * *", fold="first"),
            daily("01:30"),
            daily("01:30", gap="skip"),
            daily("01:30", fold="second"),
            daily("01:30", gap="skip", fold="second"),
            PeriodicSchedule(HOUR),
        ]
        assert len({each.config_hash for each in schedules}) == len(schedules)
        assert daily("01:30", gap="skip", fold="second").canonical_text.endswith(
            "  hours: 01:30\n  gap: skip\n  fold: second\n"
        )


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
            3600,
            None,
        ],
    )
    def test_refuses_periods_it_cannot_keep(self, period):
        with pytest.raises(ValueError, match="period must be") as caught:
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

    def test_keeps_every_hour_when_clocks_go_forward(self):
        both = daily("02:30", "03:15", zone="America/New_York")
        assert local(both, "2026-03-08T00:00-05:00", 3) == [
            "08 03:15-0400",
            "08 03:30-0400",
            "09 02:30-0400",
        ]
        skipping = daily("02:30", "03:15", zone="America/New_York", gap="skip")
        assert local(skipping, "2026-03-08T00:00-05:00", 2) == ["08 03:15-0400", "09 02:30-0400"]

    def test_makes_one_tick_of_hours_that_meet(self):
        meeting = daily("02:30", "03:30", zone="America/New_York")
        assert local(meeting, "2026-03-08T00:00-05:00", 2) == ["08 03:30-0400", "09 02:30-0400"]

    def test_runs_once_when_clocks_go_back(self):
        first = daily("01:30", zone="America/New_York")
        assert local(first, "2026-11-01T00:00-04:00", 2) == ["01 01:30-0400", "02 01:30-0500"]
        second = daily("01:30", zone="America/New_York", fold="second")
        assert local(second, "2026-11-01T00:00-04:00", 2) == ["01 01:30-0500", "02 01:30-0500"]

    @pytest.mark.parametrize("now", ["01:30-04:00", "01:45-04:00", "01:10-05:00", "01:40-05:00"])
    def test_is_never_in_the_past_within_the_hour_that_comes_twice(self, now):
        schedule = daily("01:30", zone="America/New_York")
        assert local(schedule, f"2026-11-01T{now}", 1) == ["02 01:30-0500"]

    def test_keeps_the_second_run_in_sight_from_within_the_first_hour(self):
        schedule = daily("01:30", zone="America/New_York", fold="second")
        assert local(schedule, "2026-11-01T01:45-04:00", 1) == ["01 01:30-0500"]

    def test_keeps_a_shifted_run_in_sight_after_the_change(self):
        schedule = daily("02:30", zone="America/New_York")
        assert local(schedule, "2026-03-08T03:05-04:00", 1) == ["08 03:30-0400"]

    def test_passes_the_day_that_samoa_left_out(self):
        schedule = daily("10:00", zone="Pacific/Apia")
        assert local(schedule, "2011-12-28T12:00-10:00", 3) == [
            "29 10:00-1000",
            "31 10:00+1400",
            "01 10:00+1400",
        ]

    def test_moves_half_an_hour_on_lord_howe(self):
        schedule = daily("02:15", zone="Australia/Lord_Howe")
        assert local(schedule, "2026-10-04T00:00+10:30", 2) == ["04 02:45+1100", "05 02:15+1100"]

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
            ({"schedule_interval": 60}, "schedule_interval"),
            ({"gap": "jump"}, "gap must be one of shift, skip"),
            ({"fold": "both"}, "fold must be one of first, second"),
        ],
    )
    def test_refuses_what_it_cannot_keep(self, wrong, reason):
        with pytest.raises(InvalidConfiguration, match=reason):
            DailySchedule(**{"timezone": "UTC", "hours": [time(2)], **wrong})


class TestCron:
    @pytest.mark.parametrize(
        ("expression", "first"),
        [
            ("*/5 * * * *", "2026-02-07 10:40"),
            ("0 9 * * mon-fri", "2026-02-09 09:00"),
            ("0 0 29 2 *", "2028-02-29 00:00"),
            ("0 12 l * *", "2026-02-28 12:00"),
            ("0 12 * * fri#2", "2026-02-13 12:00"),
            ("0 0 13 * 5", "2026-02-13 00:00"),
            ("0 22-2 * * *", "2026-02-07 22:00"),
            ("0 7 * * 7", "2026-02-08 07:00"),
            ("@hourly", "2026-02-07 11:00"),
            ("@daily", "2026-02-08 00:00"),
            ("@midnight", "2026-02-08 00:00"),
            ("@weekly", "2026-02-08 00:00"),
            ("@monthly", "2026-03-01 00:00"),
            ("@YEARLY", "2027-01-01 00:00"),
            # Six fields: the last is the second.
            ("* * * * * */10", "2026-02-07 10:37:50"),
            ("38 10 * * * 15", "2026-02-07 10:38:15"),
        ],
    )
    def test_gives_the_next_time(self, expression, first):
        assert CronSchedule(expression).next_times(utc("2026-02-07 10:37:42.5"))[0] == utc(first)

    @pytest.mark.parametrize("hour", ["5-5", "5-5/2", "5", "5,5-5"])
    def test_reads_a_range_of_one_value_as_that_value(self, hour):
        schedule = CronSchedule(f"0 {hour} * * *")
        assert schedule.next_times(utc("2026-02-07 05:00"))[0] == utc("2026-02-08 05:00")

    def test_is_strictly_after_now_and_the_next_four(self):
        assert CronSchedule("0 * * * *").next_times(utc("2026-02-07 10:00")) == [
            utc(f"2026-02-07 {hour}:00") for hour in (11, 12, 13, 14)
        ]

    @pytest.mark.parametrize("day", ["2026-02-07", "9000-02-07"])
    def test_fires_just_after_now(self, day):
        now = utc(f"{day} 09:59:59.999999")
        for expression in ("0 10 * * *", "0 10 * * * *"):
            assert CronSchedule(expression).next_times(now)[0] == utc(f"{day} 10:00")

    @pytest.mark.parametrize(
        ("expression", "interval", "count"),
        [
            ("* * * * *", MINUTE, 4),
            ("0 0 1 1 *", MINUTE, 4),
            ("* * * * * 30", MINUTE, 4),
            ("* * * * * *", 10 * SECOND, 20),
            ("* * * * * 0,30", 10 * SECOND, 4),
        ],
    )
    def test_is_written_ahead_past_the_next_check(self, expression, interval, count):
        schedule = CronSchedule(expression)
        now = utc("2026-02-07 10:00")
        assert schedule.interval == interval
        assert len(schedule.next_times(now)) == count
        assert schedule.next_times(now)[-1] >= now + 2 * interval

    def test_uses_its_zone(self):
        schedule = CronSchedule("0 9 * * *", timezone="Europe/Bucharest")
        assert schedule.next_times(utc("2026-07-10"))[0] == utc("2026-07-10 06:00")

    def test_runs_a_fixed_time_once_when_clocks_go_back(self):
        schedule = CronSchedule("30 1 * * *", timezone="America/New_York")
        assert schedule.fold == "first"
        assert local(schedule, "2026-10-31T12:00-04:00", 2) == ["01 01:30-0400", "02 01:30-0500"]
        second = CronSchedule("30 1 * * *", timezone="America/New_York", fold="second")
        assert local(second, "2026-10-31T12:00-04:00", 2) == ["01 01:30-0500", "02 01:30-0500"]

    def test_keeps_repeating_through_the_hour_that_comes_twice(self):
        schedule = CronSchedule("*/20 * * * *", timezone="America/New_York")
        assert local(schedule, "2026-11-01T00:50-04:00", 7) == [
            "01 01:00-0400",
            "01 01:20-0400",
            "01 01:40-0400",
            "01 01:00-0500",
            "01 01:20-0500",
            "01 01:40-0500",
            "01 02:00-0500",
        ]

    def test_pauses_in_it_when_told_to(self):
        schedule = CronSchedule("0 * * * *", timezone="America/New_York", fold="first")
        assert local(schedule, "2026-11-01T00:50-04:00", 2) == ["01 01:00-0400", "01 02:00-0500"]

    def test_does_not_pile_up_when_clocks_go_forward(self):
        schedule = CronSchedule("*/20 * * * *", timezone="America/New_York")
        assert local(schedule, "2026-03-08T01:30-05:00", 5) == [
            "08 01:40-0500",
            "08 03:00-0400",
            "08 03:20-0400",
            "08 03:40-0400",
            "08 04:00-0400",
        ]

    def test_runs_a_fixed_time_that_is_jumped_over(self):
        fixed = CronSchedule("30 2 * * *", timezone="America/New_York")
        assert local(fixed, "2026-03-08T00:00-05:00", 2) == ["08 03:30-0400", "09 02:30-0400"]
        skipping = CronSchedule("30 2 * * *", timezone="America/New_York", gap="skip")
        assert local(skipping, "2026-03-08T00:00-05:00", 1) == ["09 02:30-0400"]

    def test_loses_no_hour_beside_one_that_is_jumped_over(self):
        schedule = CronSchedule("15,30 2,3 * * *", timezone="America/New_York")
        assert local(schedule, "2026-03-08T00:00-05:00", 3) == [
            "08 03:15-0400",
            "08 03:30-0400",
            "09 02:15-0400",
        ]

    @pytest.mark.parametrize(
        ("expression", "reason"),
        [
            ("0 0 30 2 *", "never runs"),
            ("0 0 31 4,6,9,11 *", "never runs"),
            ("0 0 30 2 mon#5", "never runs"),
            ("60 * * * *", "out of range"),
            ("* 24 * * *", "out of range"),
            ("* * 0 * *", "out of range"),
            ("* * * 13 *", "out of range"),
            ("* * * * * 60", "out of range"),
            ("*/0 * * * *", "step '0'|not be zero"),
            ("-1 * * * *", "negative"),
            ("a b c d e", "Bad cron expression"),
            ("1,,2 * * * *", "Bad cron expression"),
            ("0 0 * * mon#6", "Invalid day_of_week"),
            ("", "five fields"),
            ("* * * *", "five fields"),
            ("* * * * * * 2026", "five fields"),
            ("@reboot", "@hourly"),
            ("@every 5m", "@hourly"),
            ("h * * * *", "hashed or random"),
            ("R(0-9) * * * *", "hashed or random"),
            ("* r/2 * * *", "hashed or random"),
            (None, "is a str"),
            (["*"] * 5, "is a str"),
        ],
    )
    def test_refuses_a_bad_expression_with_the_reason(self, expression, reason):
        with pytest.raises(ValueError, match=reason) as caught:
            CronSchedule(expression)
        assert caught.type is InvalidConfiguration

    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"timezone": "Mars/Olympus"}, "Unknown time zone"),
            ({"gap": ""}, "gap must be"),
            ({"fold": "third"}, "fold must be"),
            ({"fold": ""}, "fold must be"),
            ({"fold": "both"}, "would run '30 1 \\* \\* \\*' twice"),
            ({"ticks_ahead": 0}, "ticks_ahead"),
        ],
    )
    def test_refuses_what_it_cannot_keep(self, wrong, reason):
        with pytest.raises(InvalidConfiguration, match=reason):
            CronSchedule("30 1 * * *", **wrong)

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.text("0123456789*/-,#lLwW?hHrRmonMONfri", max_size=6), min_size=4, max_size=7)
        | st.lists(
            st.sampled_from(["*", "*/7", "5", "1-4", "30,31", "0", "l", "2", "?", "59/3"]),
            min_size=5,
            max_size=6,
        )
    )
    def test_takes_any_text_or_says_why_not(self, fields):
        try:
            schedule = CronSchedule(" ".join(fields), timezone="Europe/Paris")
        except InvalidConfiguration:
            return
        now = utc("2026-10-24 12:34:56.789")
        times = [now, *schedule.next_times(now)]
        assert len(times) >= 5
        assert all(earlier < later for earlier, later in pairwise(times))

    def test_refuses_hours_of_any_characters(self):
        for code in range(0x250):
            with pytest.raises(InvalidConfiguration):
                CronSchedule(f"0 {chr(code)}x * * *")


SCHEDULES = [
    PeriodicSchedule(HOUR),
    DailySchedule(timezone="Europe/Paris", hours=[time(2, 30), time(9)]),
    CronSchedule("*/5 * * * *", timezone="Europe/Paris"),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: type(each).__name__)
class TestAll:
    def test_is_immutable(self, schedule):
        for field in fields(schedule):
            with pytest.raises(FrozenInstanceError):
                setattr(schedule, field.name, 1)
            with pytest.raises(FrozenInstanceError):
                delattr(schedule, field.name)

    def test_is_equal_to_its_copies_and_can_be_a_key(self, schedule):
        twins = [copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))]  # noqa: S301
        assert twins == [schedule, schedule]
        assert {schedule, *twins} == {schedule}
        assert sum(schedule == other for other in SCHEDULES) == 1

    def test_prints_as_it_is_made(self, schedule):
        # repr() of datetime's values names their module.
        names = {**vars(delayed_queue.schedules), "datetime": sys.modules["datetime"]}
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


def test_years_of_missed_seconds_cost_no_more_than_the_last_ones():
    schedule = CronSchedule("* * * * * *", timezone="Europe/Paris")
    now = utc("2026-10-25 00:30")
    assert missed(schedule, utc("1990-01-01"), now) == [now]
    assert missed(schedule, utc("1990-01-01"), now, "all", 3) == [
        now - 2 * SECOND,
        now - SECOND,
        now,
    ]


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


class TestTicks:
    AT = utc("2024-02-07 16:00")

    def test_has_a_key_of_prefix_hash_and_milliseconds(self):
        assert tick_key("daily-report", "a3f5b9c7", self.AT) == (
            "daily-report/a3f5b9c7/1707321600000"
        )

    def test_has_the_same_key_in_any_zone_floored_to_milliseconds(self):
        elsewhere = self.AT.astimezone(timezone(timedelta(hours=-7)))
        finer = self.AT + timedelta(microseconds=999)
        assert tick_key("p", "h", elsewhere) == tick_key("p", "h", finer) == "p/h/1707321600000"
        assert tick_key("p", "h", utc("1969-12-31 23:59:59.9995")) == "p/h/-1"

    def test_has_a_key_that_fits(self):
        longest = "p" * (200 - 32 - 13 - 2)
        assert check_key_prefix(longest) == longest
        assert len(tick_key(longest, MD5, self.AT)) == 200
        for refuse in (
            lambda: check_key_prefix(longest + "p"),
            lambda: tick_key(longest + "p", MD5, self.AT),
            lambda: tick_key(longest, MD5, utc("2300-01-01")),
        ):
            with pytest.raises(InvalidConfiguration, match="at most 200"):
                refuse()

    @pytest.mark.parametrize("prefix", ["", " ", "\t\n", None, 7, "a\x00b", "\ud800"])
    def test_refuses_a_prefix_that_cannot_be_one(self, prefix):
        with pytest.raises(InvalidConfiguration, match="key prefix"):
            check_key_prefix(prefix)
        with pytest.raises(ValueError, match="key prefix"):
            tick_key(prefix, MD5, self.AT)

    @pytest.mark.parametrize("config_hash", ["", " ", "a/b", "/", None, "a\x00"])
    def test_refuses_a_hash_that_would_mix_up_keys(self, config_hash):
        with pytest.raises(InvalidConfiguration, match="configuration hash"):
            check_config_hash(config_hash)
        with pytest.raises(InvalidConfiguration, match="configuration hash"):
            tick_key("p", config_hash, self.AT)

    def test_takes_any_other_prefix_as_it_is(self):
        for prefix in ("job_report", "a%b", "daily/report", "ключ", " x "):
            assert tick_key(prefix, "h", self.AT) == f"{prefix}/h/1707321600000"

    @pytest.mark.parametrize("at", [None, datetime(2026, 1, 1), "now"])  # noqa: DTZ001
    def test_refuses_an_instant_without_a_zone(self, at):
        with pytest.raises(InvalidMessage):
            tick_key("p", "h", at)
        with pytest.raises(InvalidMessage, match="schedule_at"):
            CronMessage({}, at)

    def test_is_due_when_scheduled_unless_it_says_when(self):
        later = self.AT + HOUR
        assert CronMessage({"n": 1}, self.AT).due_at == self.AT
        assert CronMessage({"n": 1}, self.AT, deliver_at=later).due_at == later
        with pytest.raises(InvalidMessage, match="deliver_at of a tick"):
            CronMessage({}, self.AT, deliver_at=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidMessage, match="deliver_at of a tick"):
            CronMessage({}, self.AT, deliver_at="soon")  # type: ignore[arg-type]

    def test_is_immutable_and_comparable(self):
        message = CronMessage("payload", self.AT)
        assert message == CronMessage("payload", self.AT, None)
        assert len({message, CronMessage("payload", self.AT), CronMessage("other", self.AT)}) == 2
        with pytest.raises(FrozenInstanceError):
            message.payload = "other"  # type: ignore[misc]


def test_schedules_need_no_django():
    script = (
        "import sys\n"
        "from delayed_queue import CronMessage, CronSchedule, DailySchedule, PeriodicSchedule\n"
        "sys.exit(any(name.split('.')[0] == 'django' for name in sys.modules))"
    )
    root = Path(delayed_queue.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
