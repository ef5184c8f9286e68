"""Files of records as one frame of checked messages, each with its file and line.

Spark knows no line numbers: it cuts files into blocks and reads them side by side. So every row
carries its block and its place there, and every block says at its end how many lines it had; from
those the line, and the place in the whole input, are sums.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.spark.jobs.loading import close_connections, load_application
from delayed_queue.spark.jobs.records import Checker, Rules, parse_json, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "csv", "jsonl")
CHECKED: Final = (
    "file string, block bigint, place bigint, kind string, key string, payload binary, "
    "schedule_ms bigint, delay_ms bigint, headers string, reasons array<string>, record string, "
    "lines bigint"
)
_ARROW: Final = pa.schema(
    [
        ("file", pa.string()),
        ("block", pa.int64()),
        ("place", pa.int64()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("schedule_ms", pa.int64()),
        ("delay_ms", pa.int64()),
        ("headers", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("record", pa.string()),
        ("lines", pa.int64()),
    ]
)
_BOM: Final = "\ufeff"
# Of a row that is no message: its kind, key, payload, schedule, delay and headers.
_NOTHING: Final = (None,) * 6
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """What is read, and how."""

    paths: tuple[str, ...]
    format: str
    rules: Rules
    check: str | None = None
    delimiter: str = ","


def format_of(paths: Sequence[str], given: str | None) -> str:
    """Return the given format, or what the names end in."""
    if given is not None:
        return given
    endings = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    names = [each.removesuffix(".gz").rstrip("/").lower() for each in paths]
    found = {endings.get(name[name.rfind(".") :]) for name in names}
    if len(found) != 1 or None in found:
        raise InvalidConfiguration(
            "The names do not say what the files are: give --input-format parquet, csv or jsonl."
        )
    return str(found.pop())


def checked(spark: SparkSession, source: Input) -> DataFrame:
    """Return the input's rows, good ones, bad ones and a last one for each block."""
    columns: list[str] | None
    if source.format == "parquet":
        frame, columns = _parquet(spark, source)
    else:
        frame = _lines(spark, source)
        columns = _header(spark, source) if source.format == "csv" else None
    if columns is not None:
        check_columns(columns, source.rules)
    return frame.mapInArrow(_Checking(source, columns), CHECKED)


def check_columns(columns: Sequence[str], rules: Rules) -> None:
    """Refuse an input that lacks a column that it was mapped from, or the key."""
    wanted = list(rules.mapping)
    if "key" not in rules.mapping.values():
        wanted.append("key")
    for each in wanted:
        if each not in columns:
            raise InvalidConfiguration(
                f"The input has no column {each!r}; it has {', '.join(columns)}. "
                "Say with --map column=field which one is what."
            )


def _parquet(spark: SparkSession, source: Input) -> tuple[DataFrame, list[str]]:
    frame = spark.read.parquet(*source.paths)
    columns = list(frame.columns)
    place = [
        "_metadata.file_path AS __file",
        "CAST(0 AS BIGINT) AS __block",
        "_metadata.row_index AS __place",
    ]
    # A file's row groups may be read by several: the place is absolute, so no block is needed.
    return frame.selectExpr("*", *place), columns


def _lines(spark: SparkSession, source: Input) -> DataFrame:
    return spark.read.text(list(source.paths)).selectExpr(
        # As bytes: text that is no UTF-8 must be a bad record, not the end of the command.
        "CAST(value AS BINARY) AS value",
        "_metadata.file_path AS __file",
        "_metadata.file_block_start AS __block",
    )


def _header(spark: SparkSession, source: Input) -> list[str]:
    first = spark.read.text(list(source.paths)).first()
    if first is None:
        raise InvalidConfiguration("The input is empty: a CSV file begins with its header.")
    return _cells(first[0].removeprefix(_BOM), source.delimiter)


def _cells(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter, strict=True), [])


