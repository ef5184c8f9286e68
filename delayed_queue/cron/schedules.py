"""Schedules: a cron expression, fixed hours of every day, or a fixed period.

croniter finds the days of an expression, its fields give the wall times of a day, and the zone's
rules turn them into instants. croniter gets naive local times only: with aware ones, version 7.0
runs a fixed 01:30 twice on the night the clocks go back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

from croniter import CroniterBadDateError, croniter

from delayed_queue.cron.rules import (
    MOST_AHEAD,
    Fold,
    Gap,
    Schedule,
    ZonedSchedule,
    check_choice,
    check_count,
    load_zone,
)
from delayed_queue.durations import ZERO, check_duration
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import EPOCH, MILLISECOND

NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Every field with all its values written out is shorter.
MAX_EXPRESSION: Final = 1000
_MINUTE_FIELD: Final = 0
_HOUR_FIELD: Final = 1
_SECOND_FIELD: Final = 5
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_LEAP_YEAR: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall time has no zone
# croniter draws random and hashed fields per object, so two hosts would disagree on a tick.
_DRAWN: Final = re.compile(r"[hr](\(.*|/.*)?", re.ASCII)
# croniter reads a range from a value to itself, such as 5-5, as the whole field.
_ONE_VALUE: Final = re.compile(r"(?<![^,])(\w+)-\1(?:/0*[1-9]\d*)?(?![^,#])", re.ASCII)


class _Parsed(NamedTuple):
    """``days``: the expression at midnight of its days."""

    canonical: str
    fold: Fold
    days: str
    hours: Sequence[int]
    minutes: Sequence[int]
    seconds: Sequence[int]


@dataclass(frozen=True, slots=True)
class CronSchedule(ZonedSchedule):
    """Ticks at the local times that match a cron expression.

    Five fields: minute, hour, day of month, month, day of week; with six, the **last** is the
    second. Or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``. When both day
    fields are restricted, either may match.

    Local times that the clocks skip run shifted (``gap="shift"``: 02:30 runs at 03:30) or not at
    all (``"skip"``). Runs at the same instant are one tick, so ``*/5 * * * *`` loses and gains
    none. An expression with ``*`` or ``/`` in its minute or hour field repeats: it runs through
    both occurrences of an hour (``fold="both"``). Any other expression runs once in such an hour,
    the ``"first"`` or the ``"second"`` time.

    The next ``ticks_ahead`` are written ahead every minute. Expressions with several seconds are
    written every ten seconds, for at least the next twenty.
    """

    expression: str
    timezone: str | None = None
    gap: Gap = "shift"
    fold: Fold | None = None
    ticks_ahead: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidConfiguration(f"A cron expression is a str, not {self.expression!r}.")
        if len(self.expression) > MAX_EXPRESSION:
            raise InvalidConfiguration(
                f"A cron expression has at most {MAX_EXPRESSION:,} characters, not "
                f"{len(self.expression):,}."
            )
        fold = self._parsed.fold if self.fold is None else self.fold
        # Made explicit, so that schedules with the same effect are equal.
        object.__setattr__(self, "fold", fold)
        load_zone(self.timezone_name)
        check_count("ticks_ahead", self.ticks_ahead, MOST_AHEAD)
        check_choice("gap", self.gap, get_args(Gap))
        check_choice("fold", fold, get_args(Fold))
        if fold == "both" and self._parsed.fold != "both":
            raise InvalidConfiguration(
                f"fold='both' would run {self.expression!r} twice: only expressions with * or / "
                "in the minute or hour field repeat."
            )

    @property
    def _parsed(self) -> _Parsed:
        return _parse(self.expression)

    @property
    def canonical_expression(self) -> str:
        """The expression in lower case, with single spaces and names written out."""
        return self._parsed.canonical

    @property
    def canonical_text(self) -> str:
        """``cron-expression``, zone and expression; policies only where not the default."""
        expression, fold, *_ = self._parsed
        text = f"\ncron-expression:\n  zone: {self.timezone_name}\n  expression: {expression}\n"
        return text + self._policy_text(fold)

    @property
    def interval(self) -> timedelta:
        return _MINUTE if len(self._parsed.seconds) == 1 else timedelta(seconds=10)

    @property
    def horizon(self) -> timedelta:
        return 2 * self.interval

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        parsed = self._parsed
        # croniter finds the days only; finding each tick would take fifty times as long.
        day = datetime.combine(wall.date(), time.min)
        days = croniter(parsed.days, day - _SECOND)
        while True:
            try:
                day = days.get_next(datetime)
            except CroniterBadDateError:
                return
            yield from _walls_of(day, parsed, wall)


def _walls_of(day: datetime, parsed: _Parsed, wall: datetime) -> Iterator[datetime]:
    """Yield the times of a day after ``wall``; whole hours and minutes before it are skipped."""
    for hour in parsed.hours:
        at = day.replace(hour=hour)
        if at + _HOUR <= wall:
            continue
        for minute in parsed.minutes:
            at = at.replace(minute=minute)
            if at + _MINUTE <= wall:
                continue
            walls = (at.replace(second=each) for each in parsed.seconds)
            yield from (each for each in walls if each > wall)


@lru_cache(maxsize=1024)
def _parse(expression: str) -> _Parsed:
    canonical = _canonical(expression)
    try:
        cron = croniter(canonical, _LEAP_YEAR)
        cron.get_next(datetime)
    except CroniterBadDateError as error:
        raise InvalidConfiguration(
            f"The cron expression {expression!r} never runs: no date has such a day and month."
        ) from error
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidConfiguration(f"Bad cron expression {expression!r}: {error}.") from error
    fields = canonical.split(" ")
    repeats = {"*", "/"} & set(fields[_MINUTE_FIELD] + fields[_HOUR_FIELD])
    days = ["0", "0", *fields[_HOUR_FIELD + 1 : _SECOND_FIELD]]
    return _Parsed(
        canonical,
        "both" if repeats else "first",
        " ".join(days),
        _values(cron, _HOUR_FIELD, 24),
        _values(cron, _MINUTE_FIELD, 60),
        _values(cron, _SECOND_FIELD, 60) if len(fields) > _SECOND_FIELD else [0],
    )


def _values(cron: croniter, field: int, count: int) -> list[int]:
    found = cron.expanded[field]
    return [*range(count)] if found == ["*"] else sorted({int(each) for each in found})


def _canonical(expression: str) -> str:
    text = " ".join(expression.lower().split())
    fields = NAMES.get(text, text).split(" ")
    if len(fields) not in (5, 6):
        raise InvalidConfiguration(
            f"The cron expression {expression!r} is not of five fields, nor of six with the "
            f"second last, nor one of {', '.join(NAMES)}."
        )
    if any(_DRAWN.fullmatch(field) for field in fields):
        raise InvalidConfiguration(
            f"The cron expression {expression!r} has a hashed or random field, which differs "
            "from host to host: write the value."
        )
    return " ".join(_ONE_VALUE.sub(r"\1", field) for field in fields)


_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class DailySchedule(ZonedSchedule):
    """Ticks at these hours of every day, each once a day.

    An hour that the clocks skip runs shifted (``gap="shift"``: 02:30 runs at 03:30) or not on that
    day (``"skip"``). An hour that occurs twice runs the ``"first"`` or the ``"second"`` time. Two
    hours at the same instant are one tick.

    Every ``schedule_interval`` the ticks of the next ``schedule_in_advance`` are written ahead, at
    least one. ``schedule_in_advance`` should be longer than ``schedule_interval``.
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
        for name, least in (("schedule_in_advance", ZERO), ("schedule_interval", MILLISECOND)):
            object.__setattr__(self, name, check_duration(name, getattr(self, name), least))
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


@dataclass(frozen=True, slots=True)
class PeriodicSchedule(Schedule):
    """Ticks at every multiple of the period since the epoch: an hourly one is on the hour.

    The next ``ticks_ahead`` are written ahead, four times a period but at most once a second. Short
    periods have enough ticks ahead for one failed installation.
    """

    period: timedelta
    ticks_ahead: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "period", check_duration("period", self.period, MILLISECOND))
        if self.period % MILLISECOND != ZERO:
            raise InvalidConfiguration(f"period must be whole milliseconds, not {self.period!r}.")
        check_count("ticks_ahead", self.ticks_ahead, MOST_AHEAD)

    @property
    def canonical_text(self) -> str:
        return f"\nperiodic-tick:\n  period-ms: {self.period // MILLISECOND}\n"

    @property
    def interval(self) -> timedelta:
        return max(self.period / 4, _SECOND)

    @property
    def horizon(self) -> timedelta:
        return 2 * self.interval

    def _times_after(self, after: datetime) -> Iterator[datetime]:
        at = EPOCH + (after - EPOCH) // self.period * self.period
        while True:
            at += self.period
            yield at
