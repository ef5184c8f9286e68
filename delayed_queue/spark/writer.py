"""Bulk offers: a DataFrame into a queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from delayed_queue.exceptions import InvalidConfiguration, JobFinished, ResourceUnavailable
from delayed_queue.spark.connecting import connect
from delayed_queue.spark.ledger import JobKey, claim_closing, is_closed, prune_ledger
from delayed_queue.spark.links import Link
from delayed_queue.spark.offering import OFFER, Job, PartitionOffers
from delayed_queue.spark.options import Options
from delayed_queue.spark.room import look_around
from delayed_queue.spark.schema import check_written
from delayed_queue.spark.staging import clear_stage, merge_staged, stage_all

if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass
class Written(WriterCommitMessage):
    """How many rows a task was given; where they are staged, and if workers must be woken."""

    rows: int
    attempt: str = ""
    is_soon: bool = False


class OfferWriter(DataSourceArrowWriter):
    """Offer each row, at most once however often Spark repeats a task.

    Everything that can be known is checked here, on the driver, before the first task.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfiguration(
                "mode('overwrite') would drop the queue: use mode('append'); the option mode "
                "says whether an offer may update (upsert) or not (offer)."
            )
        check_written(schema)
        kind = options.required_kind
        key = JobKey(options.job or f"{kind} {uuid.uuid4()}")
        self._job = Job(key, self._began(options, key), options)

    def _began(self, options: Options, key: JobKey) -> int:
        session = connect(options)
        try:
            now = look_around(session, options)
            if options.onFinishedJob == "error" and is_closed(session, key):
                raise JobFinished(
                    f"The job {key.job!r} is done, and offering its rows again would do nothing. "
                    "Give another id, or option('onFinishedJob', 'skip')."
                )
            return now
        finally:
            session.close()

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if self._job.options.atomic:
            return Written(*stage_all(self._job, partition, iterator))
        return Written(PartitionOffers(self._job, partition).offer_all(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [each for each in messages if isinstance(each, Written)]
        rows = sum(each.rows for each in written)
        link = Link(self._job.options)
        try:
            if self._job.options.atomic:
                attempts = [each.attempt for each in written]
                wake = any(each.is_soon for each in written)
                link.repeat(
                    OFFER,
                    lambda session: merge_staged(session, self._job, attempts, rows, wake=wake),
                )
            else:
                link.repeat(OFFER, lambda session: claim_closing(session, self._job.key, rows))
            days = self._job.options.ledgerDays
            link.repeat(OFFER, lambda session: prune_ledger(session, days))
        finally:
            link.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was offered: the same job id continues where this one stopped."""
        if not self._job.options.atomic:
            return
        link = Link(self._job.options)
        # It has failed already, and what it staged is pruned by age.
        with suppress(ResourceUnavailable):
            link.once(OFFER, lambda session: clear_stage(session, self._job))
        link.close()
