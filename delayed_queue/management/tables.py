"""Every list of the commands: a table for people, JSON for programs."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.core.management.base import OutputWrapper

WIDTH: Final = 80
_GAP: Final = "  "
_LEAST: Final = 12


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="write JSON, one object of a list for each row"
    )


def show(
    out: OutputWrapper, rows: Sequence[dict[str, Any]], *, as_json: bool, none: str = "Nothing."
) -> None:
    """Write the rows, whose keys are the heads of the columns.

    At most 80 characters wide: the widest texts are cut, in JSON nothing is.
    """
    if as_json:
        out.write(json.dumps(rows, default=str))
    elif rows:
        out.write("\n".join(lines(rows)))
    else:
        out.write(none)


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a head and a line for each row, numbers to the right."""
    heads = list(rows[0])
    cells = [[each.replace("_", " ") for each in heads]]
    cells += [[_text(row[head]) for head in heads] for row in rows]
    widths = _fitted([max(map(len, column)) for column in zip(*cells, strict=True)])
    right = [all(isinstance(row[head], int) for row in rows) for head in heads]
    return [_line(line, widths, right) for line in cells]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    # One line each, and nothing that a terminal would obey.
    return "".join(each if each.isprintable() else " " for each in str(value))


def _fitted(widths: list[int]) -> list[int]:
    """Return the widths, the widest cut until all fit or none is left to cut."""
    fitted = list(widths)
    while sum(fitted) + len(_GAP) * (len(fitted) - 1) > WIDTH and max(fitted) > _LEAST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    parts = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(cut.rjust(width) if is_right else cut.ljust(width))
    return _GAP.join(parts).rstrip()
