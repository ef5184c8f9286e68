"""What was measured: every run as it was, and the medians that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One measure of one contender in one round, and its figures."""

    contender: str
    measure: str
    round: int
    processes: int
    figures: dict[str, Any]


@dataclass(slots=True)
class Record:
    """Everything that a report is made from; it is what the JSON file holds."""

    machine: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started_at: str = ""
    seconds: float = 0.0
    contenders: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def figures(self, contender: str, measure: str, name: str, processes: int = 1) -> list[float]:
        """Return that figure of each round, in order."""
        return [
            run.figures[name]
            for run in self.runs
            if (run.contender, run.measure, run.processes) == (contender, measure, processes)
            and run.figures.get(name) is not None
        ]

    def median(self, contender: str, measure: str, name: str, processes: int = 1) -> float | None:
        found = self.figures(contender, measure, name, processes)
        return median(found) if found else None

    def best(self, contenders: Iterable[str], measure: str, name: str, processes: int = 1) -> str:
        """Return the contender with the highest median."""
        return max(contenders, key=lambda each: self.median(each, measure, name, processes) or 0.0)

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def load(file: Path) -> Record:
    """Return the record that was saved in the file."""
    stored = json.loads(file.read_text())
    runs = [Run(**run) for run in stored.pop("runs")]
    return Record(**stored, runs=runs)
