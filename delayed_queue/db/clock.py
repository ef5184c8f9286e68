"""The database's clock: the clock of a host may be wrong by days."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from delayed_queue.db.resilience import repeat
from delayed_queue.db.sql import NOW
from delayed_queue.messages import MILLISECOND, MIN_MILLISECONDS, from_milliseconds, to_milliseconds

# Seconds for which a reading is used: then a change of the server's clock takes effect.
_TRUST_SECONDS: Final = 60.0
# For each alias: the milliseconds that the server's clock is ahead of the monotonic clock, and
# when it was read.
_readings: Final[dict[str, tuple[int, float]]] = {}


def read_clock(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return the database's instant, read now."""
    began = time.monotonic()
    now: int = repeat(using, lambda: _fetch_now(using))
    _readings[using] = now - int(began * 1000), began
    return from_milliseconds(now)


def database_now(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return the database's instant, read at most once a minute.

    It may be late by the round trip of that reading.
    """
    return _recent(using) or read_clock(using)


async def adatabase_now(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return what ``database_now()`` does, in an event loop."""
    return _recent(using) or await sync_to_async(read_clock)(using)


def ago(span: timedelta, using: str = DEFAULT_DB_ALIAS) -> int:
    """Return the database's instant minus a span, in milliseconds; at least the first instant."""
    return max(to_milliseconds(read_clock(using)) - span // MILLISECOND, MIN_MILLISECONDS)


def _recent(using: str) -> datetime | None:
    ahead, read_at = _readings.get(using, (0, -_TRUST_SECONDS))
    moment = time.monotonic()
    if not 0 <= moment - read_at < _TRUST_SECONDS:
        return None
    return from_milliseconds(ahead + int(moment * 1000))


def _fetch_now(using: str) -> int:
    connection: Any = connections[using]
    connection.ensure_connection()
    # Not by Django's cursors: tests of users that count queries must not count this one.
    with connection.wrap_database_errors:
        return int(connection.connection.execute(NOW, prepare=False).fetchone()[0])
