"""Tables that can be archived: their columns, what is old enough, and how rows are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, LiteralString

from psycopg import sql as composed

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.jobs.database import Connection, fetch, filled
from delayed_queue.spark.store.archiving import COLUMNS, Template

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
            columns=composed.SQL(", ").join(self._column(name) for name in self.types),
        )

    def _column(self, name: str) -> composed.Composable:
        is_kept = self.types[name] in _PARQUET
        shape: LiteralString = "{}" if is_kept else "{}::text"
        return composed.SQL(shape).format(composed.Identifier(name))

    def _only(self) -> composed.Composable:
        if not self.table.only:
            return composed.SQL("true")
        shape: LiteralString = "{}::text = ANY ({}::text[])"
        return composed.SQL(" AND ").join(
            composed.SQL(shape).format(composed.Identifier(name), composed.Literal(list(values)))
            for name, values in self.table.only.items()
        )


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
