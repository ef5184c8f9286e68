"""Reading a queue: as a table in ranges of ids, and as a stream whose batches are leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql as composed
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from delayed_queue.db.sql import column_of, row_of, value_of
from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.messages import EPOCH, MAX_MILLISECONDS, MILLISECOND, MIN_MILLISECONDS
from delayed_queue.spark.database import Connection, connect, fetch, first_line, look_around
from delayed_queue.spark.source.arrow import converted
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.leases import Leases, Owner, check_offset, owner_of
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.queues import check_known
from delayed_queue.spark.source.schema import check_read, source_columns, source_schema
from delayed_queue.spark.store.streaming import (
    ID_RANGE,
    READ_LEASED,
    READ_RANGE,
    SAMPLED_CUTS,
    PieceRow,
    RangeRow,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_TEMPLATES: Final = {
    **{each: f"{{column}} {each} {{value}}" for each in ("=", "<", "<=", ">", ">=")},
    "IN": "{column} = ANY ({value})",
    "IS NULL": "{column} IS NULL",
    "IS NOT NULL": "{column} IS NOT NULL",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, one of our operators, and what it is compared with."""

    column: str
    operator: str
    value: Any = None

    def named(self, name: str) -> tuple[composed.Composable, dict[str, Any]]:
        """Return the condition with a placeholder of that name, and what belongs there."""
        query = composed.SQL(_TEMPLATES[self.operator]).format(
            column=composed.Identifier(self.column), value=composed.Placeholder(name)
        )
        return query, {name: self.value}


def conditions_of(filters: Iterable[Filter]) -> list[Condition]:
    """Return those filters that PostgreSQL decides exactly as Spark does, in its terms."""
    found = (_condition(each) for each in filters)
    return [each for each in found if each is not None]


def _condition(given: Filter) -> Condition | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1:
        return None
    if isinstance(given, IsNull | IsNotNull):
        operator = "IS NULL" if isinstance(given, IsNull) else "IS NOT NULL"
        return Condition(path[0], operator) if path[0] in _NULLABLE else None
    operator = _OPERATORS.get(type(given), "")
    make = _MAKERS.get(path[0])
    value = make(operator, getattr(given, "value", None)) if operator and make else None
    return None if value is None else Condition(path[0], operator, value)


_OPERATORS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "IN",
}
_NULLABLE: Final = frozenset({"lock_uuid", "headers", "due_at", "group"})


def _text(operator: str, value: Any) -> Any:
    """Only what needs no order: that of a database's collation is not Spark's."""
    if operator == "IN":
        return _each(_text, value)
    # PostgreSQL has no NUL in texts, and so no text that would be equal.
    fits = operator == "=" and isinstance(value, str) and "\x00" not in value
    return value if fits else None


def _number(operator: str, value: Any) -> Any:
    if operator == "IN":
        return _each(_number, value)
    return value if type(value) is int else None


def _time(operator: str, value: Any) -> Any:
    """Return milliseconds that divide the stored ones as the instant divides Spark's."""
    if operator == "IN":
        return _each(_time, value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    floored = (value - EPOCH) // MILLISECOND
    is_exact = (value - EPOCH) % MILLISECOND == MILLISECOND * 0
    # What is stored outside of the years 1 to 9999 is shown at their ends.
    if not MIN_MILLISECONDS < floored < MAX_MILLISECONDS - 1:
        return None
    if operator == "=":
        return floored if is_exact else None
    return floored if is_exact or operator in {">", "<="} else floored + 1


def _each(make: Callable[[str, Any], Any], values: Iterable[Any]) -> list[Any] | None:
    """Return the values that a column could equal, or None when one cannot be told."""
    made = [make("=", each) for each in values if each is not None]
    return None if None in made else made


_MAKERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys(("key", "kind", "state", "lock_uuid", "group"), _text),
    **dict.fromkeys(("id", "attempts"), _number),
    **dict.fromkeys(("scheduled_at", "scheduled_at_initially", "created_at", "due_at"), _time),
}


