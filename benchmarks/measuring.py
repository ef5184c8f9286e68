"""Interleaved rounds of two workloads, their rates, percentiles and WAL, as ratios."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

import psycopg

# The sides take turns this long: others who use the machine then slow down both alike.
TURN_SECONDS: Final = 0.02
_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Workload:
    """Work in equal operations.

    ``prepare`` brings the database into the starting state and returns the input of each
    operation until it must be called again; ``messages`` is how many one operation handles.
    """

    messages: int
    prepare: Callable[[], Sequence[Any]]
    operate: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our way and the bare way of one kind of work; ``target`` is the ratio aimed at."""

    name: str
    title: str
    ours: Workload
    bare: Workload
    target: float | None = None


@dataclass(slots=True)
class Side:
    """What was measured of one workload; durations in seconds, one rate and WAL per round."""

    rates: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    wal_per_message: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages per second, the median of the rounds."""
        return median(self.rates)

    @property
    def wal(self) -> float:
        """Bytes of WAL per message, the median of the rounds."""
        return median(self.wal_per_message)

    def percentile(self, percent: int) -> float:
        """Seconds that so many percent of the operations of all rounds took at most."""
        if len(self.durations) == 1:
            return self.durations[0]
        return quantiles(self.durations, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True, slots=True)
class Result:
    """Both sides of one comparison."""

    name: str
    title: str
    target: float | None
    ours: Side
    bare: Side

    @property
    def ratios(self) -> list[float]:
        """Our rate over the bare one, for each round: neighbours in time share the weather."""
        pairs = zip(self.ours.rates, self.bare.rates, strict=True)
        return [ours / bare for ours, bare in pairs]

    @property
    def ratio(self) -> float:
        return median(self.ratios)


@dataclass(slots=True)
class Runner:
    """Runs one workload a turn at a time; preparations are not counted."""

    workload: Workload
    wal_position: Callable[[], int]
    inputs: Iterator[Any] = field(default_factory=lambda: iter(()))
    durations: list[float] = field(default_factory=list)
    spent: float = 0.0
    wal: int = 0

    def take_turn(self) -> None:
        """Work for TURN_SECONDS, for one operation at least."""
        each = next(self.inputs, _NONE)
        if each is _NONE:
            self.inputs = iter(self.workload.prepare())
            gc.collect()
            each = next(self.inputs)
        written, until = self.wal_position(), self.spent + TURN_SECONDS
        while each is not _NONE:
            self._operate(each)
            each = next(self.inputs, _NONE) if self.spent < until else _NONE
        self.wal += self.wal_position() - written

    def _operate(self, each: Any) -> None:
        started_at = time.perf_counter()
        self.workload.operate(each)
        self.durations.append(time.perf_counter() - started_at)
        self.spent += self.durations[-1]

    def hand_over(self, side: Side) -> None:
        """Add what was measured since the last time as one round."""
        messages = len(self.durations) * self.workload.messages
        side.rates.append(messages / self.spent)
        side.wal_per_message.append(self.wal / messages)
        side.durations.extend(self.durations)
        self.durations, self.spent, self.wal = [], 0.0, 0


@dataclass(frozen=True, slots=True)
class Meter:
    """Measures comparisons in rounds of so many seconds of work on either side."""

    connection: psycopg.Connection[Any]
    seconds: float

    def compare(self, comparison: Comparison, rounds: int) -> Result:
        """Measure both sides in turns short enough to share the machine's weather."""
        ours = Runner(comparison.ours, self._wal_position)
        bare = Runner(comparison.bare, self._wal_position)
        result = Result(comparison.name, comparison.title, comparison.target, Side(), Side())
        for number in range(rounds + 1):
            warming_up = number == 0
            self._round(ours, bare)
            ours.hand_over(Side() if warming_up else result.ours)
            bare.hand_over(Side() if warming_up else result.bare)
        return result

    def _round(self, ours: Runner, bare: Runner) -> None:
        while ours.spent < self.seconds or bare.spent < self.seconds:
            # The one that lags goes first, so that both end at about the same time.
            min(ours, bare, key=lambda runner: runner.spent).take_turn()

    def _wal_position(self) -> int:
        row = self.connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
        return int(row[0]) if row else 0
