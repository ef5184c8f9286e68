"""Wall clocks: from local times to instants, through the gaps and folds of a time zone.

Where clocks go forward, local times are missing (a gap); where they go back, local times come
twice (a fold). The two are told apart by reading a wall time both ways (PEP 495): before and
after the change. The readings agree outside of changes, the first is the later one in a gap,
and the earlier one in a fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from delayed_queue.exceptions import InvalidConfiguration

Gap = Literal["shift", "skip"]
Fold = Literal["first", "second", "both"]

NO_ZONES: Final = "there is no time zone database here: install the Python package tzdata."
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_PROBE: Final = timedelta(hours=12)
# Two hours more than the longest change there is: Samoa left out a whole day in 2011.
_NEAR: Final = [timedelta(hours=hour) for hour in range(-26, 27)]


def check_instant(what: str, value: datetime) -> datetime:
    """Return the instant in UTC, or refuse a naive one and years too near the calendar's ends."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidConfiguration(f"{what} must be an aware datetime, not {value!r}.")
    if not 1 < value.year < 9900:
        raise InvalidConfiguration(f"{what} must lie in the years 2 to 9899, not {value!r}.")
    return value.astimezone(UTC)


def load_zone(name: str) -> ZoneInfo:
    """Return the time zone of this IANA name, or refuse a name the tz database lacks."""
    if not isinstance(name, str) or not name:
        raise InvalidConfiguration(f"A time zone is an IANA name, not {name!r}.")
    try:
        return ZoneInfo(name)
    # Not found is a KeyError, a path outside the database a ValueError, a folder an OSError.
    except (KeyError, ValueError, OSError) as error:
        hint = "write an IANA name such as 'Europe/Bucharest'." if has_zones() else NO_ZONES
        raise InvalidConfiguration(f"Unknown time zone {name!r}: {hint}") from error


def has_zones() -> bool:
    """Return whether Python finds a time zone database, which slim images lack."""
    try:
        ZoneInfo("UTC")  # which every one has
    except ZoneInfoNotFoundError:
        return False
    return True


def instants(walls: Iterable[datetime], zone: ZoneInfo, gap: Gap, fold: Fold) -> Iterator[datetime]:
    """Yield the instants of ascending wall times, ascending and each once, in UTC.

    A wall time of a gap is read as before the change (``shift``: 02:30 becomes 03:30) or left
    out (``skip``); one of a fold gives its first instant, its second, or both.
    """
    last = _EVER
    pending: list[datetime] = []
    for wall in walls:
        first, second = _reading(wall, zone, 0), _reading(wall, zone, 1)
        for each in _chosen(first, second, gap, fold):
            heappush(pending, each)
        # No later wall time can come earlier than this one's earlier reading. In a gap that is
        # the reading after the change, which lies before it, where every later one does not;
        # elsewhere it is the first, and first readings fall back only at the end of a gap.
        while pending and pending[0] <= min(first, second):
            at = heappop(pending)
            if at > last:
                yield (last := at)
    yield from sorted(each for each in set(pending) if each > last)


def _reading(wall: datetime, zone: ZoneInfo, fold: int) -> datetime:
    at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    # The queue keeps milliseconds: a finer instant would come back as an earlier one, and a
    # tick after it would be the same tick again.
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def _chosen(first: datetime, second: datetime, gap: Gap, fold: Fold) -> tuple[datetime, ...]:
    if first > second:
        return (first,) if gap == "shift" else ()
    if fold == "first" or first == second:
        return (first,)
    return (second,) if fold == "second" else (first, second)


def wall_before(at: datetime, zone: ZoneInfo) -> datetime:
    """Return a wall time such that no wall time up to it has an instant after ``at``.

    It is the local time itself except near a change, where it lies as much earlier as the
    clocks move: a wall time is its instant plus one of the offsets in use around it.
    """
    return (at + min(_offset(at + near, zone) for near in _NEAR)).replace(tzinfo=None)


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).replace(tzinfo=UTC) - at


def next_clock_change(
    timezone: str, after: datetime, within: timedelta = timedelta(days=400)
) -> datetime | None:
    """Return the first instant after ``after`` at which the zone's clocks jump, or None."""
    zone = load_zone(timezone)
    low = check_instant("after", after).replace(microsecond=0)
    end = low + within
    while low < end:
        high = low + _PROBE
        if _offset(low, zone) != _offset(high, zone):
            return _change_between(low, high, zone)
        low = high
    return None


def _change_between(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    before = _offset(low, zone)
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if _offset(middle, zone) == before:
            low = middle
        else:
            high = middle
    return high
