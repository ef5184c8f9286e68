"""Periodic schedules: a tick every so long, aligned to 1970-01-01T00:00Z."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from delayed_queue.cron.rules.base import MOST_AHEAD, Schedule, check_count, check_duration
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import EPOCH, MILLISECOND

_SECOND: Final = timedelta(seconds=1)
_NONE: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class PeriodicSchedule(Schedule):
    """Ticks at every multiple of the period since the epoch: every hour is on the hour.

    The next ``ticks_ahead`` are written ahead, four times a period but at most once a second;
    of periods under half a second so many that a check may fail and none is missing.
    """

    period: timedelta
    ticks_ahead: int = 4

    def __post_init__(self) -> None:
        check_duration("period", self.period, MILLISECOND)
        if self.period % MILLISECOND != _NONE:
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
