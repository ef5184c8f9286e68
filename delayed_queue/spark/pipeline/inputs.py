"""Files of records as one frame of checked messages, each with its file and line.

Spark has no line numbers: it cuts files into blocks and reads them in parallel. So every row has
its block and its place in the block, and a last row of every block has the number of its lines.
Sums of these are the line in the file, and the ordinal in the whole input.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import storable
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.lake import read_lake
from delayed_queue.spark.pipeline.lines import (
    BOM,
    CsvReader,
    Found,
    JsonReader,
    Place,
    Reader,
    Unreadable,
    cells_of,
)
from delayed_queue.spark.pipeline.records import Checker, Records, Rules, dicts_of
from delayed_queue.spark.source.rules import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark writes JSON lines under the name of JSON.
_ENDINGS: Final = {
    ".parquet": "parquet", ".csv": "csv",
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
}  # fmt: skip
_PACKED: Final = re.compile(r"\.(gz|bz2|zst|zstd|lz4|snappy|deflate)$")
# Columns of the checked rows, in order.
_ARROW: Final = pa.schema(
    {
        "file": pa.string(), "block": pa.int64(), "place": pa.int64(),
        "kind": pa.string(), "key": pa.string(), "payload": pa.binary(),
        "schedule_ms": pa.int64(), "delay_ms": pa.int64(),
        "headers": pa.string(), "grouped": pa.string(),
        "reasons": pa.list_(pa.string()), "record": pa.string(), "lines": pa.int64(),
    }
)  # fmt: skip
_PLACE: Final = ["file", "block", "place"]
# Lines that are read together; one that is no record has all of them read one by one.
_LINES: Final = 1_000
# The text of the last row of a block that ends within a record.
OPEN: Final = "open"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """The input: which files, and how they are read."""

    paths: tuple[str, ...]
    # None: what the names of the files end in.
    format: str | None
    rules: Rules
    delimiter: str = ","

    def known(self, files: Sequence[str]) -> Input:
        """Return the input with its format, which is that of these files."""
        form = self.format or format_of(files)
        rules = replace(self.rules, are_texts_json=form != "jsonl")
        return replace(self, format=form, rules=rules)


def format_of(names: Sequence[str]) -> str:
    """Return the format that the names of files end in, packed or not."""
    plain_names = [_PACKED.sub("", each.lower()) for each in names]
    found = {_ENDINGS.get(name[name.rfind(".") :]) for name in plain_names}
    if len(found) != 1 or None in found:
        raise InvalidConfiguration(
            "The file names have no common format: pass --input-format parquet, csv or jsonl."
        )
    return str(found.pop())


def checked(spark: SparkSession, source: Input) -> DataFrame:
    """Return the input's rows, good ones, bad ones and a last one for each block."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = None
    frame = (_parquet if source.format == "parquet" else _lines)(spark, source)
    if source.format == "csv":
        columns = _header(spark, source)
        check_columns(columns, source.rules)
    return frame.mapInArrow(_Checking(source, columns), from_arrow_schema(_ARROW))


