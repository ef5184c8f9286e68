"""How long an act may stand still: what counts is progress, however slow the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from example_project.demo.exceptions import Stalled

SECONDS: Final = 60.0


class Patience:
    """Runs out when what is seen stays the same for so many seconds."""

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._seen: object = None
        self._changed_at = clock()

    def see(self, seen: object, waiting: str) -> None:
        """Take note of where things stand; raise Stalled when nothing has moved for too long."""
        if seen != self._seen:
            self._seen, self._changed_at = seen, self._clock()
        elif self._clock() - self._changed_at > self._seconds:
            raise Stalled(f"No progress for {self._seconds:.0f} s: {waiting}.")
