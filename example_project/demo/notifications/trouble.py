"""What goes wrong on the way: both SMS providers, one after the other, and a dispatcher killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from example_project.demo.console import Console
from example_project.demo.notifications import figures
from example_project.demo.notifications.strangers import TIMEOUT_SECONDS, Strangers
from example_project.demo.processes import Child

# Shares of the time in which requests come.
FIRST_DOWN, SECOND_DOWN, SECOND_DOWN_FOR, FIRST_UP = 0.3, 0.38, 0.06, 0.55
SLOW_FROM: Final = 0.65
FEWEST_IN_HAND: Final = 4
WANTED_IN_HAND: Final = 30
# The others have ended by then what they had in hand.
STANDSTILL_SECONDS: Final = TIMEOUT_SECONDS + 1.0


@dataclass(slots=True)
class Trouble:
    """Happens once each, when ``look`` finds its time come."""

    strangers: Strangers
    console: Console
    start_dispatcher: Callable[[], Child]
    dispatchers: list[Child]
    killed: Child | None = None
    in_flight: set[str] = field(default_factory=set)
    killed_after: float = 0.0
    _slow_since: float = 0.0
    _standstill: tuple[float, set[tuple[str, str]]] | None = None
    _first_was_down: bool = False
    _second_down_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.killed is not None and not self.strangers.first.is_down

    def look(self, share: float, seconds: float) -> None:
        """Do what is to be done at this share of the time."""
        self._take_down(share)
        if self.killed is None and share >= SLOW_FROM:
            self._look_at_dispatchers(seconds)

    def _take_down(self, share: float) -> None:
        first, second = self.strangers.texts
        if not self._first_was_down and share >= FIRST_DOWN:
            self._first_was_down = first.is_down = True
            self.console.step("outage", "the first SMS provider answers 503; the second takes over")
        # Not before it has taken over, which on a busy machine may take a while.
        if self._second_down_at is None and share >= SECOND_DOWN and second.accepted:
            self._second_down_at = share
            second.is_down = True
            self.console.step("outage", "the second one, too: texts wait, and some expire")
        if second.is_down and share >= (self._second_down_at or 0.0) + SECOND_DOWN_FOR:
            second.is_down = False
            self.console.step("mended", "the second SMS provider is back")
        if first.is_down and not second.is_down and share >= FIRST_UP:
            first.is_down = False
            self.console.step("mended", "the first SMS provider is back")

    def _look_at_dispatchers(self, seconds: float) -> None:
        """Slow down, suspend one dispatcher, and kill it when what is still in hand is its own."""
        if not self._slow_since:
            self.strangers.slow_down()
            self._slow_since = time.monotonic()
        elif self._standstill is None:
            self._suspend()
        elif time.monotonic() - self._standstill[0] >= STANDSTILL_SECONDS:
            self._kill(seconds)

    def _suspend(self) -> None:
        is_patient = time.monotonic() - self._slow_since < 1.5
        wanted = WANTED_IN_HAND if is_patient else FEWEST_IN_HAND
        if len(figures.in_hand()) >= wanted:
            self.dispatchers[0].suspend()
            self._standstill = time.monotonic(), figures.in_hand()

    def _kill(self, seconds: float) -> None:
        """Kill it, unless by chance it had nothing in hand: then let it go on, and try again."""
        victim = self.dispatchers[0]
        _, before = self._standstill or (0.0, set())
        held = before & figures.in_hand()
        self._standstill = None
        if not held:
            victim.resume()
            return
        victim.kill()
        self.killed, self.killed_after = victim, seconds
        self.in_flight = {id_ for id_, _ in held}
        self.strangers.recover()
        successor = self.start_dispatcher()
        self.dispatchers.append(successor)
        self.console.step(
            "killed",
            f"dispatcher {victim.pid} with SIGKILL, {len(held)} sends in flight; "
            f"{successor.pid} takes its place",
        )
