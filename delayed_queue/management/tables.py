"""Output of commands: tables, facts about one thing, and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, Final

from django.core.management.base import OutputWrapper
from django.utils.translation import gettext as _

_GAP: Final = "  "
# Columns are never cut below this width.
_MIN_WIDTH: Final = 12
_FIGURE: Final = re.compile(r"[\d,.:+-]+").fullmatch
# Values that are useless when cut: numbers, times, fingerprints.
_WHOLE: Final = re.compile(r"[\d,.:+-]*|[\d-]{10} [\d:]{8}|[0-9a-f]{16}").fullmatch
_IDS: Final = ("id", "run")


def show(out: OutputWrapper, rows: Sequence[dict[str, Any]], style: str, *, none: str = "") -> None:
    """Write the rows as JSON, or as a table under their keys that fits the terminal."""
    if style == "json":
        out.write(json.dumps(rows, default=str))
    else:
        out.write("\n".join(lines(rows)) if rows else none or _("Nothing."))


def tell(out: OutputWrapper, said: str, style: str, **facts: Any) -> None:
    """Write a sentence, or its facts as JSON."""
    out.write(json.dumps(facts, default=str) if style == "json" else said)


def described(facts: Mapping[str, Any]) -> str:
    """Return a line for each fact about one thing."""
    width = max(map(len, facts))
    return printable("\n".join(f"{name:{width}} {_word(facts[name])}" for name in facts))


def printable(text: str) -> str:
    """Return text of several lines without control characters."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def _word(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value or "-")


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a head and a line for each row, figures to the right."""
    heads = list(rows[0])
    cells = [[each.replace("_", " ") for each in heads]]
    cells += [[_text(row[head], is_id=head in _IDS) for head in heads] for row in rows]
    columns = list(zip(*cells, strict=True))
    can_cut = [not all(map(_WHOLE, column[1:])) for column in columns]
    widths = _fitted([max(map(len, column)) for column in columns], can_cut)
    right = [all(map(_FIGURE, column[1:])) for column in columns]
    return [_line(line, widths, right) for line in cells]


def _text(value: Any, *, is_id: bool = False) -> str:
    if value is None:
        return "-"
    if is_id:
        return str(value)  # as it is typed
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    # One line, without control characters.
    return "".join(each if each.isprintable() else " " for each in str(value))


def _fitted(widths: list[int], can_cut: list[bool]) -> list[int]:
    """Return the widths, the widest cut until all fit or none is left to cut."""
    fitted, most = list(widths), get_terminal_size().columns
    while sum(fitted) + len(_GAP) * (len(fitted) - 1) > most:
        left = [each for each, can in enumerate(can_cut) if can and fitted[each] > _MIN_WIDTH]
        if not left:
            break
        fitted[max(left, key=fitted.__getitem__)] -= 1
    return fitted


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    parts = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(cut.rjust(width) if is_right else cut.ljust(width))
    return _GAP.join(parts).rstrip()
