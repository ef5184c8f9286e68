"""The data source: Spark's entry points to read and to write."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from delayed_queue.spark.source.options import parse_options
from delayed_queue.spark.source.reader import FilteringReader, QueueReader
from delayed_queue.spark.source.schema import read_schema
from delayed_queue.spark.source.stream import LeasingReader
from delayed_queue.spark.source.writer import OfferWriter, StreamOfferWriter

# The main module of the process in which Spark pushes filters down.
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class DelayedQueueDataSource(DataSource):
    """``spark.read.format("delayed_queue")`` and its three siblings.

    >>> spark.read.format("delayed_queue").option("queue", "orders").load().count()
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark's own mapping, with names in lower case.
        super().__init__(dict(options))
        self._parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "delayed_queue"

    def schema(self) -> StructType:
        return read_schema(self._parsed.kind)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._parsed.pushFilters and _hands_filters_over():
            return FilteringReader(self._parsed, schema)
        return QueueReader(self._parsed, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return OfferWriter(self._parsed, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return LeasingReader(self._parsed, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamOfferWriter(self._parsed, schema, overwrite=overwrite)


def _hands_filters_over() -> bool:
    """Return whether Spark pushes filters here: elsewhere a filtering reader fails the query."""
    main = sys.modules["__main__"].__spec__
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
