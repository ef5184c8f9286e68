"""How long a run may stand still, and how long it may take."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from example_project.demo.exceptions import DemoError
from example_project.demo.orders.figures import Figures

# Slower than any machine that the demo is watched on: this bounds, it does not hurry.
SLOWEST_PER_SECOND: Final = 50
GRACE: Final = timedelta(seconds=60)


class Patience:
    """Runs out when messages are due and nothing happens, or when all takes far too long."""

    def __init__(self, quiet: timedelta, length: timedelta, orders: int) -> None:
        self._quiet = quiet.total_seconds()
        longest = length + GRACE + timedelta(seconds=orders / SLOWEST_PER_SECOND)
        self._deadline = time.monotonic() + longest.total_seconds()
        self._changed_at = time.monotonic()
        self._last: tuple[int, ...] = ()

    def see(self, figures: Figures) -> None:
        """Raise DemoError if the figures have not moved for too long though they should."""
        now = time.monotonic()
        seen = (figures.messages, figures.delivered, figures.dead, figures.due + figures.leased)
        if seen != self._last or not figures.due + figures.leased:
            self._last, self._changed_at = seen, now
        if now - self._changed_at > self._quiet:
            raise DemoError(
                f"Nothing has happened for {self._quiet:.0f} s though {figures.due:,} messages "
                f"are due and {figures.leased:,} leased: the workers have stalled."
            )
        if now > self._deadline:
            raise DemoError(f"Not done in time; {figures.messages:,} messages are left.")
