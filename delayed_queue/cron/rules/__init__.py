"""Schedules: when the ticks of a cron expression, a daily or a periodic schedule are due.

Pure functions of the instant they are given: no database, no clock of their own, no Django.
Instants come back in UTC, on whole milliseconds, as the queue stores them.
"""

from __future__ import annotations

from delayed_queue.cron.rules.base import (
    Fold,
    Gap,
    Schedule,
    ZonedSchedule,
    has_zones,
    load_zone,
    next_clock_change,
)
from delayed_queue.cron.rules.daily import DailySchedule
from delayed_queue.cron.rules.expressions import MAX_EXPRESSION, CronSchedule
from delayed_queue.cron.rules.periodic import PeriodicSchedule
from delayed_queue.cron.rules.ticks import (
    CronMessage,
    MissedTicks,
    check_config_hash,
    check_key_prefix,
    missed,
    tick_key,
)

__all__ = [
    "MAX_EXPRESSION",
    "CronMessage",
    "CronSchedule",
    "DailySchedule",
    "Fold",
    "Gap",
    "MissedTicks",
    "PeriodicSchedule",
    "Schedule",
    "ZonedSchedule",
    "check_config_hash",
    "check_key_prefix",
    "has_zones",
    "load_zone",
    "missed",
    "next_clock_change",
    "tick_key",
]
