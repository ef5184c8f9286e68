"""A table that takes each batch of a query once, as Delta does for streams.

A commit names the application, which is the query's id, and a version, which is the batch's number.
A version that the table already has from that application adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from delayed_queue.spark.source.ledger import task_of_stream


class Table(DataSource):
    """``writeStream.format("table_of_batches").option("path", …)``."""

    @classmethod
    def name(cls) -> str:
        return "table_of_batches"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return TableWriter(Path(self.options["path"]))


@dataclass
class Added(WriterCommitMessage):
    """The file of a task, and the id of its query."""

    query: str
    file: str


class TableWriter(DataSourceStreamArrowWriter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _, key = task_of_stream()
        self._path.mkdir(parents=True, exist_ok=True)
        file = self._path / f"{uuid4()}.parquet"
        if batches := list(iterator):
            pq.write_table(pa.Table.from_batches(batches), file)
        return Added(key.job, str(file))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        added = [each for each in messages if isinstance(each, Added)]
        entries = entries_of(self._path)
        query = added[0].query
        is_new = all(each["query"] != query or each["batch"] < batchId for each in entries)
        files = [each.file for each in added if is_new and Path(each.file).exists()]
        entry = {"query": query, "batch": batchId, "files": files}
        log = self._path / "log"
        log.mkdir(exist_ok=True)
        (log / f"{len(entries):06}.json").write_text(json.dumps(entry))
        if (self._path / "dies").exists():
            raise OSError("the answer to the commit is lost")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the files: no entry lists them."""


def entries_of(path: Path) -> list[dict[str, Any]]:
    """Return all commits in order; a repeated batch has no files."""
    return [json.loads(each.read_text()) for each in sorted((path / "log").glob("*.json"))]