NO_ROWS: Final = (0, 0)
# Of the table, that are looked at for where to cut it: 32 MB.
_PAGES: Final = 4_096
# Tasks that write at the same time fill pages of their own and draw ids in turns: in the order of
# ids one goes from page to page and back. By a bitmap each is read once.
BY_PAGES: Final = "SET LOCAL enable_indexscan TO off"
# A transaction that reads what another one, which is still open, has agreed to.
REPEATABLE: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass
class IdRange(InputPartition):
    """Messages from ``first`` up to, not including, ``last``; ``now`` judges their state."""

    first: int
    last: int
    now: int

    def __init__(self, first: int, last: int, now: int) -> None:
        self.first, self.last, self.now = first, last, now


class QueueReader(DataSourceReader):
    """Read the messages that are stored, whatever their state, and lease none."""

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
            if self._options.mustExist and self._options.kind is not None:
                check_known(connection, self._options.kind)
            found = row_of(RangeRow, fetch(connection, ID_RANGE, {"now": None}))
            cuts = self._cuts(connection)
        return [IdRange(low, high, now) for low, high in ranges(found.first, found.last, cuts)]

    def _cuts(self, connection: Connection) -> list[int]:
        """Return ids that cut the messages into parts of about as many each."""
        params = {"parts": self._options.partitions, "pages": _PAGES, "kind": self._options.kind}
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
        if not isinstance(partition, IdRange):  # Spark makes one where there is none
            return
        before = [*_joining(self._options.snapshot), BY_PAGES]
        yield from read_range(
            self._options, READ_RANGE, partition, self._schema, before, self._conditions
        )


class FilteringReader(QueueReader):
    """A reader that also leaves to PostgreSQL what a query filters.

    Spark 4.2 and 4.3 keep the reader that was given filters last with the frame, and use it for
    every query on that frame which has none, and for all uses of the frame in one query: these
    then lack rows. Nothing here can tell which query is reading, so this is only for whoever asks.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what PostgreSQL can decide; Spark shall look at all of them again."""
        self._conditions += conditions_of(filters)
        return filters


