"""Draining a queue as a stream: each batch is a lease, and ends with its acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import DriverError, connect, look_around
from delayed_queue.spark.leases import Leases, Owner, check_offset, owner_of
from delayed_queue.spark.options import Options
from delayed_queue.spark.reader import IdRange, ranges, read_columns
from delayed_queue.spark.schema import check_read
from delayed_queue.spark.store.streaming import READ_LEASED

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Fewer ids than this are not worth a task of their own.
_IDS_PER_TASK: Final = 1_000
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

    def _held(self) -> Leases:
        if self._leases is None:
            self._check_room()
            self._leases = Leases(self._options)
        return self._leases

    def _held_for(self, *offsets: Offset) -> Leases:
        """Return the leases, or raise InvalidConfiguration if an offset is of another queue."""
        leases = self._held()
        for each in offsets:
            check_offset(each, self._known_owner())
        return leases

    def _known_owner(self) -> Owner:
        assert self._owner is not None  # noqa: S101 - by _held()
        return self._owner

    def _check_room(self) -> None:
        session = connect(self._options)
        try:
            # One for each lease connection, one to acknowledge, one to renew.
            look_around(session, self._options, leases=self._options.leaseConnections + 2)
            self._owner = owner_of(self._kind, session)
        finally:
            session.close()

    def initialOffset(self) -> Offset:  # names of Spark, here and below
        return {"n": 0, "lock": "", "next": "", "kind": self._kind}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerTrigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._held().stop_at_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledge the batch that ends at ``start``, and lease the next one.

        Spark asks for what comes after ``start`` only when its commit log says that the batch
        is done. It calls ``commit()`` for it too, but only when there is a next one.
        """
        leases = self._held_for(start)
        leases.acknowledge(start["lock"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            most = self._options.maxMessagesPerTrigger
        lease_id = leases.take(most, start["next"])
        if lease_id is None:
            return start
        held = {"n": start["n"] + 1, "lock": lease_id, "next": leases.look_ahead(most)}
        return {**held, "kind": self._kind, "database": self._known_owner().database}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the batch that ends at ``end``: after a restart what is left of it."""
        if start == end:
            return []
        lease_id = end["lock"]
        first, last, now = self._held_for(start, end).range_of(lease_id)
        return [
            LeasedRange(lease_id, low, high, now)
            for low, high in ranges(first, last, self._options, _IDS_PER_TASK)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, LeasedRange):
            return
        params = {
            "lease_id": partition.lease_id,
            "kind": self._kind,
            "first": partition.first,
            "last": partition.last,
            "now": partition.now,
        }
        session = connect(self._options, reads_rows=True)
        try:
            yield from read_columns(session, READ_LEASED, params, self._schema, kind=self._kind)
        except DriverError as error:
            raise ResourceUnavailable(f"The read failed: {error}") from None
        finally:
            session.close()

    def commit(self, end: Offset) -> None:
        """Acknowledge, mostly for the second time, which changes nothing."""
        self._held_for(end).acknowledge(end["lock"])

    def stop(self) -> None:
        if self._leases is not None:
            self._leases.close()
