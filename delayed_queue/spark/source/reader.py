"""Read a queue as a table, in ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql as composed
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from delayed_queue.db.sql import row_of, value_of
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import (
    Connection,
    bound,
    connect,
    fetch,
    first_line,
    look_around,
    shares,
)
from delayed_queue.spark.source.arrow import converted
from delayed_queue.spark.source.filters import Condition, conditions_of
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.schema import check_read, source_columns, source_schema
from delayed_queue.spark.store.archiving import EXPORT_SNAPSHOT
from delayed_queue.spark.store.streaming import READ_RANGE, SAMPLED_CUTS, CutsRow

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Pages of the table that are sampled for each range that it is cut into: 2 MB, 32 MB in all.
_PAGES: Final = 256
_MOST_PAGES: Final = 4_096
# Concurrent writers fill different pages while they draw ids in turns, so a scan by id jumps
# between pages. A bitmap scan reads each page once.
BY_PAGES: Final = "SET LOCAL enable_indexscan TO off"
# Required to join the snapshot of another open transaction.
REPEATABLE: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass
class IdRange(InputPartition):
    """Messages with ids from ``first`` to ``last``, exclusive; ``now`` decides their state."""

    first: int
    last: int
    now: int


class QueueReader(DataSourceReader):
    """Reads the stored messages of any state, without leases."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.check_readable()
        check_read(schema)
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []
        if options.kind is not None:
            self._conditions.append(Condition("kind", "=", options.kind))

    def partitions(self) -> Sequence[InputPartition]:
        with closing(self._connected()) as connection:
            look_around(connection, self._options)
            parts = self._options.partitions
            params = {
                "shares": shares(parts), "pages": min(parts * _PAGES, _MOST_PAGES),
                "kind": self._options.kind, "now": None,
            }  # fmt: skip
            found = row_of(CutsRow, fetch(connection, SAMPLED_CUTS, params))
        return [IdRange(*each, found.now) for each in ranges(found)]

    def _connected(self) -> Connection:
        connection, snapshot = connect(self._options), self._options.snapshot
        try:
            for each in _joining(snapshot):
                connection.execute(each)
        except psycopg.Error as error:
            connection.close()
            raise ResourceUnavailable(
                f"The snapshot {snapshot!r} cannot be read: {first_line(error)}. Is it still held?"
            ) from None
        return connection

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, IdRange):  # Spark's own empty partition
            return
        before = [*_joining(self._options.snapshot), BY_PAGES]
        yield from read_range(
            self._options, READ_RANGE, partition, self._schema, before, self._conditions
        )


class FilteringReader(QueueReader):
    """A reader that also applies the filters of a query in PostgreSQL.

    Spark 4.2 and 4.3 keep the last reader with filters in the frame, and use it for later queries
    without filters, and for all uses of the frame in one query: these would lack rows. A reader
    cannot detect this, so an option enables it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the filters that PostgreSQL can decide; Spark applies all of them again."""
        self._conditions += conditions_of(filters)
        return filters


def ranges(found: CutsRow) -> list[tuple[int, int]]:
    """Return the ids from the first to the last as half-open ranges; an empty one without ids."""
    if found.first is None or found.last is None:
        return [(0, 0)]
    inner = {each for each in found.cuts or () if found.first <= each < found.last}
    return list(pairwise([found.first, *(each + 1 for each in sorted(inner)), found.last + 1]))


def _joining(snapshot: str | None) -> list[str]:
    """Return the statements that start a transaction on the snapshot, if there is one."""
    if snapshot is None:
        return []
    statement = composed.SQL("SET TRANSACTION SNAPSHOT {}").format(composed.Literal(snapshot))
    return [REPEATABLE, statement.as_string(None)]


def read_range(
    options: Options,
    statement: str,
    partition: IdRange,
    schema: StructType,
    before: Sequence[str] = (),
    conditions: Sequence[Condition] = (),
) -> Iterator[RecordBatch]:
    """Yield the schema's columns of the rows in the range that meet the conditions."""
    kind = options.kind  # if known, it is not read per row
    columns = source_columns(schema.fieldNames(), is_kind_known=kind is not None)
    query = selected(bound(statement, {**vars(partition), "kind": kind}), columns, conditions)
    yield from converted(read_large(options, before, query, source_schema(columns)), schema, kind)


def selected(query: str, columns: Sequence[str], conditions: Sequence[Condition]) -> str:
    """Return a selection of the columns of the query's rows that meet the conditions."""
    names = composed.SQL(", ").join(map(composed.Identifier, columns))
    tests = [each.sql() for each in conditions] or [composed.SQL("true")]
    shape = composed.SQL("SELECT {} FROM ({}) AS messages WHERE {}")
    met = composed.SQL(" AND ").join(tests)
    return shape.format(names, composed.SQL(query), met).as_string(None)


@contextmanager
def consistent_snapshot(dsn: str | None = None) -> Iterator[str]:
    """Hold a transaction open whose snapshot other reads can share; yield its name.

    Without it each task reads the state at its own start. While it is open, vacuum removes no rows
    deleted since, so keep it short. It does not work through a pooler in transaction mode.

    >>> with consistent_snapshot() as name:
    ...     read = spark.read.format("delayed_queue").option("snapshot", name)
    ...     read.option("queue", "orders").load().write.parquet("orders")
    """
    with closing(connect(Options(), dsn=dsn)) as connection:
        connection.execute(REPEATABLE)
        yield str(value_of(fetch(connection, EXPORT_SNAPSHOT.text, {})))
