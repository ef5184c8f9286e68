"""The base of all schedules: the times to write ahead, the times that were missed, the hash."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Final, Self
from zoneinfo import ZoneInfo

from delayed_queue.cron.rules.clocks import (
    Fold,
    Gap,
    check_instant,
    instants,
    load_zone,
    wall_before,
)
from delayed_queue.exceptions import InvalidConfiguration

LONGEST: Final = timedelta(days=3650)
MOST_AHEAD: Final = 1000
_SECOND: Final = timedelta(seconds=1)


def check_duration(what: str, value: timedelta, least: timedelta) -> timedelta:
    """Return the duration, or refuse one that is too short or longer than ten years."""
    if not isinstance(value, timedelta) or not least <= value <= LONGEST:
        raise InvalidConfiguration(
            f"{what} must be a timedelta from {least} to {LONGEST.days} days, not {value!r}."
        )
    return value


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
        """The text the configuration hash is made of."""

    @property
    @abstractmethod
    def interval(self) -> timedelta:
        """How often to write the next ticks ahead."""

    @property
    @abstractmethod
    def horizon(self) -> timedelta:
        """How far ahead of now every tick is written."""

    @property
    @abstractmethod
    def ticks_ahead(self) -> int:
        """How many ticks are written ahead at least, however far off they are."""

    @abstractmethod
    def _times_after(self, after: datetime) -> Iterator[datetime]:
        """Yield the instants strictly after this one, ascending."""

    @property
    def config_hash(self) -> str:
        """The MD5 of the canonical text: other services write the same keys with it."""
        return hashlib.md5(self.canonical_text.encode(), usedforsecurity=False).hexdigest()

    def times_after(self, after: datetime) -> Iterator[datetime]:
        """Yield every instant strictly after this one, ascending, without an end."""
        return self._times_after(check_instant("after", after))

    def next_times(self, now: datetime) -> list[datetime]:
        """Return the times to write ahead at ``now``: never none, all strictly after it.

        They are those up to ``now + horizon`` and at least the next ``ticks_ahead``.
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

        It looks back over growing spans, so that a year of missed seconds costs no more than
        the few that are wanted.
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

    ``timezone=None`` leaves the zone to whoever installs the schedule: see
    ``with_default_timezone``; until then it is UTC.
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
        """Return the schedule in this zone if it names none, else itself."""
        if self.timezone is not None:
            return self
        return replace(self, timezone=timezone)  # type: ignore[type-var]

    def _times_after(self, after: datetime) -> Iterator[datetime]:
        zone = self.zone
        walls = self._walls_after(wall_before(after, zone))
        times = instants(walls, zone, self.gap, self.fold or "first")
        return (at for at in times if at > after)

    def _policy_text(self, default_fold: Fold) -> str:
        # Only what differs from the defaults, so that the plain text is the one others hash.
        text = "" if self.gap == "shift" else f"  gap: {self.gap}\n"
        return text if self.fold == default_fold else f"{text}  fold: {self.fold}\n"
