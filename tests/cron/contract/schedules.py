"""Schedules that a test runs step by step."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from delayed_queue import CronMessage, DelayedQueue, Envelope, PeriodicSchedule
from delayed_queue.cron.service import Installer
from delayed_queue.testing import ManualClock
from tests.queue.contract.support import DAY, HOUR, MINUTE

A, B = "a" * 32, "b" * 32
HOURLY = PeriodicSchedule(HOUR)


def payload_of(at: datetime) -> str:
    return at.isoformat()


def hourly(queue: DelayedQueue, config_hash: str = A, payload: Any = "tick") -> Installer:
    """Keeps the next two full hours installed, checking every ten minutes."""

    def messages(now: datetime) -> list[CronMessage]:
        hour = now.replace(minute=0, second=0, microsecond=0)
        return [CronMessage(payload, hour + each * HOUR) for each in (1, 2)]

    return Installer(queue.cron.ticks, "report", config_hash, 10 * MINUTE, messages)


def drained(queue: DelayedQueue) -> list[Envelope]:
    """Claim and acknowledge all due messages."""
    batch = queue.try_poll_many(1000)
    batch.acknowledge()
    return list(batch)


def payloads_over(
    queue: DelayedQueue, clock: ManualClock, installer: Installer, days: int, step: timedelta
) -> list[str]:
    """Run the installer and handle the due messages, step by step; return the payloads in order."""
    payloads = []
    for _ in range(days * DAY // step + 1):
        installer.run()
        payloads += [each.payload for each in drained(queue)]
        clock.advance(step)
    return payloads
