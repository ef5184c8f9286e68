"""Read a queue as a table, in ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql as composed
from pyspark.sql.datasource import (
    DataSourceReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from delayed_queue.db.sql import column_of, row_of, value_of
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import Connection, connect, fetch, first_line, look_around
from delayed_queue.spark.source.arrow import converted
from delayed_queue.spark.source.filters import Condition, conditions_of
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.schema import check_read, source_columns, source_schema
from delayed_queue.spark.store.archiving import EXPORT_SNAPSHOT
from delayed_queue.spark.store.streaming import (
    ID_RANGE,
    READ_RANGE,
    SAMPLED_CUTS,
    RangeRow,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

NO_ROWS: Final = (0, 0)
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
            now = look_around(connection, self._options)
            found = row_of(RangeRow, fetch(connection, ID_RANGE, {"now": None}))
            cuts = self._cuts(connection)
        return [IdRange(low, high, now) for low, high in ranges(found.first, found.last, cuts)]

    def _cuts(self, connection: Connection) -> list[int]:
        """Return ids that cut the messages into parts of about equal size."""
        parts = self._options.partitions
        pages = min(parts * _PAGES, _MOST_PAGES)
        params = {"parts": parts, "pages": pages, "kind": self._options.kind}
        return column_of(fetch(connection, SAMPLED_CUTS, params))

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


def ranges(first: int | None, last: int | None, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ids from first to last as half-open ranges, cut at ``cuts``."""
    if first is None or last is None:
        return [NO_ROWS]
    inner = sorted({each for each in cuts if first < each <= last})
    return list(pairwise([first, *inner, last + 1]))


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
    wrapped, more = wrap(statement, columns, conditions)
    rows = partition.last - partition.first  # an upper bound
    params = {**vars(partition), "kind": kind, **more}
    for batch in read_large(options, before, wrapped, params, source_schema(columns), rows=rows):
        yield converted(batch, schema, kind)


def wrap(
    statement: str, columns: Sequence[str], conditions: Sequence[Condition]
) -> tuple[str, dict[str, Any]]:
    """Return a selection of the columns, with the conditions and their parameters."""
    named = [each.named(f"filter{number}") for number, each in enumerate(conditions)]
    query = composed.SQL("SELECT {} FROM ({}) AS messages WHERE {}").format(
        composed.SQL(", ").join(map(composed.Identifier, columns)),
        composed.SQL(statement),
        composed.SQL(" AND ").join([each for each, _ in named] or [composed.SQL("true")]),
    )
    params = {name: value for _, values in named for name, value in values.items()}
    return query.as_string(None), params


@contextmanager
def exported(dsn: str | None = None) -> Iterator[tuple[Connection, str]]:
    """Hold a transaction open; yield its connection and the name of its snapshot."""
    with closing(connect(Options(), dsn=dsn)) as connection:
        connection.execute(REPEATABLE)
        yield connection, str(value_of(fetch(connection, EXPORT_SNAPSHOT.text, {})))


@contextmanager
def consistent_snapshot(dsn: str | None = None) -> Iterator[str]:
    """Hold a transaction open whose snapshot other reads can share; yield its name.

    Without it each task reads the state at its own start. While it is open, vacuum removes no rows
    deleted since, so keep it short. It does not work through a pooler in transaction mode.

    >>> with consistent_snapshot() as name:
    ...     read = spark.read.format("delayed_queue").option("snapshot", name)
    ...     read.option("queue", "orders").load().write.parquet("orders")
    """
    with exported(dsn) as (_, name):
        yield name
