"""Two workloads in turns of 20 ms: rates, percentiles and WAL of each round.

A workload is many equal operations. Turns are this short so that whatever else the machine does
slows down both sides alike. Preparations (truncating, filling, analyzing) are not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.shared.database import Connection, value_of
from benchmarks.shared.rounds import percentile, ratios

TURN_SECONDS: Final = 0.02
_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Workload:
    """Equal operations on ``messages`` messages each.

    ``prepare`` brings the database into the starting state and returns the input of each
    operation until it must be called again.
    """

    messages: int
    prepare: Callable[[], Sequence[Any]]
    operate: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One kind of work as the queue does it and as bare SQL does it."""

    name: str
    title: str
    ours: Workload
    bare: Workload
    aim: float | None = None


@dataclass(slots=True)
class Side:
    """Rates and WAL bytes a message by round, and the seconds of all operations."""

    rates: list[float] = field(default_factory=list)
    wal: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def percentiles_ms(self) -> str:
        return " / ".join(f"{percentile(self.durations, each) * 1000:.2f}" for each in (50, 99))


@dataclass(slots=True)
class Runner:
    """Runs one workload, a turn at a time."""

    workload: Workload
    wal_position: Callable[[], int]
    inputs: Iterator[Any] = field(default_factory=lambda: iter(()))
    durations: list[float] = field(default_factory=list)
    spent: float = 0.0
    wal: int = 0

    def take_turn(self) -> None:
        """Operate for TURN_SECONDS, at least once."""
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

    def end_round(self, side: Side) -> None:
        """Record what was measured since the last call as one round."""
        messages = len(self.durations) * self.workload.messages
        side.rates.append(messages / self.spent)
        side.wal.append(self.wal / messages)
        side.durations += self.durations
        self.durations, self.spent, self.wal = [], 0.0, 0


@dataclass(frozen=True, slots=True)
class Result:
    """Both sides of one comparison."""

    comparison: Comparison
    ours: Side = field(default_factory=Side)
    bare: Side = field(default_factory=Side)

    @property
    def ratios(self) -> list[float]:
        return ratios(self.ours.rates, self.bare.rates)


def compare(connection: Connection, comparison: Comparison, rounds: int, seconds: float) -> Result:
    """Measure both sides in rounds of ``seconds`` of work each; the first round warms up."""

    def wal_position() -> int:
        return int(value_of(connection, "SELECT pg_current_wal_lsn() - '0/0'"))

    ours, bare = (Runner(each, wal_position) for each in (comparison.ours, comparison.bare))
    result = Result(comparison)
    for number in range(rounds + 1):
        while ours.spent < seconds or bare.spent < seconds:
            # The one behind goes first, so that both finish at about the same time.
            min(ours, bare, key=lambda runner: runner.spent).take_turn()
        ours.end_round(result.ours if number else Side())
        bare.end_round(result.bare if number else Side())
    return result
