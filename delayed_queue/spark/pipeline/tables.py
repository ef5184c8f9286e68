"""Tables that can be archived: their columns, ranges of keys, and rows read by executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple

import pyarrow as pa
from psycopg import sql as composed

from delayed_queue.db.sql import value_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_MILLISECONDS
from delayed_queue.spark.database import (
    Connection,
    bound,
    connect,
    fetch,
    filled,
    outlasting,
    shares,
    steady,
)
from delayed_queue.spark.settings import TASKS_EACH, tasks_of
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.archiving import (
    COLUMNS,
    COUNT_OLD,
    READ_OLD,
    SAMPLED_KEYS,
    STEADY_TEXT,
    Template,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIGEST: Final = "archived_digest"
# Types that Parquet keeps; every other type becomes PostgreSQL's text of it.
_TYPES: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "smallint": ("smallint", pa.int16()),
    "integer": ("int", pa.int32()),
    "bigint": ("bigint", pa.int64()),
    "real": ("float", pa.float32()),
    "double precision": ("double", pa.float64()),
    "boolean": ("boolean", pa.bool_()),
    "bytea": ("binary", pa.binary()),
    "timestamp with time zone": ("timestamp", pa.timestamp("us", tz="UTC")),
    "date": ("date", pa.date32()),
}
_TEXT: Final = ("string", pa.string())
_CUTOFFS: Final[Mapping[str, LiteralString]] = {
    "bigint": "%(cutoff)s::bigint",
    "timestamp with time zone": "to_timestamp(%(cutoff)s::bigint / 1000.0)",
}
# A task gets at least this number of rows.
_LEAST_ROWS: Final = 10_000
_ROWS_OF_READ: Final = 100_000
# Pages of the table that are sampled to cut it into ranges.
_PAGES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Table:
    """A table to archive, with the primary key ``id``, and the column by which it ages.

    ``only`` keeps to rows whose columns, as text, have one of the given values. A row without an
    age is not finished, and stays.
    """

    source: str
    age: str
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)


# The package's own tables, by the names of the command.
KNOWN: Final = {
    "dead-letters": Table("delayed_queue_dead_letter", "diedAt"),
    "callback-attempts": Table("delayed_queue_callback_attempt", "startedAt"),
    "notifications": Table("delayed_queue_notification", "ended_at"),
}


def table_named(name: str) -> Table:
    if name not in KNOWN:
        raise InvalidConfiguration(f"{name!r} is not one of {', '.join(KNOWN)}.")
    return KNOWN[name]


class Range(NamedTuple):
    """Rows whose keys are above ``lower``, up to ``upper``; None has no end."""

    lower: str | None = None
    upper: str | None = None
    # An estimate.
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table with their types, in its order."""

    table: Table
    types: Mapping[str, str]

    @classmethod
    def of(cls, connection: Connection, table: Table) -> Layout:
        """Read the columns; raise InvalidConfiguration if the table lacks one of the options."""
        types: dict[str, str] = dict(fetch(connection, COLUMNS.text, {"table": table.source}))
        if not types:
            raise InvalidConfiguration(f"There is no table {table.source!r}; migrate first?")
        for name in table.only:
            if name not in types:
                raise InvalidConfiguration(
                    f"The table {table.source!r} has no column {name!r}; it has {', '.join(types)}."
                )
        return cls(table, types)

    @property
    def schema(self) -> str:
        """Return the columns as Spark's DDL, with the digest."""
        columns = [f"`{name}` {_TYPES.get(kind, _TEXT)[0]}" for name, kind in self.types.items()]
        return ", ".join([*columns, f"`{DIGEST}` string"])

    @property
    def arrow_schema(self) -> pa.Schema:
        types = [(name, _TYPES.get(kind, _TEXT)[1]) for name, kind in self.types.items()]
        return pa.schema([*types, (DIGEST, pa.string())])

    def statement(self, template: Template, within: Range | None = None) -> composed.Composed:
        return filled(
            template,
            table=composed.Identifier(self.table.source),
            age=composed.Identifier(self.table.age),
            # As pg_catalog writes it.
            type=composed.SQL(self.types["id"]),
            cutoff=composed.SQL(_CUTOFFS[self.types[self.table.age]]),
            only=self._only(),
            within=self._within(within or Range()),
            columns=composed.SQL(", ").join(self._column(name) for name in self.types),
        )

    def _within(self, within: Range) -> composed.Composable:
        """Return the condition; an end that is None is left out, so that the index is used."""
        lower: LiteralString = "id > %(lower)s::{}"
        upper: LiteralString = "id <= %(upper)s::{}"
        shapes = [(within.lower, lower), (within.upper, upper)]
        kind = composed.SQL(self.types["id"])
        found = [composed.SQL(shape).format(kind) for end, shape in shapes if end is not None]
        return composed.SQL(" AND ").join(found) if found else composed.SQL("true")

    def _column(self, name: str) -> composed.Composable:
        shape: LiteralString = "{}" if self.types[name] in _TYPES else "{}::text"
        return composed.SQL(shape).format(composed.Identifier(name))

    def _only(self) -> composed.Composable:
        shape: LiteralString = "{}::text = ANY ({}::text[])"
        found = [
            composed.SQL(shape).format(
                # A single percent sign would start a placeholder.
                composed.Identifier(name), composed.Literal([v.replace("%", "%%") for v in values])
            )
            for name, values in self.table.only.items()
        ]  # fmt: skip
        return composed.SQL(" AND ").join(found) if found else composed.SQL("true")

    def count(self, connection: Connection, cutoff: int) -> int:
        """Return the number of rows that are old enough."""
        return int(fetch(connection, self.statement(COUNT_OLD), {"cutoff": cutoff})[0][0])

    def ranges(
        self, connection: Connection, cutoff: int, rows_per_range: int, tasks: int
    ) -> list[Range]:
        """Cut the rows that are old enough into ranges of about the same number of rows.

        Few rows get smaller ranges, so that each task has one. A sample finds the cuts; an error
        of the sample makes ranges uneven, and nothing else.
        """
        rows = self.count(connection, cutoff)
        if not rows:
            return []
        count = max(-(-rows // rows_per_range), min(tasks, rows // _LEAST_ROWS))
        params = {
            "cutoff": cutoff, "table": self.table.source, "pages": _PAGES, "shares": shares(count)
        }  # fmt: skip
        found = value_of(fetch(connection, self.statement(SAMPLED_KEYS), params))
        keys = list(dict.fromkeys(found or ()))
        each = -(-rows // (len(keys) + 1))
        return [Range(*ends, each) for ends in pairwise([None, *keys, None])]


def parse_only(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by column of ``column=value,value`` texts."""
    only: dict[str, list[str]] = {}
    for pair in pairs:
        column, equals, values = pair.partition("=")
        if not equals or not column or not values:
            raise InvalidConfiguration(f"--only {pair!r} is not column=value,value.")
        only.setdefault(column, []).extend(values.split(","))
    return only


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges of the table by their numbers, in the executors."""

    layout: Layout
    cutoff: int
    ranges: tuple[Range, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self._rows(self.ranges[number])

    def _rows(self, within: Range) -> Iterator[pa.RecordBatch]:
        statement = self.layout.statement(READ_OLD, within).as_string(None)
        params = {"lower": within.lower, "upper": within.upper, "cutoff": self.cutoff}
        schema, query = self.layout.arrow_schema, bound(statement, params)
        outlasting(lambda: connect().close())
        for batch in read_large(Options(), [STEADY_TEXT.text], query, schema):
            columns = map(pa.Array.cast, batch.columns, schema.types)
            yield pa.RecordBatch.from_arrays(list(columns), schema=schema)


def read_rows(
    spark: SparkSession, table: Table, columns: Sequence[str], partitions: int | None = None
) -> DataFrame:
    """Return some columns of all rows of a table that have an age."""
    with closing(steady()) as connection:
        whole = Layout.of(connection, table)
        tasks = TASKS_EACH * tasks_of(spark)
        ranges = whole.ranges(connection, MAX_MILLISECONDS, _ROWS_OF_READ, tasks)
    layout = Layout(table, {name: whole.types[name] for name in columns})
    return rows_of(spark, RangeReader(layout, MAX_MILLISECONDS, tuple(ranges)), partitions)


def rows_of(spark: SparkSession, reader: RangeReader, partitions: int | None = None) -> DataFrame:
    """Return the rows of the ranges, each read by a task of its own, or by ``partitions`` tasks."""
    count = len(reader.ranges)
    numbers = spark.range(0, count, 1, max(min(count, partitions or count), 1))
    return numbers.mapInArrow(reader, reader.layout.schema)
