"""Tables that can be archived: their columns, where they are cut, and rows read by executors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple

import pyarrow as pa
from psycopg import sql as composed

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_MILLISECONDS
from delayed_queue.spark.database import (
    Connection,
    connect,
    fetch,
    filled,
    outlasting,
    steady,
)
from delayed_queue.spark.settings import TASKS_EACH, tasks_of
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.archiving import (
    BOUNDS,
    COLUMNS,
    COUNT_RANGE,
    FIRST_INFINITE,
    READ_PIECE,
    SAMPLED_KEYS,
    STEADY_TEXT,
    Template,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIGEST: Final = "archived_digest"
# What Parquet keeps as it is; all else is kept as PostgreSQL's text of it.
_PARQUET: Final[Mapping[str, str]] = {
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "boolean": "boolean",
    "bytea": "binary",
    "timestamp with time zone": "timestamp",
    "date": "date",
}
# A timestamp without a zone is kept as text.
_MAY_BE_INFINITE: Final = frozenset({"timestamp with time zone", "date"})
# Have BOUNDS walk along the key: never sort what is left anew for each piece.
_BY_KEY: Final = "SET LOCAL enable_sort TO off"
_CUTOFFS: Final[Mapping[str, LiteralString]] = {
    "bigint": "%(cutoff)s::bigint",
    "timestamp with time zone": "to_timestamp(%(cutoff)s::bigint / 1000.0)",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table to archive: by which key it is cut and deleted, by which column it ages.

    ``only`` keeps to rows whose columns, as text, have one of the given values. An age of NULL is
    no age: what is not finished stays.
    """

    source: str
    key: str = "id"
    age: str = ""
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def only_json(self) -> str:
        return json.dumps({name: list(values) for name, values in self.only.items()})


# What the package itself leaves behind, by the names of the command.
KNOWN: Final = {
    "dead-letters": Table("delayed_queue_dead_letter", age="diedAt"),
    "callback-attempts": Table("delayed_queue_callback_attempt", age="startedAt"),
}


class Piece(NamedTuple):
    """The rows whose keys are above ``lower``, or the same if it is the first, up to ``upper``."""

    lower: str | None
    upper: str | None
    is_first: bool = True
    rows: int = 0


