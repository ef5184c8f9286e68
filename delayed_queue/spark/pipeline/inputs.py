"""Files of records as one frame of checked messages, each with its file and line.

Spark knows no line numbers: it cuts files into blocks and reads them side by side. So every row
carries its block and its place there, and every block says at its end how many lines it had; from
those the line, and the place in the whole input, are sums.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import storable
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.handling import close_connections, load_application
from delayed_queue.spark.pipeline.lake import read_lake
from delayed_queue.spark.pipeline.lines import (
    BOM,
    CsvReader,
    Found,
    JsonReader,
    Reader,
    Unreadable,
    cells_of,
)
from delayed_queue.spark.source.arrow import offers_among
from delayed_queue.spark.source.records import TYPES, Checker, Rules, plain
from delayed_queue.spark.source.schema import check_imported, told_by_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark writes JSON lines under the name of JSON.
_ENDINGS: Final = {
    ".parquet": "parquet", ".csv": "csv",
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
}  # fmt: skip
_PACKED: Final = re.compile(r"\.(gz|bz2|zst|zstd|lz4|snappy|deflate)$")
CHECKED: Final = (
    "file string, block bigint, place bigint, kind string, key string, payload binary, "
    "schedule_ms bigint, delay_ms bigint, headers string, grouped string, reasons array<string>, "
    "record string, lines bigint"
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
        ("grouped", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("record", pa.string()),
        ("lines", pa.int64()),
    ]
)
# Of a row that is no message: its kind, key, payload, schedule, delay, headers and group.
_NOTHING: Final = (None,) * 7
# What the last row of a block says that ended within a record.
OPEN: Final = "open"
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """The input: which files, and how they are read."""

    paths: tuple[str, ...]
    # None: what the names of the files end in.
    format: str | None
    rules: Rules
    check: str | None = None
    delimiter: str = ","
    # Of the cells of CSV, as Spark writes schemas.
    schema: str | None = None

    def known(self, files: Sequence[str]) -> Input:
        """Return the input with its format, which is that of these files."""
        form = self.format or format_of(files)
        if self.schema is not None and form != "csv":
            raise InvalidConfiguration(
                "--schema is for CSV, whose cells are texts; Parquet and JSON have types."
            )
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


@dataclass(frozen=True, slots=True)
class Told:
    """The rows of an input of which types tell what fits; ``fitting`` is them where all do.

    Of those nothing is asked but what is offered, so that keys are found without a look at the
    payloads. A record that does not fit has no reasons yet.
    """

    rows: DataFrame
    fitting: DataFrame


def told(spark: SparkSession, source: Input) -> Told | None:
    """Return the input's rows as ``checked`` does, without a look at any in Python.

    None where types do not tell what fits.
    """
    if source.format != "parquet" or source.check is not None:
        return None
    frame = _parquet(spark, source)
    records = frame.drop("__file", "__block", "__place")
    found = told_by_types(records.schema, Checker(source.rules))
    if found is None:
        return None
    fits = found.pop("fits")
    nothing = {"delay_ms": "bigint", "headers": "string", "record": "string"}
    fitting = {
        **{name: f"CAST(NULL AS {kind})" for name, kind in nothing.items()}, **found,
        "file": "__file", "block": "__block", "place": "__place", "lines": "__place + 1",
        "reasons": "CAST(NULL AS array<string>)",
    }  # fmt: skip
    rows = {
        **fitting, "kind": f"IF({fits}, {found['kind']}, NULL)",
        "reasons": f"IF({fits}, CAST(NULL AS array<string>), array(''))",
    }  # fmt: skip
    chosen = [
        frame.selectExpr(*(f"{texts[name]} AS {name}" for name in _ARROW.names))
        for texts in (rows, fitting)
    ]
    return Told(*chosen)


def checked(spark: SparkSession, source: Input) -> DataFrame:
    """Return the input's rows, good ones, bad ones and a last one for each block."""
    columns = None
    frame = (_parquet if source.format == "parquet" else _lines)(spark, source)
    if source.format == "csv":
        columns = _header(spark, source)
        check_columns(columns, source.rules)
    if source.schema is not None:
        types = _types(source.schema, columns or [], source.rules)
        source = replace(source, rules=replace(source.rules, types=types))
    return frame.mapInArrow(_Checking(source, columns), CHECKED)


