"""Ticks by example: their hashes and keys, and missed ones."""

from __future__ import annotations

import hashlib
from datetime import datetime, time, timedelta, timezone

import pytest

from delayed_queue import CronMessage, CronSchedule, DailySchedule, PeriodicSchedule
from delayed_queue.cron.rules import Schedule, check_config_hash, check_key_prefix, missed, tick_key
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from tests.cron.instants import HOUR, MD5, SECOND, daily, utc


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


def test_years_of_missed_seconds_cost_no_more_than_the_last_ones():
    schedule = CronSchedule("* * * * * *", timezone="Europe/Paris")
    now = utc("2026-10-25 00:30")
    assert missed(schedule, utc("1990-01-01"), now) == [now]
    assert missed(schedule, utc("1990-01-01"), now, "all", 3) == [
        now - 2 * SECOND,
        now - SECOND,
        now,
    ]


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
