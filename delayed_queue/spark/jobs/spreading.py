"""When imported and replayed messages fall due: spread evenly instead of all at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_MILLISECONDS, MILLISECOND, check_schedule, to_milliseconds


@dataclass(frozen=True, slots=True)
class Spread:
    """From ``start_ms`` on, or from now, over a time span or at so many messages a second.

    A message's place is its ordinal in the input, the bad and the repeated ones counted: the same
    input gets the same times, and no second gets more than the rate.
    """

    start_ms: int | None = None
    over_ms: int | None = None
    per_second: float | None = None

    @classmethod
    def of(
        cls,
        start: datetime | None = None,
        over: timedelta | None = None,
        per_second: float | None = None,
    ) -> Spread | None:
        """Check what the options say; None where they say nothing."""
        if start is None and over is None and per_second is None:
            return None
        if over is not None and per_second is not None:
            raise InvalidConfiguration("--over and --rate say the same: give one of them.")
        if per_second is not None and not 0 < per_second <= 1_000_000:
            raise InvalidConfiguration("--rate is from above 0 to 1,000,000 messages a second.")
        return cls(check_schedule(start), None if over is None else over // MILLISECOND, per_second)

    def step(self, total: int) -> float:
        """Return the milliseconds between two messages of that many."""
        if self.per_second is not None:
            step = 1000 / self.per_second
        else:
            step = (self.over_ms or 0) / max(total, 1)
        begins = to_milliseconds(datetime.now(UTC)) if self.start_ms is None else self.start_ms
        if begins + step * total > MAX_MILLISECONDS:
            raise InvalidConfiguration("Spread like this, the last message leaves the year 9999.")
        return step

    def after(self, ordinal: int, total: int) -> int:
        """Return how long after the start the message at that place (from 0) falls due, in ms."""
        return int(ordinal * self.step(total))
