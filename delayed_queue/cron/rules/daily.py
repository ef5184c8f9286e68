"""Daily schedules: the same hours every day in a time zone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final, Literal, get_args

from delayed_queue.cron.rules.base import (
    Gap,
    ZonedSchedule,
    check_choice,
    check_duration,
    load_zone,
)
from delayed_queue.exceptions import InvalidConfiguration

_DAY: Final = timedelta(days=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class DailySchedule(ZonedSchedule):
    """Ticks at these hours of every day; each hour of each day once.

    An hour that clocks jump over runs once as if they had not (``gap="shift"``: 02:30 runs at
    03:30) or not on that day (``"skip"``); an hour that comes twice runs the ``"first"`` time
    or the ``"second"``. Two hours that meet on one instant are one tick.

    Ticks are written ahead over ``schedule_in_advance``, and at least the next one, every
    ``schedule_interval``; keep the first the longer one.
    """

    timezone: str | None = None
    hours: Sequence[time] = ()
    schedule_in_advance: timedelta = timedelta(days=4)
    schedule_interval: timedelta = timedelta(hours=6)
    gap: Gap = "shift"
    fold: Literal["first", "second"] = "first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hours", _check_hours(self.hours))
        load_zone(self.timezone_name)
        check_duration("schedule_in_advance", self.schedule_in_advance, timedelta(0))
        check_duration("schedule_interval", self.schedule_interval, _MILLISECOND)
        check_choice("gap", self.gap, get_args(Gap))
        check_choice("fold", self.fold, ("first", "second"))

    @property
    def canonical_text(self) -> str:
        hours = ", ".join(hour_text(each) for each in self.hours)
        text = f"\ndaily-cron:\n  zone: {self.timezone_name}\n  hours: {hours}\n"
        return text + self._policy_text("first")

    @property
    def interval(self) -> timedelta:
        return self.schedule_interval

    @property
    def horizon(self) -> timedelta:
        return self.schedule_in_advance

    @property
    def ticks_ahead(self) -> int:
        return 1

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        hours = sorted(set(self.hours))
        midnight = datetime.combine(wall.date(), time.min)
        while True:
            for hour in hours:
                if (at := datetime.combine(midnight, hour)) > wall:
                    yield at
            midnight += _DAY


def hour_text(hour: time) -> str:
    """Return HH:MM, with seconds if any are set, and fractions in 3 or 6 digits."""
    if hour.microsecond:
        precision = "microseconds" if hour.microsecond % 1000 else "milliseconds"
    else:
        precision = "seconds" if hour.second else "minutes"
    return hour.isoformat(precision)


def _check_hours(hours: Sequence[time]) -> tuple[time, ...]:
    checked: tuple[time, ...] = tuple(hours) if isinstance(hours, list | tuple) else ()
    if not checked:
        raise InvalidConfiguration(f"hours must list at least one datetime.time, not {hours!r}.")
    for each in checked:
        if not isinstance(each, time) or each.tzinfo is not None:
            raise InvalidConfiguration(
                f"An hour is a datetime.time without a zone of its own, not {each!r}."
            )
    return checked
