"""From lines to records, and from blocks of a file to the numbers of its lines.

A line of JSON is one record; of CSV a record has one line or several.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.spark.pipeline.values import parse_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# File, block, and line in the block.
Place = tuple[str, int, int]
Found = tuple[Place, Any]
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


class Reader(Protocol):
    """Makes records of lines; ``is_open`` is whether one has begun and not ended."""

    @property
    def is_open(self) -> bool: ...

    def plain(self, lines: list[str]) -> Any:
        """Return the records of lines that are one record each; None if one of them is not."""

    def take(self, place: Place, data: bytes) -> Iterator[Found]: ...

    def end(self) -> Iterator[Found]:
        """Yield what is left when no line of the block follows."""


class JsonReader:
    """One JSON object a line."""

    is_open = False

    def plain(self, lines: list[str]) -> list[dict[str, Any]] | None:
        try:
            records = [parse_json(line, "The line") for line in lines]
        except InvalidMessage:
            return None
        return records if all(isinstance(each, dict) for each in records) else None

    def take(self, place: Place, data: bytes) -> Iterator[Found]:
        line = _text(place, data)
        if isinstance(line, Unreadable):
            yield place, line
        else:
            yield place, _json_record(line) if line.strip() else None

    def end(self) -> Iterator[Found]:
        return iter(())


class CsvReader:
    """A record is a line, or several if a quoted cell holds line breaks; it is at its first line.

    Lines that are no record together are read one by one again; the first of them is a bad one.
    """

    def __init__(self, columns: Sequence[str], delimiter: str) -> None:
        self._columns = list(columns)
        self._delimiter = delimiter
        # Lines without a result: the first ones, which may be a record that continues, are tried.
        self._lines: list[tuple[Place, str | Unreadable]] = []
        self._tried = 0
        # For the whole process, which is a worker of Spark: a cell is as large as a payload.
        csv.field_size_limit(_MOST_IN_CELL)

    @property
    def is_open(self) -> bool:
        return bool(self._lines)

    def plain(self, lines: list[str]) -> pa.RecordBatch | None:
        # A line of spaces is no record, and would be one with a tab as delimiter.
        if self._lines or not all(map(str.strip, lines)):
            return None
        try:
            rows = list(csv.reader(lines, delimiter=self._delimiter, strict=True))
        except csv.Error:
            return None
        width = len(self._columns)
        # A record of several lines leaves fewer records than lines.
        if len(rows) != len(lines) or any(len(row) != width for row in rows):
            return None
        cells = [pa.array(each, pa.string()) for each in zip(*rows, strict=True)]
        return pa.RecordBatch.from_arrays(cells, self._columns)

    def take(self, place: Place, data: bytes) -> Iterator[Found]:
        self._lines.append((place, _text(place, data)))
        yield from self._records()

    def end(self) -> Iterator[Found]:
        while self._lines:
            yield self._given_up()
            yield from self._records()

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
            yield from ((place, None) for place, _ in tried[1:])

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
        if self._lines[0][0][1:] == (0, 0):
            is_header = cells == self._columns
            return None if is_header else Unreadable(text, "The header differs from the others.")
        if len(cells) != len(self._columns):
            said = f"It has {len(cells)} columns; the header has {len(self._columns)}."
            return Unreadable(text, said)
        return dict(zip(self._columns, cells, strict=True))


def cells_of(text: str, delimiter: str) -> list[str]:
    """Return the cells of one record, or raise csv.Error."""
    lines = (f"{line}\n" for line in text.split("\n"))
    return next(csv.reader(lines, delimiter=delimiter, strict=True), [])


def _text(place: Place, data: bytes) -> str | Unreadable:
    try:
        line = data.decode("utf-8")
    except UnicodeDecodeError:
        return Unreadable(data.decode("utf-8", "replace"), "It is not UTF-8.")
    return line.removeprefix(BOM) if place[1:] == (0, 0) else line


def _json_record(line: str) -> Any:
    try:
        record = parse_json(line, "The line")
    except InvalidMessage as error:
        return Unreadable(line, str(error))
    return record if isinstance(record, dict) else Unreadable(line, "The line is no JSON object.")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a file: how many lines, good and bad records it had, and what came before."""

    file: str
    block: int
    lines: int
    good: int
    bad: int
    is_open: bool = False
    first_line: int = 0
    first_ordinal: int = 0


def numbered(blocks: list[Block]) -> list[Block]:
    """Return the blocks in order, each with the sums of the lines before it."""
    found: list[Block] = []
    ordinal, line, file = 0, 0, ""
    for each in sorted(blocks, key=lambda one: (one.file, one.block)):
        line = line if each.file == file else 0
        file = each.file
        found.append(replace(each, first_line=line, first_ordinal=ordinal))
        line += each.lines
        ordinal += each.lines
    return found


def blocks_of(frame: DataFrame) -> tuple[list[Block], int]:
    """Return all blocks with their counts, in order, and the most good rows of a partition.

    This is what reads the input.
    """
    from pyspark.sql.functions import expr

    counts = (
        "max(lines)", "count(kind)", "count(reasons)",
        "coalesce(bool_or(lines IS NOT NULL AND record IS NOT NULL), false)",
    )  # fmt: skip
    placed = frame.selectExpr("*", "spark_partition_id() AS part")
    rows = placed.groupBy("file", "block", "part").agg(*map(expr, counts)).collect()
    blocks: dict[tuple[str, int], Block] = {}
    of_parts = Counter[int]()
    for file, block, part, lines, good, bad, is_open in rows:
        of_parts[part] += good
        known = blocks.get((file, block), Block(file, block, 0, 0, 0))
        blocks[file, block] = replace(
            known, lines=max(known.lines, lines or 0), good=known.good + good,
            bad=known.bad + bad, is_open=known.is_open or is_open,
        )  # fmt: skip
    return numbered(list(blocks.values())), max(of_parts.values(), default=0)


def is_cut(blocks: list[Block]) -> bool:
    """Return whether a record continues in the next block of its file."""
    return any(one.is_open and one.file == other.file for one, other in pairwise(blocks))


def places_of(spark: SparkSession, blocks: list[Block]) -> DataFrame:
    """Return the blocks as a small frame to join rows with."""
    rows = [(each.file, each.block, each.first_line, each.first_ordinal) for each in blocks]
    schema = "file string, block bigint, first_line bigint, first_ordinal bigint"
    return spark.createDataFrame(rows, schema)
