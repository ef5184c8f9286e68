"""The base of all schedules: the next times, the missed ones, and the ticks made of them.

Pure functions of the given instant: no database, no clock, no Django. Instants are returned in UTC,
in whole milliseconds, as the queue stores them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import MAX_KEY_LENGTH, check_schedule, check_text

Gap = Literal["shift", "skip"]
Fold = Literal["first", "second", "both"]

NO_ZONES: Final = "there is no time zone database here: install the Python package tzdata."
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_PROBE: Final = timedelta(hours=12)
# Two hours more than the longest change there is: Samoa left out a whole day in 2011.
_NEAR: Final = [timedelta(hours=hour) for hour in range(-26, 27)]


def check_instant(what: str, value: datetime) -> datetime:
    """Return the instant in UTC; refuse naive ones and years near the calendar's ends."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidConfiguration(f"{what} must be an aware datetime, not {value!r}.")
    if not 1 < value.year < 9900:
        raise InvalidConfiguration(f"{what} must lie in the years 2 to 9899, not {value!r}.")
    return value.astimezone(UTC)


def load_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name; refuse an unknown one."""
    if not isinstance(name, str) or not name:
        raise InvalidConfiguration(f"A time zone is an IANA name, not {name!r}.")
    try:
        return ZoneInfo(name)
    # ZoneInfo raises KeyError for unknown names, ValueError for bad paths, OSError for folders.
    except (KeyError, ValueError, OSError) as error:
        hint = "write an IANA name such as 'Europe/Bucharest'." if has_zones() else NO_ZONES
        raise InvalidConfiguration(f"Unknown time zone {name!r}: {hint}") from error


def has_zones() -> bool:
    """Return whether Python finds a time zone database; slim images have none."""
    try:
        ZoneInfo("UTC")
    except ZoneInfoNotFoundError:
        return False
    return True


def instants(walls: Iterable[datetime], zone: ZoneInfo, gap: Gap, fold: Fold) -> Iterator[datetime]:
    """Yield the instants of ascending wall times in UTC, ascending and without duplicates.

    A wall time in a gap is read with the offset before it (``shift``: 02:30 becomes 03:30) or left
    out (``skip``). A wall time in a fold gives its first instant, its second, or both.
    """
    last = _EVER
    pending: list[datetime] = []
    for wall in walls:
        first, second = _reading(wall, zone, 0), _reading(wall, zone, 1)
        for each in _chosen(first, second, gap, fold):
            heappush(pending, each)
        # No later wall time has an instant before min(first, second): first readings only fall
        # back at the end of a gap, and within a gap the second reading lies before all later ones.
        while pending and pending[0] <= min(first, second):
            at = heappop(pending)
            if at > last:
                yield (last := at)
    yield from sorted(each for each in set(pending) if each > last)


def _reading(wall: datetime, zone: ZoneInfo, fold: int) -> datetime:
    at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    # The queue stores milliseconds. A finer instant would be read back as an earlier one, and the
    # next tick after it would be the same tick.
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def _chosen(first: datetime, second: datetime, gap: Gap, fold: Fold) -> tuple[datetime, ...]:
    if first > second:
        return (first,) if gap == "shift" else ()
    if fold == "first" or first == second:
        return (first,)
    return (second,) if fold == "second" else (first, second)


def wall_before(at: datetime, zone: ZoneInfo) -> datetime:
    """Return a wall time such that no wall time up to it has an instant after ``at``.

    This is the local time; near a change of the clocks it is earlier by the change, because a wall
    time is its instant plus one of the offsets in use around it.
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


MOST_AHEAD: Final = 1000


def check_count(what: str, value: int, most: int) -> int:
    """Return the number, or refuse one that is not from 1 to ``most``."""
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidConfiguration(f"{what} must be a number from 1 to {most}, not {value!r}.")
    return value


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a policy that is not among the choices."""
    if value not in choices:
        raise InvalidConfiguration(f"{what} must be one of {', '.join(choices)}, not {value!r}.")


class Schedule(ABC):
    """A rule that gives the instants of its ticks; immutable, and equal when its fields are."""

    __slots__ = ()

    @property
    @abstractmethod
    def canonical_text(self) -> str:
        """The text behind the configuration hash."""

    @property
    @abstractmethod
    def interval(self) -> timedelta:
        """The time between two installations of the next ticks."""

    @property
    @abstractmethod
    def horizon(self) -> timedelta:
        """Ticks up to now + horizon are written ahead."""

    @property
    @abstractmethod
    def ticks_ahead(self) -> int:
        """The minimum number of ticks written ahead, beyond the horizon too."""

    @abstractmethod
    def _times_after(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after this one, ascending."""

    @property
    def config_hash(self) -> str:
        """The MD5 of the canonical text; other services derive the same keys from it."""
        return hashlib.md5(self.canonical_text.encode(), usedforsecurity=False).hexdigest()

    def times_after(self, after: datetime) -> Iterator[datetime]:
        """Yield all instants strictly after this one, ascending, without an end."""
        return self._times_after(check_instant("after", after))

    def next_times(self, now: datetime) -> list[datetime]:
        """Return the times to write ahead: up to ``now + horizon``, at least ``ticks_ahead``.

        All are strictly after ``now``.
        """
        now = check_instant("now", now)
        until = now + self.horizon
        times: list[datetime] = []
        for at in self._times_after(now):
            if len(times) >= self.ticks_ahead and at > until:
                break
            times.append(at)
        if not times:
            raise InvalidConfiguration(f"{self!r} has no time after {now.isoformat()}.")
        return times

    def times_between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the first ``limit`` times with after < time ≤ until."""
        return list(islice(self._between(after, until), check_count("limit", limit, 10**6)))

    def latest_between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the last ``limit`` times with after < time ≤ until, ascending.

        It searches backwards over growing spans, so that a year of missed seconds costs no more
        than the few that are returned.
        """
        check_count("limit", limit, 10**6)
        after, until = check_instant("after", after), check_instant("until", until)
        span = _SECOND
        while True:
            start = until - span if until - after > span else after
            found = deque(self._between(start, until), maxlen=limit)
            if len(found) == limit or start == after:
                return list(found)
            span *= 2

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        until = check_instant("until", until)
        return takewhile(lambda at: at <= until, self.times_after(after))