class _Checking:
    """Runs in the executors, over one partition after the other."""

    def __init__(self, source: Input, columns: list[str] | None) -> None:
        self._source = source
        self._columns = columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check = None if self._source.check is None else load_application(self._source.check)
        checker = Checker(self._source.rules, check)
        reader: Callable[..., Iterator[tuple[Any, ...]]]
        reader = _of_rows if self._source.format == "parquet" else _Blocks(self._read_line)
        ends = _Ends()
        for batch in batches:
            out = [
                _row(place, record, checker)
                for place, record in reader(batch)
                if ends.note(place) and record is not None
            ]
            yield _batch(out)
        yield _batch(ends.rows())
        if check is not None:
            close_connections()

    def _read_line(self, data: bytes, place: tuple[str, int, int]) -> Any:
        """Return the record of the line, None where there is none, or why it cannot be read."""
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError:
            return _Unreadable(data.decode("utf-8", "replace"), "It is not UTF-8.")
        if place[1:] == (0, 0):
            line = line.removeprefix(_BOM)
        if not line.strip():
            return None
        try:
            return self._record(line, is_first=place[1:] == (0, 0))
        except InvalidMessage as error:
            return _Unreadable(line, str(error))

    def _record(self, line: str, *, is_first: bool) -> Any:
        if self._source.format == "jsonl":
            record = parse_json(line, "The line")
            if not isinstance(record, dict):
                raise InvalidMessage("The line is no JSON object.")
            return record
        return self._csv_record(line, is_first=is_first)

    def _csv_record(self, line: str, *, is_first: bool) -> Any:
        columns = self._columns or []
        try:
            cells = _cells(line, self._source.delimiter)
        except csv.Error as error:
            raise InvalidMessage(f"The line is not CSV: {error}.") from None
        if is_first:
            if cells != columns:
                raise InvalidMessage("The header differs from that of the first file.")
            return None
        if len(cells) != len(columns):
            raise InvalidMessage(f"It has {len(cells)} columns; the header has {len(columns)}.")
        return dict(zip(columns, cells, strict=True))


@dataclass(frozen=True, slots=True)
class _Unreadable:
    text: str
    reason: str


class _Ends:
    """How many lines each block had."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], int] = {}

    def note(self, place: tuple[str, int, int]) -> bool:
        file, block, index = place
        self._lines[file, block] = max(self._lines.get((file, block), 0), index + 1)
        return True

    def rows(self) -> list[Row]:
        return [
            (file, block, None, *_NOTHING, None, None, lines)
            for (file, block), lines in self._lines.items()
        ]


class _Blocks:
    """Counts the lines of each block as they come by."""

    def __init__(self, read_line: Callable[[bytes, tuple[str, int, int]], Any]) -> None:
        self._read_line = read_line
        self._next: dict[tuple[str, int], int] = {}

    def __call__(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int, int], Any]]:
        for data, file, block in zip(*(each.to_pylist() for each in batch.columns), strict=True):
            index = self._next.get((file, block), 0)
            self._next[file, block] = index + 1
            place = (file, block, index)
            yield place, self._read_line(data, place)


def _of_rows(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int, int], Any]]:
    for row in batch.to_pylist():
        place = (row.pop("__file"), row.pop("__block"), row.pop("__place"))
        yield place, row


def _row(place: tuple[str, int, int], record: Any, checker: Checker) -> Row:
    if isinstance(record, _Unreadable):
        return (*place, *_NOTHING, [record.reason], record.text, None)
    found = checker.check(record)
    # What cannot be offered may not be storable in Arrow either: a lone surrogate in a key.
    if found.reasons:
        return (*place, *_NOTHING, list(found.reasons), _as_text(record), None)
    return (
        *place, found.kind, found.key, found.payload, found.schedule_ms, found.delay_ms,
        found.headers, None, None, None,
    )  # fmt: skip


def _as_text(record: Mapping[str, Any]) -> str:
    text = json.dumps(plain(dict(record)), ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
    arrays = [
        pa.array(column, type=each.type) for column, each in zip(columns, _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a file: how many lines, good and bad records it had, and what came before."""

    file: str
    block: int
    lines: int
    good: int
    bad: int
    first_line: int = 0
    first_ordinal: int = 0


def numbered(blocks: list[Block]) -> list[Block]:
    """Return the blocks in order, each with the sums of the lines before it."""
    found: list[Block] = []
    ordinal, line, file = 0, 0, ""
    for each in sorted(blocks, key=lambda one: (one.file, one.block)):
        line = line if each.file == file else 0
        file = each.file
        found.append(Block(file, each.block, each.lines, each.good, each.bad, line, ordinal))
        line += each.lines
        ordinal += each.lines
    return found


def blocks_of(frame: DataFrame) -> list[Block]:
    """Return all blocks with their counts, in order; this is what reads the input."""
    rows = (
        frame.groupBy("file", "block")
        .agg(
            {"lines": "max", "key": "count", "reasons": "count"},
        )
        .collect()
    )
    return numbered(
        [
            Block(
                row["file"], row["block"], row["max(lines)"], row["count(key)"],
                row["count(reasons)"],
            )
            for row in rows
        ]
    )  # fmt: skip


def places_of(spark: SparkSession, blocks: list[Block]) -> DataFrame:
    """Return the blocks as a small frame to join rows with."""
    rows = [(each.file, each.block, each.first_line, each.first_ordinal) for each in blocks]
    schema = "file string, block bigint, first_line bigint, first_ordinal bigint"
    return spark.createDataFrame(rows, schema)
