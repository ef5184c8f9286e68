"""Output of commands: tables, and facts about one thing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, Final

_GAP: Final = "  "
_FIGURE: Final = re.compile(r"[\d,.:+-]+").fullmatch
_IDS: Final = ("id", "run")
# Columns of text: on a narrow terminal each gets a line of its own.
_APART: Final = frozenset({"error", "note", "reason", "running"})


def described(facts: Mapping[str, Any]) -> str:
    """Return a line for each fact about one thing."""
    width = max(map(len, facts))
    words = {name: "-" if each in ("", 0) else _text(each) for name, each in facts.items()}
    return printable("\n".join(f"{name:{width}} {each}" for name, each in words.items()))


def printable(text: str, allowed: str = "\n\t") -> str:
    """Return the text without control characters, except the allowed ones."""
    return "".join(each if each.isprintable() or each in allowed else " " for each in text)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)


def lines(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), *, is_fitted: bool = False
) -> list[str]:
    """Return a heading and a line for each row, numbers to the right.

    A table that does not fit the terminal has its columns of text on lines below each row.
    """
    names = list(columns or (rows[0] if rows else ()))
    whole = _aligned(rows, names)
    if not is_fitted or max(map(len, whole)) <= get_terminal_size().columns:
        return whole
    apart = [each for each in names if each in _APART]
    heading, *found = _aligned(rows, [each for each in names if each not in _APART])
    shown = [heading]
    for line, row in zip(found, rows, strict=True):
        shown += [line, *(f"{_GAP}{name}: {_cell(name, row[name])}" for name in apart)]
    return shown


def _aligned(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    cells = [[each.replace("_", " ") for each in names]]
    cells += [[_cell(name, row[name]) for name in names] for row in rows]
    by_column = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in by_column]
    right = [all(map(_FIGURE, column[1:])) for column in by_column]
    return [_line(line, widths, right) for line in cells]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    # An id stays as an operator types it.
    if isinstance(value, int) and name not in _IDS:
        return f"{value:,}"
    return printable(_text(value), allowed="")


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    parts = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(parts).rstrip()
