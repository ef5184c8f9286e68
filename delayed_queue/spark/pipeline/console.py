"""The output of a command: progress, the result, and one sentence for an error."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, TextIO

from delayed_queue.exceptions import DelayedQueueError


class Console:
    """Writes progress to standard error and the result to standard output."""

    def __init__(
        self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.as_json = as_json
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._began_at = time.monotonic()

    def progress(self, text: str) -> None:
        """Write what is being done, with the seconds since the start."""
        passed = time.monotonic() - self._began_at
        self._err.write(f"[{passed:6.1f} s] {text}\n")
        self._err.flush()

    def warn(self, text: str) -> None:
        self._err.write(f"{text}\n")
        self._err.flush()

    def answer(self, report: dict[str, Any], lines: Sequence[str]) -> None:
        """Write the result as JSON, or the given lines."""
        text = json.dumps(report, default=str) if self.as_json else "\n".join(lines)
        self._out.write(f"{text}\n")
        self._out.flush()


def aligned(rows: Sequence[Sequence[Any]], *, names: int = 1, gap: str = "  ") -> list[str]:
    """Return the rows as a table: the first ``names`` columns are texts, the rest figures."""
    cells = [[cell(each) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        gap.join(
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
    """Return a time span with three figures and a unit."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2f} s"


BINARY: Final = "pip install 'psycopg[binary]'"

# The last line of a Python traceback, wherever Spark has put it.
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
_OURS: Final = re.compile(r"delayed_queue\.[\w.]*\.([A-Z]\w+): (.+)$", re.MULTILINE)
# The start of psycopg's message, before the list of what it has tried.
_NO_LIBPQ: Final = "no pq wrapper available"
_CLASS: Final = re.compile(r"^\[(\w+(?:\.\w+)*)\]\s*")
_JAVA: Final = re.compile(
    r"^(?:: |Caused by: )?((?:java|org)\.[\w.$]+(?:Exception|Error)): (.+)$", re.M
)


def sentence_of(error: BaseException) -> str:
    """Return one sentence: our own message if the error has one, else Spark's first line."""
    if isinstance(error, DelayedQueueError):
        return str(error)
    if isinstance(error, ImportError) and _NO_LIBPQ in str(error):
        return f"psycopg finds no libpq: {BINARY}, or install libpq."
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1][1])
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text)
        if raised:
            return f"{raised[-1][0]}: {raised[-1][1]}"
    java = _JAVA.findall(text)
    if java and text.startswith("An error occurred while calling"):
        return f"{java[-1][0].rpartition('.')[2]}: {java[-1][1]}"
    first = text.strip().partition("\n")[0]
    return _CLASS.sub("", first) or type(error).__name__
