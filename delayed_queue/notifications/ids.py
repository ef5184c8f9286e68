"""Ids of notifications: UUIDs of version 7, in the order in which a process makes them."""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Final

_COUNTER_BITS: Final = 42
_lock: Final = threading.Lock()
_last = 0


def new_id() -> uuid.UUID:
    """Return a UUID of version 7, greater than every one this process has made before.

    48 bits of milliseconds, then a counter that starts at random in each millisecond, then 32
    random bits: they sort by time, tell nothing of how many there are, and cannot be guessed.
    """
    global _last
    now = time.time_ns() // 1_000_000
    # The top bit of the counter starts at 0, so that a millisecond has room for 2**41 more.
    fresh = (now << _COUNTER_BITS) | (int.from_bytes(os.urandom(6), "big") >> 7)
    with _lock:
        # A clock set back leaves ids in order: they go on from the last.
        _last = moment = max(fresh, _last + 1)
    return _assemble(moment, int.from_bytes(os.urandom(4), "big"))


def _assemble(moment: int, tail: int) -> uuid.UUID:
    """Lay out RFC 9562: milliseconds, version, 12 bits, variant, 30 bits, 32 random bits."""
    milliseconds, counter = moment >> _COUNTER_BITS, moment & ((1 << _COUNTER_BITS) - 1)
    high = (milliseconds << 16) | (7 << 12) | (counter >> 30)
    low = (0b10 << 62) | ((counter & ((1 << 30) - 1)) << 32) | tail
    return uuid.UUID(int=(high << 64) | low)


def first_id_at(at: datetime) -> uuid.UUID:
    """Return an id that sorts before all that were made at that time or later."""
    milliseconds = int(at.timestamp() * 1000)
    return uuid.UUID(int=(milliseconds << 80) | (7 << 76) | (0b10 << 62))


def time_of(id_: uuid.UUID) -> datetime:
    """Return when an id was made, to the millisecond."""
    return datetime.fromtimestamp((id_.int >> 80) / 1000, tz=UTC)
