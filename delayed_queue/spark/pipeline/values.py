"""Values of records: JSON, instants, durations and cells of CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from delayed_queue.durations import check_duration
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import check_schedule, from_milliseconds, to_milliseconds

_CLIPPED: Final = 40
# Seconds since 1970, taken for milliseconds, are instants before this until the year 22000.
_SUSPECT: Final = to_milliseconds(datetime(1990, 1, 1, tzinfo=UTC))
_MAYBE_SECONDS: Final = (
    "schedule_at is a number before 1990 in milliseconds, so it may be in seconds. It was not "
    "offered. Write milliseconds, or an instant by ISO 8601."
)
_NO_ZONE: Final = (
    "schedule_at has no time zone: write it with an offset, as in 2026-11-22T09:00:00+01:00, or "
    "pass --time-zone for all of them, as in Europe/Berlin."
)


def instant_of(value: Any) -> datetime:
    """Return the instant of a value, with its offset if it has one."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if type(value) is int or (isinstance(value, str) and value.lstrip("-").isdecimal()):
        return _from_milliseconds(int(value))
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidMessage(
            f"schedule_at {_clip(value)} is no instant: write ISO 8601 with an offset, or "
            "milliseconds since 1970."
        ) from None


def _from_milliseconds(milliseconds: int) -> datetime:
    """Return the instant; refuse a number that may count seconds."""
    if milliseconds < _SUSPECT:
        raise InvalidMessage(_MAYBE_SECONDS)
    found = from_milliseconds(milliseconds)
    if check_schedule(found) != milliseconds:
        raise InvalidMessage(f"schedule_at {milliseconds} is outside the years 1 to 9999.")
    return found


def placed(instant: datetime, zone: ZoneInfo | None) -> datetime:
    """Return the instant with its own offset, or that of the zone."""
    if instant.utcoffset() is not None:
        return instant
    if zone is None:
        raise InvalidMessage(_NO_ZONE)
    found = instant.replace(tzinfo=zone)
    if found.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != instant:
        raise InvalidMessage(
            f"schedule_at is an hour that {zone.key} skips when clocks are put forward."
        )
    return found


def duration_of(value: Any) -> timedelta:
    """Return a delay of 0 or more."""
    try:
        return check_duration("delay", value, most=timedelta.max)
    except InvalidConfiguration as error:
        raise InvalidMessage(str(error)) from None


def _clip(value: Any) -> str:
    return repr(value)[:_CLIPPED]


def is_deeper(value: Any, most: int) -> bool:
    """Return whether containers are nested deeper than that, without recursion."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _children(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
