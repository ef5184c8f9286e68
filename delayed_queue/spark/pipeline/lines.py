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
_OPEN: Final = object()


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

    Lines that are no record together are read one by one again; the first of them is a bad one.
    """

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = list(columns)
        self._delimiter = delimiter
        # Lines without a result: the first ones, which may be a record that continues, are tried.
        self._lines: list[tuple[int, str | Unreadable]] = []
        self._tried = 0
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
        for place, line in enumerate(lines, first):
            self._lines.append((place, _text(line)))
            found += self._records()
        return _sorted_out(found)

    def end(self) -> Read:
        found: list[Found] = []
        while self._lines:
            found += [self._given_up(), *self._records()]
        return _sorted_out(found)

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

    def _records(self) -> Iterator[Found]:
        """Yield the records of the lines, but the last one if it may continue."""
        while self._tried < len(self._lines):
            self._tried += 1
            tried = self._lines[: self._tried]
            record = self._record([line for _, line in tried])
            if record is _OPEN:
                continue
            if len(tried) > 1 and isinstance(record, Unreadable):
                yield self._given_up()
                continue
            del self._lines[: self._tried]
            self._tried = 0
            yield tried[0][0], record

    def _given_up(self) -> Found:
        """Return the first line as a bad one; the others are tried again."""
        place, line = self._lines.pop(0)
        self._tried = 0
        return place, Unreadable(str(line), f"The line is not CSV: {_UNCLOSED}.")

    def _record(self, lines: list[str | Unreadable]) -> Any:
        """Return the record of the lines, _OPEN, Unreadable, or None for no record."""
        last = lines[-1]
        if isinstance(last, Unreadable):
            return last
        text = "\n".join(map(str, lines))
        may_continue = len(lines) < MOST_LINES and len(text) < MOST_CHARACTERS
        if len(lines) > 1 and '"' not in last and may_continue:
            return _OPEN
        if not text.strip():
            return None
        try:
            cells = cells_of(text, self._delimiter)
        except csv.Error as error:
            is_open = str(error) == _UNCLOSED and may_continue
            return _OPEN if is_open else Unreadable(text, f"The line is not CSV: {error}.")
        if len(cells) != len(self._columns):
            said = f"It has {len(cells)} columns; the header has {len(self._columns)}."
            return Unreadable(text, said)
        return dict(zip(self._columns, cells, strict=True))


def cells_of(text: str, delimiter: str) -> list[str]:
    """Return the cells of one record, or raise csv.Error."""
    lines = (f"{line}\n" for line in text.split("\n"))
    return next(csv.reader(lines, delimiter=delimiter, strict=True), [])


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
