"""Two workloads in turns of 20 ms.

A workload is many equal operations. Turns are this short so that other load of the machine
slows down both sides alike. Preparations (truncating, filling, analyzing) are not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
    """The rates of the rounds of one workload, and the seconds of all operations."""

    workload: Workload
    rates: list[float] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    inputs: Iterator[Any] = field(default_factory=lambda: iter(()))
    spent: float = 0.0
    operations: int = 0

    def take_turn(self) -> None:
        """Operate for TURN_SECONDS, at least once."""
        each = next(self.inputs, _NONE)
        if each is _NONE:
            self.inputs = iter(self.workload.prepare())
            gc.collect()
            each = next(self.inputs)
        until = self.spent + TURN_SECONDS
        while each is not _NONE:
            started_at = time.perf_counter()
            self.workload.operate(each)
            self.durations.append(time.perf_counter() - started_at)
            self.spent += self.durations[-1]
            self.operations += 1
            each = next(self.inputs, _NONE) if self.spent < until else _NONE

    def end_round(self) -> None:
        self.rates.append(self.operations * self.workload.messages / self.spent)
        self.spent, self.operations = 0.0, 0


def compare(comparison: Comparison, rounds: int, seconds: float) -> tuple[Side, Side]:
    """Measure both sides in rounds of ``seconds`` of work each; the first round warms up."""
    ours, bare = Side(comparison.ours), Side(comparison.bare)
    for number in range(rounds + 1):
        while ours.spent < seconds or bare.spent < seconds:
            # The one behind goes first, so that both finish at about the same time.
            min(ours, bare, key=lambda side: side.spent).take_turn()
        for side in (ours, bare):
            side.end_round()
            if number == 0:
                side.rates, side.durations = [], []
    return ours, bare
