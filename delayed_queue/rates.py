"""Rate limits and circuit breakers: one rule of each for the whole project.

Pure Python without Django: callers pass the time, or a clock. Limits per group keep their state in
the database and apply `RateRule` in Python. Limits by name apply it in one SQL statement and keep
permits taken ahead as `Credit`. A pace within one process needs one number and a lock:

    starts_at = max(rule.due_at(spent_until), now)
    spent_until = rule.spend(spent_until, now)
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Final, NamedTuple


class RateRule(NamedTuple):
    """One permit per ``interval``, and at most ``burst`` at once after a rest.

    The generic cell rate algorithm in its virtual scheduling form (ITU-T Recommendation I.371). A
    limiter stores one instant, ``spent_until``: when all permits taken so far would have been due
    one by one. Permits due until ``now`` can be taken early by ``(burst - 1) * interval``:

        due_at = spent_until - (burst - 1) * interval
        spent_until = max(spent_until, now) + interval        for each permit

    Within any time t at most ``burst + t / interval`` permits are taken. All arguments of one rule
    share a unit of time. None as ``spent_until`` is a limiter that was never used.
    """

    interval: float
    burst: int = 1

    def due_at(self, spent_until: float | None) -> float:
        """Return when the next permit is due."""
        return (spent_until or 0.0) - (self.burst - 1) * self.interval

    def spend(self, spent_until: float | None, now: float, count: int = 1) -> float:
        """Return ``spent_until`` after ``count`` more permits."""
        return max(spent_until or 0.0, now) + count * self.interval

    def capped(self, spent_until: float | None, now: float) -> float:
        """Return ``spent_until``, lowered to the maximum of this rule.

        More is spent only under an earlier rule, or before the clock was set back.
        """
        return min(spent_until or 0.0, now + self.burst * self.interval)

    def next_permit(self, spent_until: float | None, now: float) -> float:
        """Return when the next permit is due: at most one interval from now."""
        return self.due_at(self.capped(spent_until, now))

    def permits(self, spent_until: float | None, now: float) -> int:
        """Return the number of permits that are due."""
        # Counted from the next permit: rounding cannot postpone it.
        since = now - self.next_permit(spent_until, now)
        return min(math.floor(since / self.interval) + 1, self.burst) if since >= 0 else 0


class Credit:
    """Permits that were taken ahead; those that expire first are used first."""

    def __init__(self) -> None:
        self.count = 0
        self._lots: deque[tuple[float, int]] = deque()

    def add(self, expires_at: float, count: int) -> None:
        """Add permits that can be used before ``expires_at``, later than those that are there."""
        self._lots.append((expires_at, count))
        self.count += count

    def expire(self, now: float) -> None:
        """Drop the permits that can no longer be used."""
        while self._lots and self._lots[0][0] <= now:
            self.count -= self._lots.popleft()[1]

    def use(self, count: int) -> None:
        """Use permits that are there."""
        self.count -= count
        while count:
            expires_at, found = self._lots.popleft()
            if found > count:
                self._lots.appendleft((expires_at, found - count))
            count -= min(found, count)


# A room grows by one call after N successes for each call that fits.
GROWTH: Final = 8


class Room:
    """The number of calls that a receiver takes at a time, learnt from its refusals.

    Unlimited until the first refusal for lack of capacity, which lowers it to the calls that are
    in progress beside the refused one.
    """

    def __init__(self) -> None:
        self.used = 0
        self.limit = math.inf

    def enter(self) -> bool:
        """Count a call in, if it fits."""
        if self.used + 1 > self.limit:
            return False
        self.used += 1
        return True

    def leave(self, *, is_success: bool = False, is_refused: bool = False) -> None:
        """Count a call out, and learn from its result."""
        self.used -= 1
        if is_refused:
            self.limit = max(min(self.limit, self.used), 1)
        elif is_success:
            self.limit += 1 / (GROWTH * self.limit)


class State(Enum):
    """The states of a circuit; calls are made in CLOSED, one in PROBING, none in the others."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"
    PROBING = "probing"


