"""Ticks of a schedule: days of clock changes, expressions, missed ticks."""

from __future__ import annotations

from datetime import datetime, time
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from delayed_queue import CronSchedule, DailySchedule, DelayedQueue
from delayed_queue.cron.rules import MissedTicks, Schedule
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.testing import ManualClock
from tests.cron.contract.schedules import HOURLY, drained, payload_of, payloads_over
from tests.queue.contract.support import DAY, HOUR, MINUTE

ZONE = ZoneInfo("Europe/Bucharest")
# The clocks go from 03:00 to 04:00 on 31 March 2030, from 04:00 to 03:00 on 27 October.
SPRING = datetime(2030, 3, 30, tzinfo=ZONE)
AUTUMN = datetime(2030, 10, 26, tzinfo=ZONE)
# Never two in a row with the same minute of the hour.
STEP = 25 * MINUTE


def daily(*hours: str, **options: Any) -> DailySchedule:
    return DailySchedule(
        timezone=ZONE.key, hours=[time.fromisoformat(each) for each in hours], **options
    )


def cron(expression: str, **options: Any) -> CronSchedule:
    return CronSchedule(expression, timezone=ZONE.key, **options)


@pytest.mark.parametrize(
    ("schedule", "start", "local"),
    [
        (daily("03:30", "04:15"), SPRING, ["30 03:30", "30 04:15", "31 04:15", "31 04:30"]),
        (daily("03:30", "04:30"), SPRING, ["30 03:30", "30 04:30", "31 04:30"]),
        (
            daily("03:30", "04:15", fold="second"),
            AUTUMN,
            ["26 03:30", "26 04:15", "27 03:30", "27 04:15"],
        ),
        (daily("03:30", gap="skip"), SPRING, ["30 03:30"]),
        (cron("30 3 * * *"), SPRING, ["30 03:30", "31 04:30"]),
        (daily("03:30"), AUTUMN, ["26 03:30", "27 03:30"]),
        (cron("30 3 * * *"), AUTUMN, ["26 03:30", "27 03:30"]),
        (cron("30 3 * * *", fold="second"), AUTUMN, ["26 03:30", "27 03:30"]),
    ],
)
def test_c11_on_the_days_the_clocks_change_each_hour_runs_once(
    queue: DelayedQueue, clock: ManualClock, schedule: Schedule, start: datetime, local: list[str]
):
    clock.set(start)
    installer = queue.cron.installer("report", schedule, payload_of)

    payloads = payloads_over(queue, clock, installer, 2, STEP)

    found = [f"{datetime.fromisoformat(each).astimezone(ZONE):%d %H:%M}" for each in payloads]
    assert found == local


@pytest.mark.parametrize("start", [SPRING, AUTUMN])
def test_c11_interval_expressions_lose_nothing_and_gain_nothing(queue, clock, start):
    clock.set(start)
    installer = queue.cron.installer("report", cron("*/30 * * * *"), payload_of)

    payloads = payloads_over(queue, clock, installer, 2, STEP)

    times = [datetime.fromisoformat(each) for each in payloads]
    assert {later - earlier for earlier, later in pairwise(times)} == {30 * MINUTE}


def test_c12_expressions_of_five_and_six_fields_and_names(queue: DelayedQueue, clock: ManualClock):
    for number, expression in enumerate(["*/5 * * * *", "0 0 * * * 30", "@hourly"]):
        schedule = CronSchedule(expression)
        assert queue.cron.installer(f"n{number}", schedule, payload_of).run().created == 4


def test_c12_the_zone_of_the_settings_unless_it_names_one(queue: DelayedQueue, settings: Any):
    settings.TIME_ZONE = ZONE.key
    plain = queue.cron.installer("report", CronSchedule("30 3 * * *"), payload_of)
    named = queue.cron.installer("report", cron("30 3 * * *"), payload_of)
    assert plain.config_hash == named.config_hash


@pytest.mark.parametrize(
    ("policy", "cap", "hours"),
    [("latest", 100, [9]), ("skip", 100, []), ("all", 3, [7, 8, 9]), ("all", 100, [5, 6, 7, 8, 9])],
)
def test_c13_ticks_missed_while_nobody_was_up(queue, clock, policy, cap, hours):
    def installer() -> Any:
        return queue.cron.installer(
            "report", HOURLY, payload_of, missed=MissedTicks(policy), missed_cap=cap
        )

    assert installer().run().created == 4  # 01:00 to 04:00
    clock.advance(9 * HOUR + 30 * MINUTE)
    drained(queue)

    installer().run()

    envelopes = drained(queue)
    assert [each.scheduled_at.hour for each in envelopes] == hours
    assert [each.payload for each in envelopes] == [
        payload_of(each.scheduled_at) for each in envelopes
    ]
    installer().run()
    assert drained(queue) == []


def test_c13_what_was_taken_down_on_purpose_was_not_missed(queue: DelayedQueue, clock: ManualClock):
    installer = queue.cron.installer("report", HOURLY, payload_of)
    installer.run()
    queue.cron.uninstall_tick(installer.config_hash, "report")
    clock.advance(DAY)
    installer.run()
    assert drained(queue) == []


@pytest.mark.parametrize(("policy", "cap"), [("some", 100), ("all", 0)])
def test_c13_policies_that_are_refused(queue: DelayedQueue, policy: str, cap: int):
    with pytest.raises(InvalidConfiguration):
        queue.cron.installer("report", HOURLY, payload_of, missed=policy, missed_cap=cap)
