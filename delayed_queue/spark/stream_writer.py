"""Offering what a stream brings, each micro-batch once however often it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import Link, connect, look_around
from delayed_queue.spark.ledger import JobKey, claim_closing, prune_ledger
from delayed_queue.spark.offering import Job, PartitionOffers
from delayed_queue.spark.options import Options
from delayed_queue.spark.schema import check_written

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Spark sets them where it runs a sink; the API gives the batch to commit() only.
_OF_BATCH: Final = ("sql.streaming.queryId", "streaming.sql.batchId")


@dataclass
class BatchWritten(WriterCommitMessage):
    """How many rows a task was given, and of which query: the commit is told neither."""

    rows: int
    query_id: str


class StreamOfferWriter(DataSourceStreamArrowWriter):
    """Offer the rows of a micro-batch under the id of the query and the number of the batch.

    Both are in the checkpoint, and so the same after a restart. A batch that was finished is not
    offered again; of one that was not, only the chunks that are missing.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfiguration("The output mode must be append: a queue is not replaced.")
        if options.job is not None or options.atomic:
            raise InvalidConfiguration(
                "The options job and atomic are for batches; a stream is counted under the id of "
                "its query: counts(query.id)."
            )
        check_written(schema)
        self._options = options
        # Here, on the driver, and not in a task: an unknown queue is no reason to retry.
        self._kind = options.required_kind
        session = connect(options)
        try:
            self._now = look_around(session, options)
        finally:
            session.close()

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        if context is None:
            raise InvalidConfiguration("Rows of a stream are offered by tasks of Spark only.")
        query_id, batch = (context.getLocalProperty(name) for name in _OF_BATCH)
        if query_id is None or batch is None:
            raise InvalidConfiguration("Spark does not say which batch of which query this is.")
        job = Job(JobKey(query_id, int(batch)), self._now, self._options)
        rows = PartitionOffers(job, context.partitionId()).offer_all(iterator)
        return BatchWritten(rows, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = [each for each in messages if isinstance(each, BatchWritten)]
        if not written:
            return
        key = JobKey(written[0].query_id, batchId)
        rows = sum(each.rows for each in written)
        link = Link(self._options)
        try:
            link.repeat("The commit", lambda session: claim_closing(session, key, rows))
            link.repeat(
                "The commit", lambda session: prune_ledger(session, self._options.ledgerDays)
            )
        finally:
            link.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was offered: the batch is replayed, and its chunks are known."""
