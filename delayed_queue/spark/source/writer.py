"""Bulk offers: a DataFrame into a queue, chunk by chunk or at once, and a stream batch by batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from delayed_queue.exceptions import InvalidConfiguration, JobFinished, ResourceUnavailable
from delayed_queue.spark.database import Connection, Link, connect, copy_rows, fetch, look_around
from delayed_queue.spark.source.arrow import Columns, encode_rows
from delayed_queue.spark.source.ledger import (
    KEPT,
    OFFER,
    JobKey,
    check_offered,
    claim_closing,
    is_closed,
    open_job,
    settle,
    task_of_stream,
    then_pruned,
)
from delayed_queue.spark.source.members import hold_batch
from delayed_queue.spark.source.offering import (
    Job,
    PartitionOffers,
    chunks,
    due_times,
    jsonb,
    merged,
    soon_kinds,
    wake,
)
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.rules import offers_of
from delayed_queue.spark.source.schema import check_written
from delayed_queue.spark.store.offering import (
    CLEAR_STAGE,
    COUNT_STAGED,
    MERGE_STAGE_IF_NOT_EXISTS,
    MERGE_STAGE_OR_UPDATE,
    MERGE_STAGED_MEMBERS_IF_NOT_EXISTS,
    MERGE_STAGED_MEMBERS_OR_UPDATE,
    PRUNE_STAGE,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

STAGE: Final = "delayed_queue_offer_stage"
_MERGES: Final = (MERGE_STAGE_IF_NOT_EXISTS, MERGE_STAGE_OR_UPDATE)
_MERGES_OF_BATCH: Final = (MERGE_STAGED_MEMBERS_IF_NOT_EXISTS, MERGE_STAGED_MEMBERS_OR_UPDATE)


def stage_all(job: Job, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
    """Stage the rows of a partition under a new attempt id.

    A chunk is not sent twice under one id: after a lost connection the attempt fails as a whole.
    """
    attempt = str(uuid.uuid4())
    rows, soon = 0, set[str]()
    with closing(Link(job.options)) as link:
        for chunk in chunks(batches, job.options.chunk):
            offers = offers_of(chunk, job.options.codec)
            staged = _staged(job, partition, attempt, rows, offers)
            link.once(OFFER, partial(_send, staged))
            soon |= soon_kinds(job, offers, staged["dueAt"])
            rows += chunk.num_rows
    return Written(rows, attempt, frozenset(soon))


def _send(staged: Columns, connection: Connection) -> None:
    copy_rows(connection, (STAGE,), staged, encode_rows(staged))


def _staged(
    job: Job, partition: int, attempt: str, before: int, offers: pa.Table
) -> dict[str, Any]:
    return {
        "job": pa.scalar(job.key.job),
        "attempt": pa.scalar(attempt),
        "partition": pa.scalar(partition, pa.int32()),
        "position": pa.array(range(before, before + offers.num_rows), pa.int64()),
        "key": offers["key"],
        "payload": offers["payload"],
        "dueAt": due_times(offers, job.now),
        "headers": jsonb(offers["headers"]),
        "kind": offers["kind"],
        "grouped": offers["group"],
        "expiresAt": offers["expires_at"],
        "recordedAt": pa.scalar(job.now, pa.int64()),
    }


def merge_staged(connection: Connection, job: Job, written: Sequence[Written]) -> None:
    """Offer the staged rows of the attempts, close the job, and wake the workers.

    If the job is closed, an earlier call has done this, and nothing happens.
    """
    rows = sum(each.rows for each in written)
    closed = claim_closing(connection, job.key, rows)
    if closed is None:
        return
    hold_batch(connection, job.options.batch)
    which: dict[str, Any] = {"job": job.key.job, "attempts": [each.attempt for each in written]}
    ((staged, most),) = fetch(connection, COUNT_STAGED, which)
    if staged != rows:
        raise ResourceUnavailable(
            f"{staged} of {rows} staged rows are left: staged rows are lost when the server "
            "crashes. Nothing was offered; run the job again."
        )
    statements = _MERGES if job.options.batch is None else _MERGES_OF_BATCH
    settle(connection, closed, merged(connection, job, statements, most, which))
    fetch(connection, CLEAR_STAGE, {"job": job.key.job})
    wake(connection, {kind for each in written for kind in each.soon})


def clear_stage(connection: Connection, job: Job) -> None:
    """Delete the job's staged rows, and old rows of other jobs."""
    fetch(connection, CLEAR_STAGE, {"job": job.key.job})
    fetch(connection, PRUNE_STAGE, {**KEPT, "now": None})