def _types(schema: str, columns: Sequence[str], rules: Rules) -> dict[str, str]:
    """Return the type of each column that the schema names; refuse what has none here."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        raise InvalidConfiguration(f"--schema {schema!r} is none: {error}") from None
    if not isinstance(parsed, StructType):
        raise InvalidConfiguration(
            f"--schema {schema!r}: write columns and types, 'amount double'."
        )
    found = {each.name: each.dataType.typeName() for each in parsed.fields}
    for name, kind in found.items():
        if name not in columns:
            raise InvalidConfiguration(
                f"--schema: the input has no column {name!r}; it has {', '.join(columns)}."
            )
        if kind not in TYPES:
            raise InvalidConfiguration(f"--schema: {name} is {kind}; take {', '.join(TYPES)}.")
    return found


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
    """Return the records with their places; refuse columns that no record can be read from."""
    # Else Spark takes the columns of one file, and what others have beside them is dropped.
    frame = read_lake(spark, *source.paths, mergeSchema="true")
    place = [
        "_metadata.file_path AS __file",
        "CAST(0 AS BIGINT) AS __block",
        "_metadata.row_index AS __place",
    ]
    check_columns(frame.columns, source.rules)
    check_imported(frame.schema, Checker(source.rules))
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
        check = None if self._source.check is None else load_application(self._source.check)
        checker = Checker(self._source.rules, check)
        places: _Rows | _Blocks
        places = _Rows() if self._source.format == "parquet" else _Blocks(self._reader())
        for batch in batches:
            places.note(batch)
            told, rest = self._told(batch, checker)
            yield told
            yield batch_of(rows_of(places.of(rest), checker))
        yield batch_of(rows_of(places.end(), checker))
        yield batch_of(places.ends())
        if check is not None:
            close_connections()

    def _told(
        self, batch: pa.RecordBatch, checker: Checker
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the messages that columns alone tell, and what is to be looked at one by one."""
        is_told = self._source.format == "parquet" and self._source.check is None
        found = offers_among(batch, checker) if is_told else None
        if found is None:
            return batch_of([]), batch
        fits, columns = found
        nothing = {each.name: pa.nulls(batch.num_rows, each.type) for each in _ARROW}
        places = {name: batch.column(f"__{name}") for name in ("file", "block", "place")}
        messages = pa.RecordBatch.from_pydict({**nothing, **places, **columns}, schema=_ARROW)
        return messages.filter(fits), batch.filter(pc.invert(fits))

    def _reader(self) -> Reader:
        if self._source.format == "jsonl":
            return JsonReader()
        return CsvReader(self._columns or [], self._source.delimiter)


class _Rows:
    """The rows of Parquet, and how many each file had."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def note(self, batch: pa.RecordBatch) -> None:
        """Note how far each file has been read."""
        places = pa.table({"file": batch.column("__file"), "place": batch.column("__place")})
        for each in places.group_by("file").aggregate([("place", "max")]).to_pylist():
            file = each["file"]
            self._lines[file] = max(self._lines.get(file, 0), each["place_max"] + 1)

    def of(self, batch: pa.RecordBatch) -> Iterator[Found]:
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            yield (row.pop("__file"), row.pop("__block"), row.pop("__place")), row

    def end(self) -> Iterator[Found]:
        return iter(())

    def ends(self) -> list[Row]:
        return [_end(file, 0, lines) for file, lines in self._lines.items()]


class _Blocks:
    """The records of lines, and how many lines each block had."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._at: tuple[str, int] | None = None
        self._index = 0
        self._ends: list[Row] = []

    def note(self, batch: pa.RecordBatch) -> None:
        """Nothing: lines are counted where they are read."""

    def of(self, batch: pa.RecordBatch) -> Iterator[Found]:
        for data, file, block in zip(*(each.to_pylist() for each in batch.columns), strict=True):
            if (file, block) != self._at:
                yield from self.end()
                self._at, self._index = (file, block), 0
            yield from self._reader.take((file, block, self._index), data)
            self._index += 1

    def end(self) -> Iterator[Found]:
        if self._at is not None:
            self._ends.append(_end(*self._at, self._index, is_open=self._reader.is_open))
            yield from self._reader.end()
            self._at = None

    def ends(self) -> list[Row]:
        return self._ends


def _end(file: str, block: int, lines: int, *, is_open: bool = False) -> Row:
    return (file, block, None, *_NOTHING, None, OPEN if is_open else None, lines)


def rows_of(found: Iterator[Found], checker: Checker) -> list[Row]:
    return [_row(place, record, checker) for place, record in found if record is not None]


def _row(place: tuple[str, int, int], record: Any, checker: Checker) -> Row:
    if isinstance(record, Unreadable):
        return (*place, *_NOTHING, [record.reason], record.text, None)
    found = checker.check(record)
    # What cannot be offered may not be storable either: a lone surrogate, or a NUL.
    if found.reasons:
        key, reasons = checker.key_of(record), list(map(storable, found.reasons))
        return (*place, None, key, *_NOTHING[2:], reasons, _as_text(record), None)
    return (
        *place, found.kind, found.key, found.payload, found.schedule_ms, found.delay_ms,
        found.headers, found.group, None, None, None,
    )  # fmt: skip


def _as_text(record: Mapping[str, Any]) -> str:
    text = json.dumps(plain(dict(record)), ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(_ARROW)
    arrays = [
        pa.array(column, type=each.type) for column, each in zip(columns, _ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
