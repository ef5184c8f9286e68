"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from weakref import WeakSet

from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import InvalidConfiguration

START: Final = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """A queue's ``clock`` for tests: ``DelayedQueue("orders", clock=ManualClock())``.

    It starts at 2030-01-01T00:00Z unless told otherwise. Moving it wakes the threads that
    wait in ``InMemoryQueue.poll()`` under this clock. May be shared by queues and threads.
    """

    def __init__(self, now: datetime = START) -> None:
        self._now = _aware(now)
        self._wake_channels: WeakSet[WakeChannel] = WeakSet()

    def __call__(self) -> datetime:
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now.isoformat()}>"

    def advance(self, by: timedelta) -> datetime:
        """Move the clock forward and return its new time; a negative step is refused."""
        if by < timedelta(0):
            raise InvalidConfiguration(f"advance() goes forward, not by {by!r}; see set().")
        return self.set(self._now + by)

    def set(self, now: datetime) -> datetime:
        """Move the clock to the instant, earlier or later, and return it."""
        self._now = _aware(now)
        for wake_channel in tuple(self._wake_channels):
            wake_channel.wake()
        return self._now

    def watch(self, wake_channel: WakeChannel) -> None:
        """Wake the channel whenever the clock is moved, for as long as the channel exists."""
        self._wake_channels.add(wake_channel)


def _aware(now: datetime) -> datetime:
    if now.utcoffset() is None:
        raise InvalidConfiguration(f"A clock needs aware datetimes, not {now!r}.")
    return now
