"""Retry policies and limits of handlers, and the errors worth repeating a call for."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from delayed_queue.durations import UNITS, Duration, check_duration
from delayed_queue.exceptions import InvalidConfiguration

# The server is a standby, or was made read-only: another one may take writes by now.
READ_ONLY: Final = "25006"
# Serialization failure, deadlock; connection exceptions; shutdown, crash and start-up of the
# server; a transaction that was idle too long; disk, memory or connections used up. With each the
# statement had no effect, or the session is gone (Q33).
_TRANSIENT: Final = (
    "40001", "40P01", "08", "57P0", READ_ONLY, "25P03", "53100", "53200", "53300",
)  # fmt: skip
# PostgreSQL aborts one of several concurrent transactions with these.
_CONFLICTS: Final = frozenset({"40001", "40P01"})


def is_transient(sqlstate: str | None) -> bool:
    """Return whether a call that failed with this SQLSTATE may succeed when repeated."""
    return sqlstate is not None and sqlstate.startswith(_TRANSIENT)


def is_conflict(sqlstate: str | None) -> bool:
    """Return whether a transaction that failed with it may succeed when repeated at once."""
    return sqlstate in _CONFLICTS


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits after failed attempts, and the point at which to stop trying.

    ``delays`` holds the wait after attempt 1, 2, …; the last one repeats. ``max_attempts``
    counts deliveries: after that many failures the message becomes a dead letter. ``jitter``
    is a fraction: 0.2 spreads each wait evenly over ± 20 %. Waits are durations in any form.
    """

    delays: tuple[timedelta, ...]
    max_attempts: int
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise InvalidConfiguration(f"max_attempts must be ≥ 1, not {self.max_attempts!r}.")
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
            raise InvalidConfiguration(f"jitter must be from 0 to 1, not {self.jitter!r}.")
        if not self.delays and self.max_attempts > 1:
            raise InvalidConfiguration("A policy with more than one attempt needs a delay.")
        delays = tuple(check_duration("A retry delay", each) for each in self.delays)
        object.__setattr__(self, "delays", delays)

    @classmethod
    def exponential(
        cls,
        initial: Duration = timedelta(seconds=5),
        *,
        factor: float = 2.0,
        maximum: Duration = timedelta(hours=1),
        max_attempts: int = 10,
        jitter: float = 0.2,
    ) -> RetryPolicy:
        """Wait ``initial * factor ** (attempt - 1)``, at most ``maximum``."""
        if not isinstance(factor, int | float) or not 1 <= factor <= 1000:
            raise InvalidConfiguration(f"factor must be from 1 to 1000, not {factor!r}.")
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1000:
            raise InvalidConfiguration(
                f"max_attempts must be from 1 to 1000, not {max_attempts!r}."
            )
        longest = check_duration("maximum", maximum)
        delays = [min(check_duration("initial", initial), longest)]
        # Step by step, because factor ** 999 leaves the range of a float.
        while len(delays) < max_attempts - 1 and delays[-1] < longest:
            delays.append(min(delays[-1] * factor, longest))
        return cls(tuple(delays), max_attempts, jitter)

    @classmethod
    def ladder(cls, steps: str | Sequence[Duration], *, jitter: float = 0.0) -> RetryPolicy:
        """Wait each step once, in order: ``"15s 3m 10m"`` is three waits, four attempts."""
        waits: tuple[Any, ...] = tuple(steps.split() if isinstance(steps, str) else steps)
        if not waits:
            raise InvalidConfiguration("A ladder needs at least one step, as in '15s 3m 10m'.")
        return cls(waits, len(waits) + 1, jitter)

    @classmethod
    def never(cls) -> RetryPolicy:
        """Make the first failure final."""
        return cls((), 1)

    def delay_after(self, attempt: int) -> timedelta | None:
        """Return the wait after this failed attempt (from 1), or None when it was the last."""
        if attempt >= self.max_attempts:
            return None
        delay = self.delays[min(max(attempt, 1), len(self.delays)) - 1]
        # Not security: jitter only has to spread a herd.
        return delay * (1 + random.uniform(-self.jitter, self.jitter))  # noqa: S311


