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

# A reading is used for this long, in seconds: a server's clock that was set counts from then on.
_TRUST_SECONDS: Final = 60.0

# For each alias: the milliseconds that the server's clock is ahead of the monotonic clock, and
# when that was read.
_readings: Final[dict[str, tuple[int, float]]] = {}


def read_clock(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return the database's instant, read now."""
    began = time.monotonic()
    now: int = repeat(using, lambda: _asked(using))
    _readings[using] = now - _milliseconds(began), began
    return from_milliseconds(now)


def database_now(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return the database's instant, read at most once a minute and counted on from then.

    For what happens often and bears a few milliseconds: a reading is late by its round trip.
    """
    ahead, read_at = _readings.get(using, (0, -_TRUST_SECONDS))
    moment = time.monotonic()
    if 0 <= moment - read_at < _TRUST_SECONDS:
        return from_milliseconds(ahead + _milliseconds(moment))
    return read_clock(using)


async def adatabase_now(using: str = DEFAULT_DB_ALIAS) -> datetime:
    """Return what ``database_now()`` does, in an event loop."""
    _, read_at = _readings.get(using, (0, -_TRUST_SECONDS))
    if 0 <= time.monotonic() - read_at < _TRUST_SECONDS:
        return database_now(using)
    return await sync_to_async(read_clock)(using)


def ago(span: timedelta, using: str = DEFAULT_DB_ALIAS) -> int:
    """Return the database's instant minus a span, in milliseconds; at least the first instant."""
    return max(to_milliseconds(read_clock(using)) - span // MILLISECOND, MIN_MILLISECONDS)


def _asked(using: str) -> int:
    connection: Any = connections[using]
    connection.ensure_connection()
    # Past Django's cursors: a test that counts the queries of a call must not count this one.
    with connection.wrap_database_errors:
        return int(connection.connection.execute(NOW, prepare=False).fetchone()[0])


def _milliseconds(moment: float) -> int:
    return int(moment * 1000)
