"""Tables that can be archived: their rows for executors to read, and the manifest of an archive."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple
from uuid import uuid4

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
from delayed_queue.spark.jobs.files import Sums
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.archiving import (
    ADVANCE_ARCHIVE,
    BOUNDS,
    COLUMNS,
    FILES_OF,
    FIRST_INFINITE,
    HOLD_ARCHIVE,
    NOTE_FILES,
    PLAN_ARCHIVE,
    READ_PIECE,
    STEADY_TEXT,
    UNFINISHED_ARCHIVE,
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

    def statement(self, template: Template) -> composed.Composed:
        return filled(
            template,
            table=composed.Identifier(self.table.source),
            key=composed.Identifier(self.table.key),
            age=composed.Identifier(self.table.age),
            # As pg_catalog writes it, from there.
            type=composed.SQL(self.types[self.table.key]),
            cutoff=composed.SQL(_CUTOFFS[self.types[self.table.age]]),
            only=self._only(),
            finite=self._finite(),
            columns=composed.SQL(", ").join(self._column(name) for name in self.types),
        )

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

    def bounds(
        self, connection: Connection, cutoff: int, limit: int, piece: int
    ) -> list[tuple[str, int]]:
        """Return where pieces begin, and the last key, each with its place among the rows."""
        params = {"cutoff": cutoff, "limit": limit, "piece": piece}
        with connection.transaction():
            connection.execute(_BY_KEY)
            return [
                (key, place) for key, place in fetch(connection, self.statement(BOUNDS), params)
            ]

    def refuse_infinite(self, connection: Connection, lower: str, upper: str, cutoff: int) -> None:
        """Raise InvalidConfiguration naming a row that Parquet cannot hold."""
        params = {"lower": lower, "upper": upper, "cutoff": cutoff}
        rows = fetch(connection, self.statement(FIRST_INFINITE), params)
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
            f"{name!r} is none of {', '.join(KNOWN)}. Of a table of yours, say by which column "
            "it ages: --age column."
        )
    return Table(name, key or "id", age, only)


LEASE_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """What a file is known by: its name, its size, and what was read back from it."""

    name: str
    size: int
    sums: Sums


class ArchiveLost(RuntimeError):
    """Another process took the archive over; this one stops and changes nothing more."""


@dataclass(slots=True)
class Manifest:
    """One row of ``delayed_queue_archive``."""

    id: int
    source: str
    key: str
    age: str
    lower: str
    upper: str
    only: str
    cutoff: int
    expected: int
    destination: str
    state: str
    staging: str
    rows: int | None
    holder: str
    held_for_ms: int

    @property
    def table(self) -> Table:
        return Table(self.source, self.key, self.age, json.loads(self.only))

    @property
    def path(self) -> str:
        """Return where the files end up."""
        return f"{self.destination}/{self.source}/archive={self.id:08d}"


def new_holder() -> str:
    """Return a name for this process that no other has, and that tells who it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_dead(holder: str) -> bool:
    """Return whether the holder was a process of this machine that is gone."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


class Manifests:
    """The manifests' statements, for one holder."""

    def __init__(self, connection: Connection, lease_ms: int = LEASE_MS) -> None:
        self.connection = connection
        self.holder = new_holder()
        self._lease_ms = lease_ms

    @property
    def token(self) -> str:
        return self.holder.rpartition(":")[2]

    def unfinished(self, source: str) -> Manifest | None:
        rows = fetch(self.connection, UNFINISHED_ARCHIVE, {"source": source, "now": None})
        return Manifest(*rows[0]) if rows else None

    def plan(
        self, table: Table, bounds: tuple[str, str], cutoff: int, expected: int, destination: str
    ) -> Manifest:
        """Write the decision down; another unfinished archive of the table refuses it."""
        params = {
            "source": table.source, "key": table.key, "age": table.age, "lower": bounds[0],
            "upper": bounds[1], "only": table.only_json, "cutoff": cutoff, "expected": expected,
            "destination": destination, "holder": self.holder, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        rows = fetch(self.connection, PLAN_ARCHIVE, params)
        found = self.unfinished(table.source) if rows else None
        if found is None:
            raise ArchiveLost(f"Another process is archiving {table.source} at this moment.")
        return found

    def hold(self, manifest: Manifest) -> bool:
        """Take the archive, or keep it; return False while another holder may be at work."""
        dead = manifest.holder if is_dead(manifest.holder) else self.holder
        params = {
            "id": manifest.id, "holder": self.holder, "dead": dead, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        if not fetch(self.connection, HOLD_ARCHIVE, params):
            return False
        manifest.holder = self.holder
        return True

    def advance(
        self,
        manifest: Manifest,
        to: str,
        *,
        staging: str | None = None,
        rows: int | None = None,
        deleted: int | None = None,
        changed: int | None = None,
    ) -> None:
        """Write the next state down, or raise ArchiveLost."""
        params: dict[str, Any] = {
            "id": manifest.id, "holder": self.holder, "state": manifest.state, "to": to,
            "staging": staging, "rows": rows, "deleted": deleted, "changed": changed, "now": None,
        }  # fmt: skip
        if not fetch(self.connection, ADVANCE_ARCHIVE, params):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        manifest.state = to
        manifest.staging = manifest.staging if staging is None else staging
        manifest.rows = manifest.rows if rows is None else rows

    def staged(self, manifest: Manifest, files: Sequence[ArchivedFile]) -> None:
        """Write down that the files are written, and what was read back from each."""
        params = {
            "id": manifest.id,
            "names": [each.name for each in files],
            "sizes": [each.size for each in files],
            "rows": (rows := [each.sums.rows for each in files]),
            "checksums": [each.sums.checksum for each in files],
        }
        with self.connection.transaction():
            self.advance(manifest, "staged", rows=sum(rows))
            self.connection.execute(NOTE_FILES, params)

    def files(self, manifest: Manifest) -> list[FileRow]:
        """Return the files of the archive, in order of their names."""
        rows = fetch(self.connection, FILES_OF, {"id": manifest.id})
        return sorted(FileRow(*each) for each in rows)


class FileRow(NamedTuple):
    """A file, how many of its rows are yet to be deleted, and what became of the others."""

    name: str
    size: int
    left: int
    deleted: int
    changed: int


_PIECE: Final = 100_000
ALL: Final = 2**62
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


Piece = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads pieces of the table by their numbers, in the executors, each over a connection."""

    layout: Layout
    cutoff: int
    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self._rows(*self.pieces[number])

    def _rows(self, lower: str, upper: str, is_last: bool) -> Iterator[pa.RecordBatch]:
        params = {"lower": lower, "upper": upper, "is_last": is_last, "cutoff": self.cutoff}
        statement = self.layout.statement(READ_PIECE).as_string(None)
        schema = _arrow_schema(self.layout)
        session = outlasting(lambda: connect(Options(), reads_rows=True))
        try:
            session.fetch(STEADY_TEXT.text, {})
            for batch in session.stream(statement, params, schema):
                columns = map(pa.Array.cast, batch.columns, schema.types)
                yield pa.RecordBatch.from_arrays(list(columns), schema=schema)
        finally:
            session.close()


def read_rows(
    spark: SparkSession, table: Table, columns: Sequence[str], partitions: int | None = None
) -> DataFrame:
    """Return some columns of all rows of a table that have an age."""
    with steady() as connection:
        whole = Layout.of(connection, table)
        layout = Layout(table, {name: whole.types[name] for name in columns})
        found = layout.bounds(connection, MAX_MILLISECONDS, ALL, _PIECE)
    ranges = ranges_of([key for key, _ in found])
    return pieces_read(spark, Reading(layout, MAX_MILLISECONDS, tuple(ranges)), partitions)


def pieces_read(spark: SparkSession, reading: Reading, partitions: int | None = None) -> DataFrame:
    """Return the rows of the pieces, each read by a task of its own, or by so many tasks."""
    count = len(reading.pieces)
    numbers = spark.range(0, count, 1, max(min(count, partitions or count), 1))
    return numbers.mapInArrow(reading, reading.layout.schema)


def ranges_of(bounds: list[str]) -> list[Piece]:
    """Return the pieces between the bounds: without their upper end, but for the last."""
    pairs = list(pairwise(bounds)) or [(each, each) for each in bounds]
    return [(lower, upper, index == len(pairs) - 1) for index, (lower, upper) in enumerate(pairs)]


def _arrow_schema(layout: Layout) -> pa.Schema:
    types = [(name, _ARROW.get(kind, pa.string())) for name, kind in layout.types.items()]
    return pa.schema([*types, (DIGEST, pa.string())])