@dataclass(frozen=True, slots=True)
class Backoff:
    """The repetition of a call while the database is away: 100, 200, 400 … ms, bounded in all."""

    retries: int = 5
    initial: timedelta = timedelta(milliseconds=100)
    maximum: timedelta = timedelta(seconds=10)
    deadline: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if type(self.retries) is not int or not 0 <= self.retries <= 100:
            raise InvalidConfiguration(f"retries must be from 0 to 100, not {self.retries!r}.")
        for name in ("initial", "maximum", "deadline"):
            span = check_duration(name, getattr(self, name), timedelta.resolution)
            object.__setattr__(self, name, span)

    def waits(self) -> list[float]:
        """Return the seconds to wait before each retry; their sum stays within the deadline."""
        waits: list[float] = []
        left = self.deadline.total_seconds()
        for step in range(self.retries):
            wait = min(self.initial.total_seconds() * 2**step, self.maximum.total_seconds())
            if wait > left:
                break
            waits.append(wait)
            left -= wait
        return waits


ORDERS: Final = ("any", "fifo")
ON_DEAD: Final = ("pass", "block")
MOST: Final = 10_000
_RATE: Final = re.compile(r"(\d{1,9})/(s|m|h|d)", re.ASCII)


def parse_rate(text: str) -> float:
    """Return the milliseconds from one permit to the next of ``10/s``, ``600/h`` and the like."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0:
        raise InvalidConfiguration(
            f"{text!r} is not a rate: write a number above zero and one of s, m, h, d, as in "
            "'10/s' or '600/h'. To let nothing through, pause the group."
        )
    return UNITS[match[2]] / UNITS["ms"] / int(match[1])


def written_rate(interval: float) -> str:
    """Return the rate as text, for permits that are ``interval`` milliseconds apart."""
    for unit in ("s", "m", "h", "d"):
        permits = UNITS[unit] / UNITS["ms"] / interval
        if permits >= 1 and math.isclose(permits, round(permits), rel_tol=1e-9):
            return f"{round(permits)}/{unit}"
    return f"1/{interval:g} ms"


def check_limit(name: str, value: int | None) -> int | None:
    """Return the number, or refuse one that is not from 1 to 10,000; None is no limit."""
    if value is not None and (type(value) is not int or not 1 <= value <= MOST):
        raise InvalidConfiguration(
            f"{name} must be from 1 to {MOST}, not {value!r}. To have no limit, leave it out; to "
            "let nothing through, pause the group."
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The limits of a queue's groups, and of the queue as a whole.

    ``concurrency``: leases at a time per group. ``order="fifo"``: the messages of a group one after
    the other in their order, also past a retry. ``on_dead="block"``: a dead letter blocks its group
    until an operator acts. ``rate``: starts per group, such as ``"10/s"``, evenly spaced, or up to
    ``burst`` at once after a rest. ``queue_rate`` and ``queue_burst`` count all groups together.
    ``fair``: claims take turns between the groups; otherwise the most overdue message is first.
    """

    concurrency: int | None = None
    order: str = "any"
    fair: bool = True
    rate: str | None = None
    burst: int | None = None
    queue_rate: str | None = None
    queue_burst: int | None = None
    on_dead: str = "pass"

    def __post_init__(self) -> None:
        for name in ("concurrency", "burst", "queue_burst"):
            check_limit(name, getattr(self, name))
        for name, known in (("order", ORDERS), ("on_dead", ON_DEAD), ("fair", (True, False))):
            if (value := getattr(self, name)) not in known:
                choices = ", ".join(map(str, known))
                raise InvalidConfiguration(f"{name} must be one of {choices}, not {value!r}.")
        if self.is_ordered and (self.concurrency or 1) > 1:
            raise InvalidConfiguration(
                f'order="fifo" is one at a time, so concurrency={self.concurrency} contradicts it. '
                "Leave concurrency out, or use one group per sequence."
            )
        _check_rate("rate", self.rate, "burst", self.burst)
        _check_rate("queue_rate", self.queue_rate, "queue_burst", self.queue_burst)

    @property
    def is_ordered(self) -> bool:
        return self.order == "fifo"

    @property
    def blocks_on_dead(self) -> bool:
        return self.on_dead == "block"

    def __str__(self) -> str:
        """Return the options that are set, as JSON: equal declarations have equal texts."""
        plain = asdict(Groups())
        return json.dumps(
            {name: each for name, each in asdict(self).items() if each != plain[name]}
        )


def _check_rate(name: str, rate: str | None, of_burst: str, burst: int | None) -> None:
    if rate is not None:
        parse_rate(rate)
    elif burst is not None:
        raise InvalidConfiguration(f"{of_burst} needs a {name}, as in {name}='10/s'.")