class ZonedSchedule(Schedule):
    """A schedule of wall-clock times in a time zone.

    With ``timezone=None`` the installation sets the zone (``with_default_timezone``); until then it
    is UTC.
    """

    __slots__ = ()
    timezone: str | None
    gap: Gap
    fold: Fold | None

    @abstractmethod
    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        """Yield the naive local times strictly after this one, ascending."""

    @property
    def zone(self) -> ZoneInfo:
        return load_zone(self.timezone_name)

    @property
    def timezone_name(self) -> str:
        return "UTC" if self.timezone is None else self.timezone

    def with_default_timezone(self, timezone: str) -> Self:
        """Return the schedule in this zone, or unchanged if it has a zone."""
        if self.timezone is not None:
            return self
        return replace(self, timezone=timezone)  # type: ignore[type-var]

    def _times_after(self, after: datetime) -> Iterator[datetime]:
        zone = self.zone
        walls = self._walls_after(wall_before(after, zone))
        times = instants(walls, zone, self.gap, self.fold or "first")
        return (at for at in times if at > after)

    def _policy_text(self, default_fold: Fold) -> str:
        # Only values that differ from the defaults: other services hash the text without them.
        text = "" if self.gap == "shift" else f"  gap: {self.gap}\n"
        return text if self.fold == default_fold else f"{text}  fold: {self.fold}\n"


# Digits of an instant in milliseconds, from 2001 to 2286.
_USUAL_DIGITS: Final = 13


class MissedTicks(StrEnum):
    """The missed ticks to create after a time without an installer."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CronMessage:
    """A tick to install: its key contains ``schedule_at``, it is due at ``deliver_at``."""

    payload: Any
    schedule_at: datetime
    deliver_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.schedule_at is None:
            raise InvalidMessage("A tick needs its schedule_at, an aware datetime.")
        for name in ("schedule_at", "deliver_at"):
            try:
                check_schedule(getattr(self, name))
            except InvalidMessage as error:
                raise InvalidMessage(f"The {name} of a tick: {error}") from error

    @property
    def due_at(self) -> datetime:
        """``deliver_at``, or else ``schedule_at``."""
        return self.schedule_at if self.deliver_at is None else self.deliver_at


def tick_key(key_prefix: str, config_hash: str, schedule_at: datetime) -> str:
    """Return ``{key_prefix}/{config_hash}/{milliseconds since the epoch}``, at most 200 long."""
    check_key_prefix(key_prefix, config_hash)
    if (milliseconds := check_schedule(schedule_at)) is None:
        raise InvalidMessage("The key of a tick needs its schedule_at, an aware datetime.")
    key = f"{key_prefix}/{config_hash}/{milliseconds}"
    if len(key) > MAX_KEY_LENGTH:
        raise _too_long(key_prefix, len(key))
    return key


def check_key_prefix(key_prefix: str, config_hash: str = "0" * 32) -> str:
    """Return the prefix, or refuse one whose tick keys would not fit."""
    if not isinstance(key_prefix, str) or not key_prefix.strip():
        raise InvalidConfiguration(f"A key prefix must not be blank: {key_prefix!r}.")
    _check_text("key prefix", key_prefix)
    length = len(key_prefix) + len(check_config_hash(config_hash)) + 2 + _USUAL_DIGITS
    if length > MAX_KEY_LENGTH:
        raise _too_long(key_prefix, length)
    return key_prefix


def check_config_hash(config_hash: str) -> str:
    """Return the hash, or refuse a blank one and one with a slash.

    With a slash, the keys of prefix ``a`` and hash ``b/c`` would be those of ``a/b`` and ``c``.
    """
    if not isinstance(config_hash, str) or not config_hash.strip() or "/" in config_hash:
        raise InvalidConfiguration(
            f"A configuration hash must be text without a slash: {config_hash!r}."
        )
    return _check_text("configuration hash", config_hash)


def _check_text(what: str, value: str) -> str:
    try:
        return check_text(what, value)
    except InvalidMessage as error:
        raise InvalidConfiguration(str(error)) from error


def _too_long(key_prefix: str, length: int) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"The key prefix {key_prefix[:40]!r} makes keys of {length} characters; "
        f"at most {MAX_KEY_LENGTH} fit."
    )


def missed(
    schedule: Schedule,
    last_tick: datetime | None,
    now: datetime,
    policy: MissedTicks | str = MissedTicks.LATEST,
    cap: int = 100,
) -> list[datetime]:
    """Return the ticks to create for last_tick < time ≤ now, ascending.

    ``skip`` gives none, ``latest`` the last one, ``all`` the last ``cap``. A schedule without a
    tick, or with a last tick after ``now`` (another host's clock), has missed none.
    """
    limits = {MissedTicks.SKIP: 0, MissedTicks.LATEST: 1, MissedTicks.ALL: cap}
    if policy not in limits:
        raise InvalidConfiguration(f"Unknown policy for missed ticks: {policy!r}.")
    if type(cap) is not int or cap < 1:
        raise InvalidConfiguration(f"cap must be a number from 1, not {cap!r}.")
    limit = limits[MissedTicks(policy)]
    if last_tick is None or limit == 0:
        return []
    return schedule.latest_between(last_tick, now, limit)
