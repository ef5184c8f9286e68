"""O26: one way to write a duration, in settings, options, decorators, calls and requests."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from delayed_queue.conf import get_settings, section
from delayed_queue.cron.schedules import DailySchedule, PeriodicSchedule
from delayed_queue.declaring import handler
from delayed_queue.durations import LONGEST, check_duration, parse_duration, write_duration
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import Retry, Snooze, registry
from delayed_queue.management.arguments import duration
from delayed_queue.messages import check_delay
from delayed_queue.retries import Backoff, RetryPolicy
from delayed_queue.tasks.options import Options
from delayed_queue.tasks.policies import Policy
from delayed_queue.worker.options import WorkerOptions

NOON = time(12)
FIVE_MINUTES = timedelta(minutes=5)
FORMS = [FIVE_MINUTES, 300, 300.0, "300", "5m", "300s", "300000ms"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5), ("15s", 15), ("3m", 180), ("1.5h", 5400), ("2d", 172_800),
        ("1w", 604_800), ("0", 0), ("90", 90), ("1.5", 1.5), (2.5, 2.5), (-1, -1),
        (timedelta(hours=1), 3600),
    ],
    ids=repr,
)  # fmt: skip
def test_a_duration_has_three_forms(written: Any, seconds: float):
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        "", "-1s", "1 s", " 1s", "1S", "1h30m", "s", "1.s", ".5s", "1e3", "٣s", "9" * 60 + "s",
        "9" * 40 + "d", "15s 3m", "15min", "1s\n", "1y", True, None, [], math.nan, math.inf, 1e300,
    ],
    ids=lambda wrong: repr(wrong)[-20:],
)  # fmt: skip
def test_anything_else_is_refused(wrong: Any):
    with pytest.raises(InvalidConfiguration, match=r"duration"):
        parse_duration(wrong)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(days=14), "14d"), (timedelta(hours=36), "36h"), (FIVE_MINUTES, "5m"),
        (timedelta(seconds=90), "90s"), (timedelta(milliseconds=1), "1ms"), (timedelta(0), "0s"),
        (timedelta(microseconds=1), "0.000001s"),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_it_is_read(span: timedelta, text: str):
    assert write_duration(span) == text
    assert parse_duration(text) == span


def test_the_range_is_part_of_the_error():
    with pytest.raises(InvalidConfiguration) as caught:
        check_duration("The lease", timedelta(days=-1), least=timedelta(0))
    assert str(caught.value) == "The lease must be a duration from 0s to 3650d, not -1d."
    assert check_duration("The lease", LONGEST) == LONGEST


def decorated(value: Any) -> timedelta | None:
    handler("durations", lease=value)(print)
    found = registry.by_queue.pop("durations")
    return found.lease


PLACES = {
    "a snooze": lambda value: Snooze(value).delay,
    "its rest": lambda value: Snooze(0, rest=value).rest,
    "a retry": lambda value: Retry(value).delay,
    "a delay": lambda value: timedelta(milliseconds=check_delay(value, datetime.now(UTC)) or 0),
    "a decorator": decorated,
    "a ladder": lambda value: RetryPolicy.ladder([value]).delays[0],
    "a policy": lambda value: RetryPolicy((value,), 2).delays[0],
    "its maximum": lambda value: RetryPolicy.exponential("1d", maximum=value).delays[0],
    "a backoff": lambda value: Backoff(deadline=value).deadline,
    "a periodic schedule": lambda value: PeriodicSchedule(value).period,
    "a daily schedule": lambda value: (
        DailySchedule(hours=[NOON], schedule_interval=value).schedule_interval
    ),
    "an option of a worker": lambda value: WorkerOptions(poll_interval=value).poll_interval,
    "an option of tasks": lambda value: Options.of({"TIMEOUT": value}).timeout,
    "a task's policy": lambda value: timedelta(seconds=Policy(timeout=value).seconds_or(None) or 0),
}


@pytest.mark.parametrize("value", FORMS, ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_each_place_takes_each_form(place: str, value: Any):
    assert PLACES[place](value) == FIVE_MINUTES


@pytest.mark.parametrize("value", FORMS, ids=repr)
def test_settings_take_each_form(value: Any, settings: Any):
    settings.DELAYED_QUEUE = {
        "LEASE_DURATION": value, "DEAD_LETTER_RETENTION": "30d", "SAMPLE_RETENTION": None,
        "API": {"TOKEN_CACHE": value}, "CALLBACKS": {"TOTAL_TIMEOUT": value},
        "NOTIFICATIONS": {"LEASE": value},
    }  # fmt: skip
    assert get_settings().LEASE_DURATION == FIVE_MINUTES
    assert timedelta(days=30) == get_settings().DEAD_LETTER_RETENTION
    assert section("API").TOKEN_CACHE == FIVE_MINUTES
    assert section("CALLBACKS").TOTAL_TIMEOUT == FIVE_MINUTES
    assert section("NOTIFICATIONS").LEASE == FIVE_MINUTES


@pytest.mark.parametrize("text", ["300", "5m", "300s"])
def test_options_of_commands_take_each_form(text: str):
    assert duration("--lease", "").options["type"](text) == FIVE_MINUTES


def test_a_wrong_option_is_one_sentence():
    with pytest.raises(
        ArgumentTypeError, match="lease: '5 minutes' is not a duration: write seconds"
    ):
        duration("--lease", "").options["type"]("5 minutes")


def test_a_wrong_delay_is_a_wrong_message():
    with pytest.raises(InvalidMessage, match="not a duration"):
        check_delay("soon", datetime.now(UTC))
