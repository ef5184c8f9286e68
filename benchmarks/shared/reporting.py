"""The command line of a benchmark, and its results as Markdown and JSON."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.machine import load_average


class Options:
    """The options of every benchmark, and sizes that ``--quick`` makes small."""

    def __init__(self, name: str, description: str | None) -> None:
        self.parser = ArgumentParser(f"python -m benchmarks{name}", description=description)
        self._sizes: dict[str, tuple[Any, Any]] = {}
        add = self.parser.add_argument
        add("--quick", action="store_true", help="small counts: shows that the benchmark runs")
        add("--json", type=Path, metavar="FILE", help="write the results as JSON")
        add("--markdown", type=Path, metavar="FILE", help="write the results as Markdown")
        add("--database-url", default=os.environ.get("DATABASE_URL"),
            help="a server on which databases may be created; default: DATABASE_URL, or else the "
            "embedded PostgreSQL, which is started and keeps running")  # fmt: skip

    def size(self, name: str, full: float, quick: float, unit: str) -> Options:
        """Add a number with a default, and another default for ``--quick``."""
        self._sizes[name.replace("-", "_")] = (full, quick)
        told = f"{unit} ({full:,}; quick {quick:,})"
        self.parser.add_argument(f"--{name}", type=type(full), help=told)
        return self

    def parse(self) -> Namespace:
        options = self.parser.parse_args()
        for name, (full, quick) in self._sizes.items():
            if getattr(options, name) is None:
                setattr(options, name, quick if options.quick else full)
        return options


@dataclass(slots=True)
class Table:
    """A table of results; rows hold strings."""

    title: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row, and show it to the waiting user."""
        self.rows.append(cells)
        say("  ".join(cells))

    def as_markdown(self) -> str:
        alignment = ["---", *["--:"] * (len(self.header) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, alignment, *self.rows)]
        return "\n".join([f"### {self.title}", "", *lines]) + "\n"


@dataclass(slots=True)
class Report:
    """The tables of a benchmark, the machine, and what else its JSON file holds."""

    machine: dict[str, str]
    tables: list[Table] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def as_markdown(self) -> str:
        machine = Table("Machine", ("", ""), list(self.machine.items()))
        return "\n".join(each.as_markdown() for each in [*self.tables, machine])

    def write(self, options: Namespace) -> None:
        """Print the tables; write the files that the options name."""
        self.machine["load average at the end"] = load_average()
        sys.stdout.write(self.as_markdown())
        if options.markdown:
            options.markdown.write_text(self.as_markdown())
        if options.json:
            tables = [asdict(each) for each in self.tables]
            whole = {"machine": self.machine, "tables": tables, **self.data}
            options.json.write_text(json.dumps(whole, indent=1, default=str) + "\n")


def say(text: str) -> None:
    """Show progress on standard error."""
    sys.stderr.write(f"{text}\n")