def files_of(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """Return the names of all files; refuse what Spark would read nothing of in silence."""
    hidden = [each for each in paths if each.rstrip("/").rpartition("/")[2].startswith(("_", "."))]
    files: list[str] = []
    for some in (*([each] for each in hidden), list(paths)):
        if not (files := list(spark.read.text(some).inputFiles())):
            raise InvalidConfiguration(
                f"There is no file to read at {', '.join(some)}. Spark passes over names that "
                "begin with an underscore or a dot."
            )
    return sorted(files)


def check_columns(columns: Sequence[str], rules: Rules) -> None:
    """Refuse an input that lacks a column that it was mapped from, or the key."""
    wanted = list(rules.mapping)
    if "key" not in rules.mapping.values():
        wanted.append("key")
    repeated = sorted(each for each, times in Counter(columns).items() if times > 1)
    if repeated:
        raise InvalidConfiguration(f"The input has the column {repeated[0]!r} more than once.")
    for each in wanted:
        if each not in columns:
            raise InvalidConfiguration(
                f"The input has no column {each!r}; it has {', '.join(columns)}. "
                "Use --map column=field."
            )


def _parquet(spark: SparkSession, source: Input) -> DataFrame:
    """Return the records with their places."""
    # Else Spark takes the columns of one file, and what others have beside them is dropped.
    frame = read_lake(spark, *source.paths, mergeSchema="true")
    place = [
        "_metadata.file_path AS __file",
        "CAST(0 AS BIGINT) AS __block",
        "_metadata.row_index AS __place",
    ]
    check_columns(frame.columns, source.rules)
    # A file's row groups may be read by several: the place is absolute, so no block is needed.
    return frame.selectExpr("*", *place)


def _lines(spark: SparkSession, source: Input) -> DataFrame:
    return spark.read.text(list(source.paths)).selectExpr(
        # As bytes: text that is no UTF-8 must be a bad record, not the end of the command.
        "CAST(value AS BINARY) AS value",
        "_metadata.file_path AS __file",
        "_metadata.file_block_start AS __block",
    )


def _header(spark: SparkSession, source: Input) -> list[str]:
    """Return the cells of the first line, which all files must have alike."""
    paths = sorted(spark.read.text(list(source.paths)).inputFiles())
    files = files_on(spark)
    found: dict[str, list[str]] = {}
    for path in paths:
        line = files.first_line(path)
        if line is not None:
            found[path] = _cells(path, line.removeprefix(BOM), source.delimiter)
    if not found:
        raise InvalidConfiguration("The input is empty: a CSV file begins with its header.")
    first, columns = next(iter(found.items()))
    for path, cells in found.items():
        if cells != columns:
            raise InvalidConfiguration(
                f"{path} has not the header of {first}: {', '.join(cells)} instead of "
                f"{', '.join(columns)}. Import files with one header together."
            )
    return columns


def _cells(path: str, line: str, delimiter: str) -> list[str]:
    try:
        return cells_of(line, delimiter)
    except csv.Error as error:
        raise InvalidConfiguration(f"The header of {path} is not CSV: {error}.") from None


class _Checking:
    """Runs in the executors, over one partition after the other."""

    def __init__(self, source: Input, columns: list[str] | None) -> None:
        self._source = source
        self._columns = columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checker = Checker(self._source.rules)
        if self._source.format == "parquet":
            yield from _of_rows(batches, checker)
        else:
            yield from _of_lines(batches, self._reader(), checker)

    def _reader(self) -> Reader:
        if self._source.format == "jsonl":
            return JsonReader()
        return CsvReader(self._columns or [], self._source.delimiter)


def _of_rows(batches: Iterator[pa.RecordBatch], checker: Checker) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Parquet, and the number of rows of each file."""
    lines: dict[str, int] = {}
    for batch in batches:
        places = [batch.column(f"__{name}") for name in _PLACE]
        records = batch.drop_columns([f"__{name}" for name in _PLACE])
        last = pa.table(places, _PLACE).group_by("file").aggregate([("place", "max")])
        for file, place in zip(*(each.to_pylist() for each in last.columns), strict=True):
            lines[file] = max(lines.get(file, 0), place + 1)
        yield from messages(places, records, checker)
    yield _batch([_end(file, 0, number) for file, number in lines.items()])


def _of_lines(
    batches: Iterator[pa.RecordBatch], reader: Reader, checker: Checker
) -> Iterator[pa.RecordBatch]:
    """Yield the records of lines, and the number of lines of each block."""
    blocks = _Blocks(reader, checker)
    for batch in batches:
        yield from blocks.take(batch)
    yield from blocks.end()


def rows_of(found: list[Found], checker: Checker) -> Iterator[pa.RecordBatch]:
    wrong = [
        _refused(place, [each.reason], each.text)
        for place, each in found
        if isinstance(each, Unreadable)
    ]
    read = [(place, each) for place, each in found if isinstance(each, dict)]
    yield _batch(wrong)
    if read:
        places = zip(*(place for place, _ in read), strict=True)
        arrays = [pa.array(each) for each in places]
        yield from messages(arrays, [record for _, record in read], checker)


class _Blocks:
    """The blocks of lines of one partition."""

    def __init__(self, reader: Reader, checker: Checker) -> None:
        self._reader = reader
        self._checker = checker
        self._at = ("", 0)
        # The number of lines of the block so far.
        self._index = 0

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values, files, blocks = (each.to_pylist() for each in batch.columns)
        lines = iter(values)
        for at, places in groupby(zip(files, blocks, strict=True)):
            if at != self._at:
                yield from self.end()
                self._at, self._index = at, 0
            left = len(list(places))
            while left:
                # The first line of a file has its header.
                some = list(islice(lines, min(left, _LINES if self._index else 1)))
                left -= len(some)
                yield from self._rows(some)

    def _rows(self, lines: list[bytes]) -> Iterator[pa.RecordBatch]:
        first, self._index = self._index, self._index + len(lines)
        records = self._plain(lines) if first else None
        if records is None:
            places = ((*self._at, place) for place in range(first, self._index))
            found = map(self._reader.take, places, lines)
            yield from rows_of([each for some in found for each in some], self._checker)
            return
        file, block = (pa.repeat(each, len(lines)) for each in self._at)
        place = pa.array(range(first, self._index))
        yield from messages([file, block, place], records, self._checker)

    def _plain(self, lines: list[bytes]) -> Records | None:
        try:
            return self._reader.plain([each.decode() for each in lines])
        except UnicodeDecodeError:
            return None

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the block: yield its open records, and its number of lines."""
        if self._index:
            last = _end(*self._at, self._index, is_open=self._reader.is_open)
            yield from rows_of(list(self._reader.end()), self._checker)
            yield _batch([last])


def _end(file: str, block: int, lines: int, *, is_open: bool = False) -> Row:
    return {"file": file, "block": block, "record": OPEN if is_open else None, "lines": lines}


def _refused(place: Place, reasons: list[str], record: str, key: str | None = None) -> Row:
    at = dict(zip(_PLACE, place, strict=True))
    return {**at, "key": key, "reasons": reasons, "record": record}


def messages(
    places: list[pa.Array], records: Records, checker: Checker
) -> Iterator[pa.RecordBatch]:
    """Yield the records that are messages, then those that are none, with their reasons."""
    found, rows = checker.check(records), len(places[0])
    given = {**dict(zip(_PLACE, places, strict=True)), **found.columns}
    columns = {each.name: given.get(each.name, pa.nulls(rows, each.type)) for each in _ARROW}
    batch = pa.RecordBatch.from_pydict(columns, schema=_ARROW)
    if not found.reasons:
        yield batch
        return
    yield batch.filter(pa.array([row not in found.reasons for row in range(rows)]))
    bad = sorted(found.reasons)
    is_list = isinstance(records, list)
    refused = [records[row] for row in bad] if is_list else dicts_of(records.take(bad))
    at = zip(*(each.take(bad).to_pylist() for each in places), strict=True)
    # Bad texts may not be storable either: they hold a lone surrogate, or NUL.
    reasons = (list(map(storable, found.reasons[row])) for row in bad)
    yield _batch(
        [
            _refused(place, wrong, _as_text(record), checker.key_of(record))
            for place, wrong, record in zip(at, reasons, refused, strict=True)
        ]
    )


def _as_text(record: Mapping[str, Any]) -> str:
    text = json.dumps(plain(dict(record)), ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _batch(rows: list[Row]) -> pa.RecordBatch:
    """Return the rows; a column that a row lacks is null."""
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
