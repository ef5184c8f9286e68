"""Every list of the commands: a table for people, JSON for programs."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.core.management.base import OutputWrapper
from django.utils.translation import gettext as _

WIDTH: Final = 80
_GAP: Final = "  "
_LEAST: Final = 12
_FIGURE: Final = re.compile(r"[\d,.:+-]+").fullmatch


def add_format(parser: ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "--format", choices=["table", "json", *more], default="table",
        help=_("json: everything, for programs (default: table)"),
    )  # fmt: skip


def show(
    out: OutputWrapper, rows: Sequence[dict[str, Any]], style: str, *, none: str = "Nothing."
) -> None:
    """Write the rows, whose keys are the heads of the columns.

    As a table at most 80 characters wide: the widest texts are cut, in JSON nothing is.
    """
    if style == "json":
        out.write(json.dumps(rows, default=str))
    else:
        out.write("\n".join(lines(rows)) if rows else none)


def tell(out: OutputWrapper, said: str, style: str, **facts: Any) -> None:
    """Write what was done: a sentence for people, its facts for programs."""
    out.write(json.dumps(facts, default=str) if style == "json" else said)


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a head and a line for each row, figures to the right."""
    heads = list(rows[0])
    cells = [[each.replace("_", " ") for each in heads]]
    cells += [[_text(row[head]) for head in heads] for row in rows]
    widths = _fitted([max(map(len, column)) for column in zip(*cells, strict=True)])
    right = [all(map(_FIGURE, column[1:])) for column in zip(*cells, strict=True)]
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
