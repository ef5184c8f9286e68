"""What a command says while it works, and how it answers at its end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO


class Console:
    """Progress to the standard error, the answer to the standard output."""

    def __init__(
        self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._began_at = time.monotonic()

    def progress(self, text: str) -> None:
        """Say what is being done, after how many seconds."""
        passed = time.monotonic() - self._began_at
        self._err.write(f"[{passed:6.1f} s] {text}\n")
        self._err.flush()

    def warn(self, text: str) -> None:
        self._err.write(f"{text}\n")
        self._err.flush()

    def answer(self, report: dict[str, Any], lines: Sequence[str]) -> None:
        """Write the report: as JSON, or in the given words."""
        text = json.dumps(report, default=str) if self.as_json else "\n".join(lines)
        self._out.write(f"{text}\n")
        self._out.flush()


def aligned(rows: Sequence[Sequence[Any]], *, names: int = 1) -> list[str]:
    """Return the rows as a table: the first columns are names, the rest are figures."""
    cells = [[cell(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if index < names else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def span(seconds: float) -> str:
    """Return a time span as people say it, three figures long."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"
