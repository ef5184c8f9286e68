"""From lines to records. A line of JSON is one record; of CSV a record has one line or several."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.spark.source.rules import parse_json

BOM: Final = "\ufeff"
# A quote that is never closed would else swallow the rest of the file.
MOST_LINES: Final = 1_000
MOST_CHARACTERS: Final = 4 * 1024 * 1024
_MOST_IN_CELL: Final = 2**31 - 1
_UNCLOSED: Final = "unexpected end of data"  # the text of the module csv


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no record, and the reason."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Read:
    """Records, the lines that are none, and the place of each in its block."""

    places: Sequence[int]
    records: Any
    wrong: Sequence[tuple[int, Unreadable]] = ()


# A place with its record; None for an empty line.
Found = tuple[int, dict[str, Any] | Unreadable | None]


class Reader(Protocol):
    """Makes records of lines; ``is_open`` is whether one has begun and not ended."""

    @property
    def is_open(self) -> bool: ...

    def read(self, first: int, lines: list[bytes], *, is_start: bool) -> Read:
        """Read the lines of a block from place ``first``; ``is_start``: those of a file."""

    def end(self) -> Read:
        """Return what is left when no line of the block follows."""


class JsonReader:
    """One JSON object a line."""

    is_open = False

    def read(self, first: int, lines: list[bytes], *, is_start: bool) -> Read:
        if is_start:
            lines[0] = lines[0].removeprefix(BOM.encode())
        return _sorted_out(enumerate(map(_json_record, lines), first))

    def end(self) -> Read:
        return Read((), [])


class CsvReader:
    """A record is a line, or several if a quoted cell holds line breaks; it is at its first line.

    If lines are no record together, the first one is bad, and the others are read again.
    """

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = list(columns)
        self._delimiter = delimiter
        # Lines of a record that may continue.
        self._lines: list[tuple[int, str | Unreadable]] = []
        # For the whole process, which is a worker of Spark: a cell is as large as a payload.
        csv.field_size_limit(_MOST_IN_CELL)

    @property
    def is_open(self) -> bool:
        return bool(self._lines)

    def read(self, first: int, lines: list[bytes], *, is_start: bool) -> Read:
        found: list[Found] = []
        if is_start:
            found += self._header(_text(lines[0]))
            first, lines = first + 1, lines[1:]
        elif (records := self._plain(lines)) is not None:
            return Read(range(first, first + len(lines)), records)
        self._lines += enumerate(map(_text, lines), first)
        return _sorted_out([*found, *self._records()])

    def end(self) -> Read:
        return _sorted_out(self._records(is_end=True))

    def _header(self, line: str | Unreadable) -> list[Found]:
        """Return the first line if it is not the header, which all files have alike."""
        if isinstance(line, str):
            line = line.removeprefix(BOM)
            if _is_cells(line, self._delimiter, self._columns):
                return []
            line = Unreadable(line, "The header differs from the others.")
        return [(0, line)]

    def _plain(self, lines: list[bytes]) -> pa.RecordBatch | None:
        """Return the records of lines that are one record each; None if one of them is not."""
        try:
            texts = [str(line, "utf-8") for line in lines]
            # A line of spaces is no record, and would be one with a tab as delimiter.
            if self._lines or not all(map(str.strip, texts)):
                return None
            rows = list(csv.reader(texts, delimiter=self._delimiter, strict=True))
        except (UnicodeDecodeError, csv.Error):
            return None
        width = len(self._columns)
        # A record of several lines leaves fewer records than lines.
        if len(rows) != len(lines) or any(len(row) != width for row in rows):
            return None
        cells = [pa.array(each, pa.string()) for each in zip(*rows, strict=True)]
        return pa.RecordBatch.from_arrays(cells, self._columns)

    def _records(self, *, is_end: bool = False) -> Iterator[Found]:
        """Yield the records of the lines, but the last one if it may continue."""
        while self._lines:
            count, record = self._first_record(is_end=is_end)
            if not count:
                return
            yield self._lines[0][0], record
            del self._lines[:count]

    def _first_record(self, *, is_end: bool) -> tuple[int, dict[str, Any] | Unreadable | None]:
        """Return the number of lines of the first record, 0 if it may continue, and the record."""
        _, line = self._lines[0]
        if isinstance(line, Unreadable) or not line.strip():
            return 1, line if isinstance(line, Unreadable) else None
        used: list[str] = []
        try:
            cells = next(csv.reader(self._texts(used), delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            is_open = str(error) == _UNCLOSED and len(used) == len(self._lines)
            if is_open and not is_end and _may_continue(used):
                return 0, None
            said = f"The line is not CSV: {error}."
        else:
            if len(cells) == len(self._columns):
                return len(used), dict(zip(self._columns, cells, strict=True))
            said = f"It has {len(cells)} columns; the header has {len(self._columns)}."
        return 1, Unreadable(line, said if len(used) == 1 else f"The line is not CSV: {_UNCLOSED}.")

    def _texts(self, used: list[str]) -> Iterator[str]:
        """Yield the lines that the first record may have, and add each to ``used``."""
        for _, line in self._lines:
            if isinstance(line, Unreadable) or not _may_continue(used):
                return
            used.append(line)
            yield f"{line}\n"


def _may_continue(used: Sequence[str]) -> bool:
    return len(used) < MOST_LINES and sum(map(len, used)) < MOST_CHARACTERS


def cells_of(text: str, delimiter: str) -> list[str]:
    """Return the cells of a line, or raise csv.Error."""
    return next(csv.reader([f"{text}\n"], delimiter=delimiter, strict=True))


def _is_cells(text: str, delimiter: str, cells: list[str]) -> bool:
    try:
        return cells_of(text, delimiter) == cells
    except csv.Error:
        return False


def _sorted_out(found: Iterable[Found]) -> Read:
    places, records, wrong = [], [], []
    for place, each in found:
        if isinstance(each, dict):
            places.append(place)
            records.append(each)
        elif each is not None:
            wrong.append((place, each))
    return Read(places, records, wrong)


def _text(line: bytes) -> str | Unreadable:
    try:
        return str(line, "utf-8")
    except UnicodeDecodeError:
        return Unreadable(line.decode("utf-8", "replace"), "It is not UTF-8.")


def _json_record(line: bytes) -> dict[str, Any] | Unreadable | None:
    text = _text(line)
    if isinstance(text, Unreadable):
        return text
    try:
        record = parse_json(text, "The line")
    except InvalidMessage as error:
        return Unreadable(text, str(error)) if text.strip() else None
    return record if isinstance(record, dict) else Unreadable(text, "The line is no JSON object.")
