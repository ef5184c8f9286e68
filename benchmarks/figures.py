"""What a benchmark hands in: tables, plots and the options to write them by."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any


@dataclass(slots=True)
class Table:
    title: str
    header: Sequence[str]
    # Each is a sequence of strings, of any kind.
    rows: list[Any] = field(default_factory=list)

    def as_markdown(self) -> str:
        alignment = ["---", *["--:"] * (len(self.header) - 1)]
        lines = [self.header, alignment, *self.rows]
        return "\n".join([f"### {self.title}", "", *map(_row, lines)]) + "\n"


@dataclass(slots=True)
class Line:
    """A line of a plot: its name, and its points."""

    name: str
    points: list[tuple[float, float]]


@dataclass(slots=True)
class Plot:
    title: str
    x: str
    y: str
    lines: list[Line]
    is_log_x: bool = False
    is_log_y: bool = False


@dataclass(slots=True)
class Report:
    machine: dict[str, str]
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def as_markdown(self) -> str:
        machine = Table("Machine", ("", ""), list(self.machine.items()))
        return "\n".join(each.as_markdown() for each in [*self.tables, machine])

    def write(self, options: Namespace) -> None:
        """Print the tables; write the files that the options name."""
        # What the load average was while it ran, and not only when it began.
        ended = " ".join(f"{load:.1f}" for load in os.getloadavg())
        self.machine["load average at the end"] = ended
        sys.stdout.write(self.as_markdown())
        if options.markdown:
            options.markdown.write_text(self.as_markdown())
        if options.json:
            tables = [asdict(each) for each in self.tables]
            whole = {"machine": self.machine, "tables": tables, **self.data}
            options.json.write_text(json.dumps(whole, indent=2) + "\n")
        if options.plot:
            # Only now: a run without a plot needs no matplotlib.
            from benchmarks.plots import draw

            draw(self.plots, options.plot)


def parser_for(name: str, description: str | None) -> ArgumentParser:
    """Return a parser with the options that all benchmarks of this kind have."""
    parser = ArgumentParser(f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="small counts: shows that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="needs the extra bench")
    parser.add_argument(
        "--database-url",
        default=os.environ.get("DATABASE_URL"),
        help="a server on which a database may be created; otherwise DATABASE_URL, otherwise "
        "the embedded PostgreSQL, which is started and left running",
    )
    return parser


def percentile(values: Sequence[float], percent: int) -> float:
    """Return what so many percent of the values are at most; NaN of none."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the percentiles as the points of a line."""
    return [(float(percent), percentile(values, percent)) for percent in range(1, 100)]


def say(what: str) -> None:
    """Tell who waits how far it is."""
    sys.stderr.write(f"{what}\n")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