def ranges(first: int | None, last: int | None, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ids from first to last in ranges without their ends, cut where it is said."""
    if first is None or last is None:
        return [NO_ROWS]
    inner = sorted({each for each in cuts if first < each <= last})
    return list(pairwise([first, *inner, last + 1]))


def _joining(snapshot: str | None) -> list[str]:
    """Return the statements that begin a transaction on the snapshot, if there is one."""
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
    """Yield the columns of the schema, of the rows of the range that meet the conditions."""
    kind = options.kind  # of all rows, and so not read with each
    columns = source_columns(schema.fieldNames(), is_kind_known=kind is not None)
    wrapped, more = wrap(statement, columns, conditions)
    rows = partition.last - partition.first  # at most
    params = {**vars(partition), "kind": kind, **more}
    for batch in read_large(options, before, wrapped, params, source_schema(columns), rows=rows):
        yield converted(batch, schema, kind)


def wrap(
    statement: str, columns: Sequence[str], conditions: Sequence[Condition]
) -> tuple[str, dict[str, Any]]:
    """Select the columns from the statement, and add the conditions with their parameters."""
    named = [each.named(f"filter{number}") for number, each in enumerate(conditions)]
    query = composed.SQL("SELECT {} FROM ({}) AS messages WHERE {}").format(
        composed.SQL(", ").join(map(composed.Identifier, columns)),
        composed.SQL(statement),
        composed.SQL(" AND ").join([each for each, _ in named] or [composed.SQL("true")]),
    )
    params = {name: value for _, values in named for name, value in values.items()}
    return query.as_string(None), params


# Let other transactions see what this one sees, while it lasts.
_EXPORT: Final = "SELECT pg_export_snapshot()"


@contextmanager
def consistent_snapshot(dsn: str | None = None) -> Iterator[str]:
    """Hold a transaction open whose view of the queue other reads can share; yield its name.

    Without it each task reads what is there when it begins. While it is held vacuum removes
    nothing that was deleted since, so not for longer than the read takes. Not through a pooler
    in transaction mode.

    >>> with consistent_snapshot() as name:
    ...     read = spark.read.format("delayed_queue").option("snapshot", name)
    ...     read.option("queue", "orders").load().write.parquet("orders")
    """
    with closing(connect(Options(), dsn=dsn)) as connection:
        connection.execute(REPEATABLE)
        yield str(value_of(fetch(connection, _EXPORT, {})))


Offset = dict[str, Any]


class LeasedRange(IdRange):
    """Messages of a range of ids that are under a lease."""

    def __init__(self, lease_id: str, first: int, last: int, now: int) -> None:
        super().__init__(first, last, now)
        self.lease_id = lease_id


class LeasingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lease what is due for each batch, and acknowledge a batch when it is known to be done.

    One of these lives in a process on the driver as long as the query; others, pickled, read on
    the executors. An offset is ``{"n": 7, "lock": "…", "next": "…", "kind": …, "database": …}``:
    the number of the batch that ends there, the lease its messages are under, that of the next
    batch, if it is leased ahead, and whose they are. One of another queue is refused.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_read(schema)
        self._options = options
        self._schema = schema
        self._kind = options.required_kind
        self._leases: Leases | None = None
        self._owner: Owner | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections and threads stay on the driver.
        return self.__dict__ | {"_leases": None}

    def held(self) -> Leases:
        """Return the leases of this reader, made when they are first asked for."""
        if self._leases is None:
            self._check_room()
            self._leases = Leases(self._options)
        return self._leases

    def _held_for(self, *offsets: Offset) -> Leases:
        """Return the leases, or raise InvalidConfiguration if an offset is of another queue."""
        leases = self.held()
        for each in offsets:
            check_offset(each, self._known_owner())
        return leases

    def _known_owner(self) -> Owner:
        assert self._owner is not None  # noqa: S101 - by held()
        return self._owner

    def _check_room(self) -> None:
        with closing(connect(self._options)) as connection:
            # One for each lease connection, one to acknowledge, one to renew.
            look_around(connection, self._options, leases=self._options.leaseConnections + 2)
            self._owner = owner_of(self._kind, connection)

    def initialOffset(self) -> Offset:  # names of Spark, here and below
        return {"n": 0, "lock": "", "next": "", "kind": self._kind}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerTrigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self.held().stop_at_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledge the batch that ends at ``start``, and lease the next one.

        Spark asks for what comes after ``start`` only when its commit log says that the batch
        is done. It calls ``commit()`` for it too, but only when there is a next one.
        """
        if isinstance(limit, ReadAllAvailable):
            raise InvalidConfiguration(
                "Trigger.Once (once=True) would lease all that is due in one batch, whatever "
                "maxMessagesPerTrigger is: use availableNow=True."
            )
        leases = self._held_for(start)
        leases.acknowledge(start["lock"])
        most = self._options.maxMessagesPerTrigger
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        lease_id = leases.take(most, start["next"])
        if lease_id is None:
            return start
        held = {"n": start["n"] + 1, "lock": lease_id, "next": leases.look_ahead(most)}
        return {**held, "kind": self._kind, "database": self._known_owner().database}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what ``StreamingQueryProgress`` shows as ``latestOffset``: the lag."""
        return self.held().report()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the batch that ends at ``end``: after a restart what is left of it."""
        if start == end:
            return []
        lease_id = end["lock"]
        pieces = self._held_for(start, end).pieces_of(lease_id) or [PieceRow(*NO_ROWS, 0)]
        return [LeasedRange(lease_id, *each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, LeasedRange):
            return
        yield from read_range(self._options, READ_LEASED, partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Acknowledge, mostly for the second time, which changes nothing."""
        self._held_for(end).acknowledge(end["lock"])

    def stop(self) -> None:
        if self._leases is not None:
            self._leases.close()
