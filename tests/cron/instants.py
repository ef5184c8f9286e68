"""Instants and schedules, in the short forms that tests of schedules use."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import islice

from delayed_queue import CronSchedule, DailySchedule

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
    """Return the next times on the zone's wall clock, from an ISO instant with an offset."""
    times = islice(schedule.times_after(datetime.fromisoformat(after)), count)
    return [at.astimezone(schedule.zone).strftime("%d %H:%M%z") for at in times]