class Event(Enum):
    """An event that may change the state of a circuit."""

    TRIP = "too many calls failed"
    EXPIRE = "the pause, or the time of a probe, is over"
    PROBE = "a call begins"
    SUCCEED = "the probe succeeded"
    FAIL = "the probe failed"
    DROP = "the probe was not made"


# All other pairs leave the state as it is.
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (State.CLOSED, Event.TRIP): State.OPEN,
    (State.OPEN, Event.EXPIRE): State.HALF_OPEN,
    (State.HALF_OPEN, Event.PROBE): State.PROBING,
    (State.PROBING, Event.SUCCEED): State.CLOSED,
    (State.PROBING, Event.FAIL): State.OPEN,
    (State.PROBING, Event.DROP): State.HALF_OPEN,
    (State.PROBING, Event.EXPIRE): State.HALF_OPEN,
}

# A circuit remembers the last `SAMPLE * failures` results.
SAMPLE: Final = 4


class Results:
    """The last results of one receiver."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._failures_in_a_row = 0
        self._successes: deque[bool] = deque(maxlen=SAMPLE * failures)

    def note(self, *, is_failure: bool) -> None:
        """Record the result of a call."""
        self._successes.append(not is_failure)
        self._failures_in_a_row = self._failures_in_a_row + 1 if is_failure else 0

    @property
    def are_bad(self) -> bool:
        """True after ``failures`` in a row, or if half of a full sample failed."""
        is_full = len(self._successes) == self._successes.maxlen
        is_half = is_full and 2 * sum(self._successes) <= len(self._successes)
        return self._failures_in_a_row >= self._failures or is_half

    @property
    def has_success(self) -> bool:
        return any(self._successes)

    def clear(self) -> None:
        self._successes.clear()
        self._failures_in_a_row = 0


class Circuit:
    """A circuit breaker of one process: the state of a receiver, and its last results.

    It opens for ``pause`` when the results are bad. Then one call at a time, the probe, decides. A
    probe without a result within ``probe_timeout`` (by default the pause) is replaced by another.
    Results of calls that began before it opened are ignored, except during a probe, whose result
    looks the same here.
    """

    def __init__(
        self,
        failures: int,
        pause: timedelta,
        *,
        probe_timeout: timedelta | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results = Results(failures)
        timeout = pause if probe_timeout is None else probe_timeout
        self._seconds = {State.OPEN: pause.total_seconds(), State.PROBING: timeout.total_seconds()}
        self._clock = clock
        self._state = State.CLOSED
        # When the state ends by itself.
        self._until = math.inf

    @property
    def state(self) -> State:
        if self._clock() >= self._until:
            self._state, self._until = TRANSITIONS[self._state, Event.EXPIRE], math.inf
        return self._state

    @property
    def is_open(self) -> bool:
        """True if calls are not made freely: the circuit is not closed."""
        return self._state is not State.CLOSED

    def on(self, event: Event) -> bool:
        """Apply an event; return whether it changed the state."""
        after = TRANSITIONS.get((self.state, event))
        if after is not None:
            self.set(after)
        return after is not None

    def set(self, state: State, seconds: float | None = None) -> None:
        """Enter a state, for the given time where its own is not meant."""
        if state is not self._state:
            self.results.clear()
        own = self._seconds.get(state, math.inf)
        self._state = state
        self._until = self._clock() + (own if seconds is None else seconds)

    def left(self) -> timedelta:
        """Return how long no call can begin; zero also where one may."""
        is_waiting = self.state in self._seconds
        return timedelta(seconds=max(self._until - self._clock(), 0) if is_waiting else 0)

    def wait(self) -> timedelta:
        """Begin a call and return zero, or return how long none can begin."""
        if not self.is_open or self.on(Event.PROBE):
            return timedelta(0)
        return max(self.left(), timedelta.resolution)

    def spare(self) -> None:
        """Leave the probe to another call, because this one is not made."""
        self.on(Event.DROP)

    def note(self, *, is_failure: bool) -> bool:
        """Record the result of a call; return whether it changed the state."""
        if self.is_open:
            return self.on(Event.FAIL if is_failure else Event.SUCCEED)
        self.results.note(is_failure=is_failure)
        return is_failure and self.results.are_bad and self.on(Event.TRIP)
