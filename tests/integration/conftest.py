"""What tests find in the settings: a schedule, a database of another vendor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections

from delayed_queue.cron.keeper import CronEntry
from delayed_queue.cron.registry import crontab


@pytest.fixture
def weekly() -> Iterator[CronEntry]:
    """A schedule of code, whose payload tells the time it is made for."""
    entry = CronEntry(
        "reports", "weekly", "0 7 * * mon", "Europe/Bucharest",
        generator=lambda at: {"at": at.isoformat()}, declared_in="reports.ticks",
    )  # fmt: skip
    crontab.add(entry)
    yield entry
    crontab.remove(entry)


@pytest.fixture
def lite() -> Iterator[str]:
    """An alias that leads to SQLite."""
    connections.settings["lite"] = connections.configure_settings(
        {"default": {}, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["lite"]
    yield "lite"
    del connections.settings["lite"]
    del connections["lite"]
