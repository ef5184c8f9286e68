"""Local times of recipients: a local ``sendAt``, and quiet hours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import NamedTuple, Self
from zoneinfo import ZoneInfo

from delayed_queue.cron.rules import instants, load_zone


def next_local(wall: str, zone: ZoneInfo, after: datetime) -> datetime:
    """Return when the local time comes next, not before that instant."""
    days = _around(wall, zone, after.astimezone(zone).date())
    return next(each for each in days if each >= after)


# Cached, because most requests of a day are for the same few times and zones.
@lru_cache(maxsize=4096)
def _around(wall: str, zone: ZoneInfo, day: date) -> Sequence[datetime]:
    """Return the instants of a local time near a day: in a gap later, in a fold the first."""
    # A zone may skip a day, so look two days ahead.
    clock = time.fromisoformat(wall)
    walls = (datetime.combine(day + timedelta(days=each), clock) for each in range(-2, 4))
    return list(instants(walls, zone, "shift", "first"))


class Quiet(NamedTuple):
    """Hours of the day in which a recipient gets nothing but urgent notifications."""

    start: str
    end: str
    zone: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the hours of a stored text."""
        return cls(*text.split(" "))

    def __str__(self) -> str:
        return " ".join(self)

    def until(self, at: datetime) -> datetime | None:
        """Return when the quiet hours around an instant end; None if it is outside."""
        zone = load_zone(self.zone)
        days = _around(self.start, zone, at.astimezone(zone).date())
        started = max(each for each in days if each <= at)
        end = next_local(self.end, zone, started + timedelta.resolution)
        return end if at < end else None
