"""Reading a queue as a table, in ranges of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql as composed
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.queue.store.inspect import KINDS
from delayed_queue.spark.answers import converted
from delayed_queue.spark.connecting import connect
from delayed_queue.spark.drivers import DriverError, Session
from delayed_queue.spark.filters import Condition, conditions_of
from delayed_queue.spark.options import Options
from delayed_queue.spark.room import look_around
from delayed_queue.spark.schema import check_read, source_columns, source_schema
from delayed_queue.spark.store.streaming import ID_RANGE, READ_RANGE

if TYPE_CHECKING:
    from pyarrow import RecordBatch

NO_ROWS: Final = (0, 0)
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
        session = self._connected()
        try:
            now = look_around(session, self._options)
            if self._options.mustExist:
                self._check_kind(session)
            first, last, _ = session.fetch(ID_RANGE, {"now": None})[0]
        finally:
            session.close()
        return [IdRange(low, high, now) for low, high in ranges(first, last, self._options)]

    def _connected(self, *, reads_rows: bool = False) -> Session:
        session = connect(self._options, reads_rows=reads_rows)
        if self._options.snapshot is not None:
            _join_snapshot(session, self._options.snapshot)
        return session

    def _check_kind(self, session: Session) -> None:
        kinds = [row[0] for row in session.fetch(KINDS, {"limit": 1000})]
        kind = self._options.kind
        if kind is not None and kind not in kinds:
            raise InvalidConfiguration(
                f"No message has the kind {kind!r}; there are {', '.join(kinds) or 'none'}."
            )

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, IdRange):  # Spark makes one where there is none
            return
        params = {"first": partition.first, "last": partition.last, "now": partition.now}
        session = self._connected(reads_rows=True)
        try:
            session.run(BY_PAGES)
            yield from read_columns(
                session,
                READ_RANGE,
                params,
                self._schema,
                self._conditions,
                kind=self._options.kind,
            )
        except DriverError as error:
            raise ResourceUnavailable(f"The read failed: {error}") from None
        finally:
            session.close()


class FilteringReader(QueueReader):
    """A reader that also leaves to PostgreSQL what a query filters.

    Spark 4.2 and 4.3 keep the reader that was given filters last with the frame, and use it for
    every query on that frame which has none, and for all uses of the frame in one query: these
    then lack rows. Nothing here can tell which query is reading, so this is only for who asks.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what PostgreSQL can decide; Spark shall look at all of them again."""
        self._conditions += conditions_of(filters)
        return filters


def ranges(
    first: int | None, last: int | None, options: Options, least: int = 1
) -> list[tuple[int, int]]:
    """Cut the ids from first to last into even ranges of at least so many, without their ends."""
    if first is None or last is None:
        return [NO_ROWS]
    count = max(min(options.numPartitions, (last - first + 1) // least), 1)
    bounds = [first + (last - first + 1) * each // count for each in range(count + 1)]
    return list(pairwise(bounds))


def _join_snapshot(session: Session, snapshot: str) -> None:
    statement = composed.SQL("SET TRANSACTION SNAPSHOT {}").format(composed.Literal(snapshot))
    try:
        session.run(REPEATABLE)
        session.run(statement.as_string(None))
    except DriverError as error:
        session.close()
        raise ResourceUnavailable(
            f"The snapshot {snapshot!r} cannot be read: {error}. Is it still held?"
        ) from None


def read_columns(
    session: Session,
    statement: str,
    params: dict[str, Any],
    schema: StructType,
    conditions: Sequence[Condition] = (),
    *,
    kind: str | None,
) -> Iterator[RecordBatch]:
    """Yield the columns of the schema, of the rows that meet the conditions.

    ``kind`` is that of all of them, which then need not be sent with each.
    """
    columns = source_columns(schema.fieldNames(), is_kind_known=kind is not None)
    wrapped, more = wrap(statement, columns, conditions)
    answers = session.stream(wrapped, params | more, source_schema(columns))
    for batch in answers:
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
