"""Read a queue as a stream: each batch is a lease."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import connect, look_around
from delayed_queue.spark.source.leases import Leases, check_offset, owner_of
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.reader import IdRange, ranges, read_range
from delayed_queue.spark.source.schema import check_read
from delayed_queue.spark.store.streaming import READ_LEASED

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Offset = dict[str, Any]


@dataclass
class LeasedRange(IdRange):
    """Messages of a range of ids that are under a lease."""

    lease_id: str


class LeasingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases due messages for each batch, and acknowledges a batch when Spark has finished it.

    One instance lives in a process on the driver for the whole query; pickled copies read on the
    executors. An offset is ``{"n": 7, "lock": "…", "next": "…", "kind": …, "database": …}``: the
    number of the batch that ends there, its lease, the lease of the next batch if it was leased
    ahead, and their owner. An offset of another queue is refused.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        check_read(schema)
        self._options = options
        self._schema = schema
        self._kind = options.required_kind
        self._leases: Leases | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Connections and threads cannot be pickled.
        return self.__dict__ | {"_leases": None}

    def held(self) -> Leases:
        """Return the leases of this reader, made at the first call."""
        if self._leases is None:
            with closing(connect(self._options)) as connection:
                # One per lease connection, one to acknowledge, one to renew.
                look_around(connection, self._options, leases=self._options.leaseConnections + 2)
                owner = owner_of(self._kind, connection)
            self._leases = Leases(self._options, owner)
        return self._leases

    def _held_for(self, *offsets: Offset) -> Leases:
        """Return the leases, or raise InvalidConfiguration if an offset is of another queue."""
        leases = self.held()
        for each in offsets:
            check_offset(each, leases.owner)
        return leases

    def initialOffset(self) -> Offset:  # Spark's names, here and below
        return {"n": 0, "lock": "", "next": "", "kind": self._kind}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.maxMessagesPerTrigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self.held().stop_at_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledge the batch that ends at ``start``, and lease the next one.

        Spark calls this after its commit log contains the batch. It calls ``commit()`` for the
        batch too, but only when there is a next one.
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
        return {**held, "kind": self._kind, "database": leases.owner.database}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the batch that ends at ``end`` into pieces; after a restart, the rest of it."""
        if start == end:
            return []
        lease_id = end["lock"]
        found = self._held_for(start, end).cuts_of(lease_id)
        return [LeasedRange(*each, found.now, lease_id) for each in ranges(found)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        if not isinstance(partition, LeasedRange):
            return
        yield from read_range(self._options, READ_LEASED, partition, self._schema)

    def commit(self, end: Offset) -> None:
        """Acknowledge the batch, usually a second time, which changes nothing."""
        self._held_for(end).acknowledge(end["lock"])

    def stop(self) -> None:
        if self._leases is not None:
            self._leases.close()
