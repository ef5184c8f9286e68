"""Files of records as one frame of checked offers, see ``blocks``."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.blocks import CHECKED, Blocks
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.lake import read_lake
from delayed_queue.spark.pipeline.lines import BOM, CsvReader, JsonReader, Reader, cells_of
from delayed_queue.spark.pipeline.records import Checker, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark writes JSON lines under the name of JSON.
_ENDINGS: Final = {
    ".parquet": "parquet", ".csv": "csv",
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
}  # fmt: skip
_PACKED: Final = re.compile(r"\.(gz|bz2|zst|zstd|lz4|snappy|deflate)$")


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
    """Return the input as rows of CHECKED."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = None
    frame = (_parquet if source.format == "parquet" else _lines)(spark, source)
    if source.format == "csv":
        columns = _header(spark, source)
        check_columns(columns, source.rules)
    return frame.mapInArrow(_Checking(source, columns), from_arrow_schema(CHECKED))


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
        blocks = Blocks(Checker(self._source.rules), self._reader())
        for batch in batches:
            yield from blocks.take(batch)
        yield from blocks.end()

    def _reader(self) -> Reader | None:
        if self._source.format == "csv":
            return CsvReader(self._columns or [], self._source.delimiter)
        return JsonReader() if self._source.format == "jsonl" else None
