"""A circuit: a provider that fails again and again is left alone for a while."""

from __future__ import annotations

import time
from datetime import timedelta


class Circuit:
    """Closed until so many failures came in a row; then open for the pause.

    After the pause one call is let through at a time, and decides: it closes the circuit, or
    opens it again. Each process has its own: it costs nothing to ask, and a process learns of an
    outage after ``failures`` calls.
    """

    def __init__(self, failures: int, pause: timedelta) -> None:
        self._most = failures
        self._pause = pause.total_seconds()
        self._failures = 0
        self._closed_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._most

    def left(self) -> timedelta:
        """Return how long the provider is left alone; lets no call through."""
        seconds = self._closed_at - time.monotonic() if self.is_open else 0.0
        return timedelta(seconds=max(seconds, 0.0))

    def wait(self) -> timedelta:
        """Return zero and let a call through, or how long the provider is left alone."""
        if not self.is_open:
            return timedelta(0)
        now = time.monotonic()
        if now < self._closed_at:
            return timedelta(seconds=self._closed_at - now)
        # The probe: others wait as long again, unless it ends earlier.
        self._closed_at = now + self._pause
        return timedelta(0)

    def spare(self) -> None:
        """Note that the call that was let through is not made: another may be, at once."""
        if self.is_open:
            self._closed_at = time.monotonic()

    def note(self, *, is_failure: bool) -> None:
        """Note how a call ended."""
        if not is_failure:
            self._failures = 0
            return
        self._failures += 1
        if self.is_open:
            self._closed_at = time.monotonic() + self._pause
