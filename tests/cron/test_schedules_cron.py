"""Cron expressions by example: fields, names, horizons, refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count, islice, pairwise
from pathlib import Path

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_queue import CronSchedule
from delayed_queue.exceptions import InvalidConfiguration
from tests.cron.instants import MINUTE, SECOND, local, utc

_FIELDS = st.sampled_from(["*", "*/7", "5", "1-4", "3,1", "0", "l", "2-2", "9-2", "59/3", "5#2"])


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

    @pytest.mark.parametrize(
        ("expression", "times"),
        [
            ("5/15 * * * *", ["02-07 10:50", "02-07 11:05"]),
            ("59/15 * * * *", ["02-07 10:59", "02-07 11:59"]),
            ("0 23/6 * * *", ["02-07 23:00", "02-08 23:00"]),
            ("0 0 * * 6/2", ["02-14 00:00", "02-21 00:00"]),
            ("0 0 * * 7/2", ["02-08 00:00", "02-10 00:00"]),
            ("0 0 1 10/3 *", ["10-01 00:00"]),
            ("0 0 1 12/3 *", ["12-01 00:00"]),
            ("0 0 31/2 * *", ["03-31 00:00", "05-31 00:00"]),
            ("0 0 31 2 0", ["02-08 00:00", "02-15 00:00", "02-22 00:00"]),
            ("0 0 31 4 1", ["04-06 00:00", "04-13 00:00"]),
            ("0 0 30-2 * *", ["03-01 00:00", "03-02 00:00", "03-30 00:00"]),
            ("0 0 15w * *", ["02-16 00:00", "03-16 00:00", "04-15 00:00"]),
        ],
    )
    def test_c15_has_the_meaning_of_croniter_7(self, expression, times):
        """Expressions that earlier versions refused, or read differently."""
        found = CronSchedule(expression).times_after(utc("2026-02-07 10:37"))
        assert [each.strftime("%m-%d %H:%M") for each in islice(found, len(times))] == times

    def test_c15_no_other_croniter_may_be_installed(self):
        setup = (Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
        assert '"croniter>=7,<8"' in setup
        assert version("croniter").startswith("7.")

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
            ("* * * * *" + " " * 200_000, "at most 1,000 characters, not 200,009"),
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

    @given(
        st.lists(_FIELDS, min_size=5, max_size=6),
        st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001
    )
    def test_has_the_times_that_croniter_has(self, fields, wall):
        try:
            schedule = CronSchedule(" ".join(fields))
        except InvalidConfiguration:
            return
        ours = list(islice(schedule.times_after(wall.replace(tzinfo=UTC)), 30))
        theirs = croniter(schedule.canonical_expression, wall.replace(microsecond=0))
        assert ours == [theirs.get_next(datetime).replace(tzinfo=UTC) for _ in ours]

    @pytest.mark.parametrize(
        ("expression", "days"), [("* * * * *", 2), ("* * * * * *", 1), ("*/5 9-17 * * 1-5", 2)]
    )
    def test_asks_croniter_for_days_alone(self, expression, days, monkeypatch):
        schedule, calls = CronSchedule(expression), count()
        get_next = croniter.get_next
        monkeypatch.setattr(
            croniter, "get_next", lambda *given, **more: (next(calls), get_next(*given, **more))[1]
        )
        assert len(list(islice(schedule.times_after(utc("2026-02-09 23:58")), 90))) == 90
        assert next(calls) == days

    @settings(max_examples=settings().max_examples * 3)
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