WHOLE: Final = Piece(None, None)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table with their types, in its order."""

    table: Table
    types: Mapping[str, str]

    @classmethod
    def of(cls, connection: Connection, table: Table) -> Layout:
        """Read the columns; refuse a table that cannot be archived, and say why."""
        rows = fetch(connection, COLUMNS.text, {"table": table.source})
        if not rows:
            raise InvalidConfiguration(f"There is no table {table.source!r}; migrate first?")
        types = {name: kind for name, kind, _ in rows}
        for name in (table.key, table.age, *table.only):
            if name not in types:
                raise InvalidConfiguration(
                    f"The table {table.source!r} has no column {name!r}; it has {', '.join(types)}."
                )
        if not any(is_key for name, _, is_key in rows if name == table.key):
            raise InvalidConfiguration(
                f"{table.key!r} is not the primary key of {table.source!r}: rows could not be "
                "told apart."
            )
        if types[table.age] not in _CUTOFFS:
            raise InvalidConfiguration(
                f"The column {table.age!r} is {types[table.age]}; an age is a timestamp with time "
                "zone, or milliseconds since 1970 in a bigint."
            )
        return cls(table, types)

    @property
    def schema(self) -> str:
        """Return the columns as Spark's DDL, with the digest."""
        columns = [f"`{name}` {_PARQUET.get(kind, 'string')}" for name, kind in self.types.items()]
        return ", ".join([*columns, f"`{DIGEST}` string"])

    def statement(self, template: Template, within: Piece = WHOLE) -> composed.Composed:
        return filled(
            template,
            table=composed.Identifier(self.table.source),
            key=composed.Identifier(self.table.key),
            age=composed.Identifier(self.table.age),
            # As pg_catalog writes it, from there.
            type=composed.SQL(self.types[self.table.key]),
            cutoff=composed.SQL(_CUTOFFS[self.types[self.table.age]]),
            only=self._only(),
            within=self._within(within),
            finite=self._finite(),
            columns=composed.SQL(", ").join(self._column(name) for name in self.types),
        )

    @staticmethod
    def params(within: Piece, cutoff: int, **more: Any) -> dict[str, Any]:
        return {"lower": within.lower, "upper": within.upper, "cutoff": cutoff, **more}

    def _within(self, piece: Piece) -> composed.Composable:
        """Return the condition, which has only what limits: so the index is walked from there."""
        lower: LiteralString = "{} >= %(lower)s::{}" if piece.is_first else "{} > %(lower)s::{}"
        upper: LiteralString = "{} <= %(upper)s::{}"
        ends = [(piece.lower, lower), (piece.upper, upper)]
        key, kind = self.table.key, self.types[self.table.key]
        found = [
            composed.SQL(shape).format(composed.Identifier(key), composed.SQL(kind))
            for end, shape in ends
            if end is not None
        ]
        return composed.SQL(" AND ").join(found) if found else composed.SQL("true")

    def _column(self, name: str) -> composed.Composable:
        is_kept = self.types[name] in _PARQUET
        shape: LiteralString = "{}" if is_kept else "{}::text"
        return composed.SQL(shape).format(composed.Identifier(name))

    def _finite(self) -> composed.Composable:
        shape: LiteralString = "isfinite({})"
        found = [
            composed.SQL(shape).format(composed.Identifier(name))
            for name, kind in self.types.items()
            if kind in _MAY_BE_INFINITE
        ]
        return composed.SQL(" AND ").join(found) if found else composed.SQL("true")

    def parts(self, connection: Connection, within: Piece, cutoff: int, most: int) -> list[Piece]:
        """Return the range in so many parts at most, with about as many rows each.

        By a sample: what it misjudges is only how long a task has to walk. How many rows they have
        is a guess, too.
        """
        params = self.params(within, cutoff, table=self.table.source, pages=_PAGES, parts=most)
        found = fetch(connection, self.statement(SAMPLED_KEYS, within), params)
        rows = found[0][1] if found else 0
        keys = [key for key, _ in found] if rows > _ALONE else []
        ends = [within.lower, *keys, within.upper]
        return [
            Piece(lower, upper, within.is_first if number == 0 else False, rows // len(ends[1:]))
            for number, (lower, upper) in enumerate(pairwise(ends))
        ]

    def bounds(
        self, connection: Connection, within: Piece, cutoff: int, after: int
    ) -> list[Answer]:
        """Return the first key, one each so many rows, and the last, each with its place."""
        self._refuse_infinite(connection, within, cutoff)
        params = self.params(within, cutoff, piece=after)
        with connection.transaction():
            connection.execute(_BY_KEY)
            statement = self.statement(BOUNDS, within)
            return [(key, place) for key, place in fetch(connection, statement, params)]

    def count(self, connection: Connection, within: Piece, cutoff: int) -> int:
        """Return how many rows there are that are old enough."""
        params = self.params(within, cutoff)
        return int(fetch(connection, self.statement(COUNT_RANGE, within), params)[0][0])

    def _refuse_infinite(self, connection: Connection, within: Piece, cutoff: int) -> None:
        """Raise InvalidConfiguration naming a row that Parquet cannot hold."""
        params = self.params(within, cutoff)
        rows = fetch(connection, self.statement(FIRST_INFINITE, within), params)
        if rows:
            raise InvalidConfiguration(
                f"The row {self.table.key} = {rows[0][0]} of {self.table.source!r} has an infinite "
                "timestamp or date, which Parquet has not; nothing was written. Give it a real "
                "one, or NULL, or leave such rows out by --only."
            )

    def _only(self) -> composed.Composable:
        if not self.table.only:
            return composed.SQL("true")
        shape: LiteralString = "{}::text = ANY ({}::text[])"
        return composed.SQL(" AND ").join(
            composed.SQL(shape).format(
                # A percent sign is one of a placeholder, unless there are two.
                composed.Identifier(name), composed.Literal([v.replace("%", "%%") for v in values])
            )
            for name, values in self.table.only.items()
        )  # fmt: skip


def parse_only(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by column of ``column=value,value`` texts."""
    only: dict[str, list[str]] = {}
    for pair in pairs:
        column, equals, values = pair.partition("=")
        if not equals or not column or not values:
            raise InvalidConfiguration(f"--only {pair!r} is not column=value,value.")
        only.setdefault(column, []).extend(values.split(","))
    return only


def named(name: str, key: str | None, age: str | None, only: Mapping[str, Sequence[str]]) -> Table:
    """Return the table of that name: one of the package's, or any with its key and age."""
    known = KNOWN.get(name)
    if known is not None:
        return Table(known.source, key or known.key, age or known.age, only)
    if age is None:
        raise InvalidConfiguration(
            f"{name!r} is not one of {', '.join(KNOWN)}. For a table of your own, name the column "
            "with its age: --age column."
        )
    return Table(name, key or "id", age, only)


# As many rows are counted, and cut off, at a time, and files are made of so many such pieces.
PIECE: Final = 10_000
# Of fewer rows the driver walks along the keys itself: a job would take longer.
_ALONE: Final = 200_000
_PIECE_OF_READ: Final = 100_000
# Of the table, as many pages are looked at to part the keys among tasks.
_PAGES: Final = 200
_ARROW: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "bytea": pa.binary(),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads pieces of the table by their numbers, in the executors, each over a connection."""

    layout: Layout
    cutoff: int
    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            yield from self._rows(self.pieces[number])

    def _rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        statement = self.layout.statement(READ_PIECE, piece).as_string(None)
        schema = _arrow_schema(self.layout)
        outlasting(lambda: connect().close())
        params = self.layout.params(piece, self.cutoff)
        for batch in read_large(
            Options(), [STEADY_TEXT.text], statement, params, schema, rows=piece.rows
        ):
            columns = map(pa.Array.cast, batch.columns, schema.types)
            yield pa.RecordBatch.from_arrays(list(columns), schema=schema)


_ASKED: Final = pa.schema([("number", pa.int64()), ("key", pa.string()), ("place", pa.int64())])
Answer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks of each piece how many rows it has, or where to cut it after so many."""

    layout: Layout
    cutoff: int
    pieces: tuple[Piece, ...]
    after: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches):
            found = outlasting(lambda: self.of(number))  # noqa: B023 # called here
            rows = [(number, key, place) for key, place in found]
            columns = list(zip(*rows, strict=True)) or [()] * len(_ASKED)
            yield pa.RecordBatch.from_arrays(
                list(map(pa.array, columns, _ASKED.types)), schema=_ASKED
            )

    def of(self, number: int) -> list[Answer]:
        """Return a key and its place among the rows for each cut, or just the number of rows."""
        with closing(steady()) as connection:
            if self.after is None:
                return [("", self.layout.count(connection, self.pieces[number], self.cutoff))]
            return self.layout.bounds(connection, self.pieces[number], self.cutoff, self.after)

    def on(self, spark: SparkSession) -> list[list[Answer]]:
        """Return the answers for all pieces: from executors, if they are large."""
        answers: list[list[Answer]] = [[] for _ in self.pieces]
        if sum(each.rows for each in self.pieces) <= _ALONE:
            return [self.of(number) for number in range(len(self.pieces))]
        numbers = spark.range(0, len(answers), 1, len(answers))
        rows = numbers.mapInArrow(self, "number bigint, key string, place bigint").collect()
        for number, key, place in rows:
            answers[number].append((key, place))
        return [sorted(each, key=itemgetter(1)) for each in answers]


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column("id").to_pylist()


def pieces_of(
    spark: SparkSession, layout: Layout, cutoff: int, after: int = PIECE, within: Piece = WHOLE
) -> list[Piece]:
    """Return the rows that are old enough, in pieces of so many, with how many each has.

    Keys are walked along side by side, where there are many.
    """
    with closing(steady()) as connection:
        parts = layout.parts(connection, within, cutoff, TASKS_EACH * tasks_of(spark))
    return [
        piece
        for bounds in Asking(layout, cutoff, tuple(parts), after).on(spark)
        for piece in ranges_of(bounds)
    ]


def ranges_of(bounds: Sequence[Answer]) -> list[Piece]:
    """Return the pieces between the bounds, each with its upper end, the first with both."""
    if len(bounds) == 1:
        return [Piece(bounds[0][0], bounds[0][0], True, 1)]
    return [
        Piece(lower, upper, begin == 1, end - begin + (begin == 1))
        for (lower, begin), (upper, end) in pairwise(bounds)
    ]


def joined(pieces: Sequence[Piece], most: int, least: int = 1) -> list[Piece]:
    """Join neighbours into pieces of so many each, at most; but have at least so many of them."""
    count = max(-(-len(pieces) // most), min(least, len(pieces)))
    ends = [number * len(pieces) // max(count, 1) for number in range(count + 1)]
    return [_together(pieces[begin:end]) for begin, end in pairwise(ends)]


def _together(pieces: Sequence[Piece]) -> Piece:
    rows = sum(each.rows for each in pieces)
    return Piece(pieces[0].lower, pieces[-1].upper, pieces[0].is_first, rows)


def stretches(pieces: Sequence[Piece], most: int) -> Iterator[list[Piece]]:
    """Yield the pieces by so many rows at most, but one piece at least."""
    some: list[Piece] = []
    for each in pieces:
        if some and sum(other.rows for other in some) + each.rows > most:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def read_rows(
    spark: SparkSession, table: Table, columns: Sequence[str], partitions: int | None = None
) -> DataFrame:
    """Return some columns of all rows of a table that have an age."""
    with closing(steady()) as connection:
        whole = Layout.of(connection, table)
    layout = Layout(table, {name: whole.types[name] for name in columns})
    pieces = pieces_of(spark, layout, MAX_MILLISECONDS, _PIECE_OF_READ)
    return pieces_read(spark, Reading(layout, MAX_MILLISECONDS, tuple(pieces)), partitions)


def pieces_read(spark: SparkSession, reading: Reading, partitions: int | None = None) -> DataFrame:
    """Return the rows of the pieces, each read by a task of its own, or by so many tasks."""
    count = len(reading.pieces)
    numbers = spark.range(0, count, 1, max(min(count, partitions or count), 1))
    return numbers.mapInArrow(reading, reading.layout.schema)


def _arrow_schema(layout: Layout) -> pa.Schema:
    types = [(name, _ARROW.get(kind, pa.string())) for name, kind in layout.types.items()]
    return pa.schema([*types, (DIGEST, pa.string())])