@dataclass
class Written(WriterCommitMessage):
    """A task's result: its rows, their attempt in the stage, and the kinds to wake."""

    rows: int
    attempt: str = ""
    soon: frozenset[str] = frozenset()


def _kind_of(options: Options, schema: StructType) -> str:
    """Return the kind of all rows, or the name of the column that has it."""
    named = [each for each in ("kind", "queue") if each in schema.fieldNames()]
    return named[0] if named else options.required_kind


class OfferWriter(DataSourceArrowWriter):
    """Offers each row once, however often Spark repeats a task.

    It checks everything possible on the driver, before the first task.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfiguration(
                "mode('overwrite') would drop the queue: use mode('append'); the option mode "
                "says whether an offer may update (upsert) or not (offer)."
            )
        check_written(schema, options.kind)
        key = JobKey(options.job or f"{_kind_of(options, schema)} {uuid.uuid4()}")
        self._job = Job(key, self._started_at(options, key), options)

    def _started_at(self, options: Options, key: JobKey) -> int:
        with closing(connect(options)) as connection:
            look_around(connection, options)
            if options.onFinishedJob == "error" and is_closed(connection, key):
                raise JobFinished(
                    f"The job {key.job!r} is done, and offering its rows again would do nothing. "
                    "Give another id, or option('onFinishedJob', 'skip')."
                )
            if options.batch is not None and not is_closed(connection, key):
                hold_batch(connection, options.batch)
            now = open_job(connection, key)
            connection.commit()
            return now

    def write(self, iterator: Iterator[RecordBatch], *, are_checked: bool = False) -> Written:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if self._job.options.atomic:
            return stage_all(self._job, partition, iterator)
        offers = PartitionOffers(self._job, partition)
        return Written(offers.offer_all(iterator, are_checked=are_checked))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [each for each in messages if isinstance(each, Written)]
        rows = sum(each.rows for each in written)

        def close(connection: Connection) -> None:
            if self._job.options.atomic:
                merge_staged(connection, self._job, written)
            else:
                claim_closing(connection, self._job.key, rows)

        then_pruned(self._job.options, OFFER, close)
        with closing(connect(self._job.options)) as connection:
            check_offered(connection, self._job.key, rows)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep the offered rows: the same job id continues where this one stopped."""
        if not self._job.options.atomic:
            return
        # The job has failed already; rows that stay in the stage are pruned by age.
        with closing(Link(self._job.options)) as link, suppress(ResourceUnavailable):
            link.once(OFFER, lambda connection: clear_stage(connection, self._job))


@dataclass
class BatchWritten(WriterCommitMessage):
    """A task's rows and query, which Spark does not pass to the commit."""

    rows: int
    query_id: str


class StreamOfferWriter(DataSourceStreamArrowWriter):
    """Offers the rows of a micro-batch under the id of the query and the number of the batch.

    Both are in the checkpoint, and so the same after a restart. A finished batch is not offered
    again; of an unfinished one only the missing chunks are.
    """

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfiguration("The output mode must be append: a queue is not replaced.")
        if options.job is not None or options.atomic:
            raise InvalidConfiguration(
                "The options job and atomic are for batches; a stream is counted under the id of "
                "its query: counts(query.id)."
            )
        check_written(schema, options.kind)
        self._options = options
        # Checked on the driver, because a task would retry for an unknown queue.
        _kind_of(options, schema)
        with closing(connect(options)) as connection:
            self._now = look_around(connection, options)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        context, key = task_of_stream()
        job = Job(key, self._now, self._options)
        rows = PartitionOffers(job, context.partitionId()).offer_all(iterator)
        return BatchWritten(rows, key.job)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = [each for each in messages if isinstance(each, BatchWritten)]
        if not written:
            return
        key = JobKey(written[0].query_id, batchId)
        rows = sum(each.rows for each in written)
        then_pruned(
            self._options, "The commit", lambda connection: claim_closing(connection, key, rows)
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep the offered rows: the batch is replayed, and its chunks are known."""
