"""Fixtures of the admin tests: a schedule declared in code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delayed_queue.cron.keeper import CronEntry
from delayed_queue.cron.registry import crontab


@pytest.fixture
def weekly() -> Iterator[CronEntry]:
    """A schedule declared in code; its payload holds the time of its tick."""
    entry = CronEntry(
        "reports", "weekly", "0 7 * * mon", "Europe/Bucharest",
        generator=lambda at: {"at": at.isoformat()}, declared_in="reports.ticks",
    )  # fmt: skip
    crontab.add(entry)
    yield entry
    crontab.remove(entry)
