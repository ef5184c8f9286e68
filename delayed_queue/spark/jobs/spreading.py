"""When imported and replayed messages fall due: spread evenly instead of all at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_MILLISECONDS, MILLISECOND, check_schedule


@dataclass(frozen=True, slots=True)
class Spread:
    """From ``start_ms`` on, over a time span or at so many messages a second.

    A message's place is its ordinal in the input, the bad and the repeated ones counted: the same
    input gets the same times, and no second gets more than the rate.
    """

    start_ms: int
    over_ms: int | None = None
    per_second: float | None = None

    @classmethod
    def of(
        cls, start: datetime, over: timedelta | None = None, per_second: float | None = None
    ) -> Spread:
        """Check what the options say; one of ``over`` and ``per_second``, not both."""
        if over is not None and per_second is not None:
            raise InvalidConfiguration("--over and --rate say the same: give one of them.")
        if per_second is not None and not 0 < per_second <= 1_000_000:
            raise InvalidConfiguration("--rate is from above 0 to 1,000,000 messages a second.")
        start_ms = check_schedule(start)
        assert start_ms is not None  # noqa: S101 - a datetime was given
        return cls(start_ms, None if over is None else over // MILLISECOND, per_second)

    def step(self, total: int) -> float:
        """Return the milliseconds between two messages of that many."""
        if self.per_second is not None:
            step = 1000 / self.per_second
        else:
            step = (self.over_ms or 0) / max(total, 1)
        if self.start_ms + step * total > MAX_MILLISECONDS:
            raise InvalidConfiguration("Spread like this, the last message leaves the year 9999.")
        return step

    def at(self, ordinal: int, total: int) -> int:
        """Return when the message at that place (from 0) falls due, in milliseconds."""
        return self.start_ms + int(ordinal * self.step(total))
