"""The rounds: each measures every contender once, so that all share the machine's weather."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import psycopg

from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.environments import Unavailable
from benchmarks.peers.measures.drain import drain
from benchmarks.peers.measures.groups import groups
from benchmarks.peers.measures.idle import idle
from benchmarks.peers.measures.offer import offer
from benchmarks.peers.measures.pickup import pickup
from benchmarks.peers.processes import ScriptFailed
from benchmarks.peers.recording import Record, Run

MEASURES: Final = ("drain", "offer", "pickup", "groups", "idle")
IDLE_TOGETHER: Final = 6
FAILURES: Final = (RuntimeError, ScriptFailed, TimeoutError, Unavailable, psycopg.Error)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    contenders: Sequence[Contender]
    measures: Sequence[str]
    processes: Sequence[int]
    rounds: int
    pickup_rounds: int
    minutes: float

    def steps(self, number: int) -> Iterator[tuple[str, Contender, int]]:
        """Yield the steps of one round; every second round goes backwards."""
        ordered = list(self.contenders) if number % 2 == 0 else list(reversed(self.contenders))
        for measure in self.measures:
            if measure == "idle" or (measure == "pickup" and number >= self.pickup_rounds):
                continue
            for processes in self.processes if measure == "drain" else (1,):
                for each in ordered:
                    if each.has(measure):
                        yield measure, each, processes


@dataclass(frozen=True, slots=True)
class Tournament:
    """A plan carried out: runs are recorded, and what cannot run is said."""

    arena: Arena
    plan: Plan
    record: Record
    took: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def run(self) -> None:
        """Measure all; a contender that fails keeps its name and its reason in the record.

        A round that would not end in time, going by what its steps took before, is not begun.
        """
        until = time.monotonic() + self.plan.minutes * 60
        for contender in self.plan.contenders:
            self._prepare(contender)
        for number in range(self.plan.rounds):
            if number and time.monotonic() + self._expected(number) > until:
                return
            for measure, contender, processes in self.plan.steps(number):
                began_at = time.monotonic()
                self._step(number, measure, contender, processes)
                self.took[measure, contender.name, processes] = time.monotonic() - began_at
            if number == 0 and "idle" in self.plan.measures:
                self._idle()

    def _expected(self, number: int) -> float:
        steps = self.plan.steps(number)
        return sum(self.took[measure, each.name, count] for measure, each, count in steps)

    def _prepare(self, contender: Contender) -> None:
        reason = contender.why_not()
        if reason is None:
            reason = _tried(lambda: self.arena.prepare(contender))
        if reason is not None:
            self._excuse(contender, reason)
            return
        peer = contender.peer
        if peer.name not in self.record.versions:
            self.record.versions[peer.name] = peer.environment.versions()

    def _step(self, number: int, measure: str, contender: Contender, processes: int) -> None:
        if contender.name in self.record.not_run:
            return
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            "drain": lambda: drain(self.arena, contender, processes),
            "offer": lambda: offer(self.arena, contender),
            "pickup": lambda: pickup(self.arena, contender),
            "groups": lambda: groups(self.arena, contender),
        }
        self._record(number, measure, contender, processes, calls[measure])

    def _record(
        self,
        number: int,
        measure: str,
        contender: Contender,
        processes: int,
        call: Callable[[], dict[str, Any]],
    ) -> None:
        started_at = time.monotonic()
        figures: dict[str, Any] = {}
        reason = _tried(lambda: figures.update(call()))
        if reason is not None:
            self._excuse(contender, f"{measure} with {processes}: {reason}")
            return
        self.record.runs.append(Run(contender.name, measure, number, processes, figures))
        shown = "  ".join(
            f"{name} {value:,.1f}" for name, value in figures.items() if value is not None
        )
        _say(f"{measure}/{processes} {contender.name:24} {shown}", started_at)

    def _idle(self) -> None:
        able = [
            each
            for each in self.plan.contenders
            if each.has("idle") and each.name not in self.record.not_run
        ]
        for start in range(0, len(able), IDLE_TOGETHER):
            self._idle_together(able[start : start + IDLE_TOGETHER])

    def _idle_together(self, group: Sequence[Contender]) -> None:
        found: dict[str, dict[str, Any]] = {}
        reason = _tried(lambda: found.update(idle(self.arena, group)))
        for each in group:
            if reason is not None:
                self._excuse(each, f"idle: {reason}")
            else:
                self._record(0, "idle", each, 1, partial(found.__getitem__, each.name))

    def _excuse(self, contender: Contender, reason: str) -> None:
        self.record.not_run[contender.name] = reason
        sys.stderr.write(f"not run: {contender.name}: {reason}\n")


def _tried(call: Callable[[], object]) -> str | None:
    """Return why the call failed, or None."""
    try:
        call()
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    return None


def _say(text: str, started_at: float) -> None:
    sys.stderr.write(f"{text}  ({time.monotonic() - started_at:.1f} s)\n")
