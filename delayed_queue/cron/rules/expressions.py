"""Cron expressions: croniter finds the wall times, the zone's rules here make them instants.

croniter is given naive local times only. With aware ones its 7.0 runs a fixed 01:30 twice on
the night the clocks go back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple, get_args

from croniter import CroniterBadDateError, croniter

from delayed_queue.cron.rules.base import (
    MOST_AHEAD,
    Fold,
    Gap,
    ZonedSchedule,
    check_choice,
    check_count,
    load_zone,
)
from delayed_queue.exceptions import InvalidConfiguration

NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Each field with all of its values written out comes to less.
MAX_EXPRESSION: Final = 1000
_MINUTE_FIELD: Final = 0
_HOUR_FIELD: Final = 1
_SECOND_FIELD: Final = 5
_LEAP_YEAR: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall time has no zone
# croniter draws these anew for every object, so that two hosts would not agree on a tick.
_DRAWN: Final = re.compile(r"[hr](\(.*|/.*)?", re.ASCII)
# croniter reads a range from a value to itself as the whole field: 5-5 as every hour.
_ONE_VALUE: Final = re.compile(r"(?<![^,])(\w+)-\1(?:/0*[1-9]\d*)?(?![^,#])", re.ASCII)


class _Parsed(NamedTuple):
    canonical: str
    fold: Fold
    interval: timedelta


@dataclass(frozen=True, slots=True)
class CronSchedule(ZonedSchedule):
    """Ticks at the local times that match a cron expression.

    Five fields: minute, hour, day of month, month, day of week; with six, the **last** is the
    second. Or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``. When both day
    fields are restricted, either may match.

    Local times that clocks jump over run as if they had not (``gap="shift"``: 02:30 runs at
    03:30), or not at all (``"skip"``); runs that meet on one instant are one tick, so that
    ``*/5 * * * *`` loses nothing and gains nothing. An expression with ``*`` or ``/`` in its
    minute or hour field repeats: it keeps running through the hour that comes twice
    (``fold="both"``). Any other is fixed and runs once in it, the ``"first"`` time or the
    ``"second"``.

    The next ``ticks_ahead`` are written ahead every minute; for expressions of several seconds
    in a minute every ten seconds, and at least those of the next twenty.
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
        # Made explicit, so that schedules are equal when they do the same.
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
        expression, fold, _ = self._parsed
        text = f"\ncron-expression:\n  zone: {self.timezone_name}\n  expression: {expression}\n"
        return text + self._policy_text(fold)

    @property
    def interval(self) -> timedelta:
        return self._parsed.interval

    @property
    def horizon(self) -> timedelta:
        return 2 * self.interval

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        # croniter counts in floats, which would round the last microsecond of a second up.
        cron = croniter(self.canonical_expression, wall.replace(microsecond=0))
        while True:
            try:
                wall = cron.get_next(datetime)
            except CroniterBadDateError:
                return
            yield wall


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
    seconds = cron.expanded[_SECOND_FIELD] if len(fields) > _SECOND_FIELD else [0]
    once_a_minute = len(seconds) == 1 and seconds != ["*"]
    interval = timedelta(minutes=1) if once_a_minute else timedelta(seconds=10)
    return _Parsed(canonical, "both" if repeats else "first", interval)


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
