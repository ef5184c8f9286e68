"""Draining a queue once, to its end, with the acknowledgement of the last batch."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASE, RELEASE_LEASES
from delayed_queue.spark.database import Link, Session
from delayed_queue.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def drain(
    writer: DataStreamWriter, checkpoint: str, *, timeout: int | None = None
) -> StreamingQuery:
    """Run the stream until what was due when it began is handled; return the finished query.

    ``checkpoint`` is its checkpoint location. The last batch is acknowledged whatever happens:
    also the one that an earlier run had finished when it was stopped. Raises what the query
    raises, and TimeoutError, after which the query runs no more.

    >>> stream = spark.readStream.format("delayed_queue").option("queue", "orders").load()
    >>> drain(stream.writeStream.format("parquet").option("path", "lake"), "lake/_checkpoint")
    """
    from pyspark.sql import SparkSession

    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(timeout) and timeout is not None:
            raise TimeoutError(f"The queue was not drained within {timeout} seconds.")
    finally:
        query.stop()
        acknowledge_checkpoint(SparkSession.active(), checkpoint)
    return query


def acknowledge_checkpoint(
    spark: SparkSession, checkpoint: str, options: Options | None = None
) -> int:
    """Acknowledge the last batch that the checkpoint says is done; return how many leases.

    For a stream that was stopped: Spark tells a source that a batch is done when it asks for
    the next, and so not of the last one. What was leased ahead is given back. Does nothing while
    there is no finished batch.
    """
    done, logged = (_numbers(spark, f"{checkpoint}/{name}") for name in ("commits", "offsets"))
    wanted = {max(numbers) for numbers in (done, logged) if numbers}
    offsets = {number: _offsets(spark, f"{checkpoint}/offsets/{number}") for number in wanted}
    leases = [each["lock"] for each in offsets[max(done)] if each["lock"]] if done else []
    ahead = [each["next"] for each in offsets[max(logged)] if each["next"]] if logged else []
    if leases or ahead:
        _settle(options or Options(), leases, ahead)
    return len(leases)


def _settle(options: Options, leases: list[str], ahead: list[str]) -> None:
    link = Link(options)
    try:
        for lease_id in leases:
            link.repeat("The acknowledgement", partial(_acknowledge, lease_id))
        if ahead:
            given: dict[str, Any] = {"lease_ids": ahead, "ids": [], "now": None}
            link.repeat("Giving back", lambda session: session.fetch(RELEASE_LEASES, given))
    finally:
        link.close()


def _acknowledge(lease_id: str, session: Session) -> None:
    session.fetch(ACKNOWLEDGE_LEASE, {"lease_id": lease_id})


def _numbers(spark: SparkSession, directory: str) -> list[int]:
    from pyspark.errors import AnalysisException

    try:
        # By Spark, because a checkpoint may be in any file system that it knows; without a job.
        paths = spark.read.text(directory).inputFiles()
    except AnalysisException:  # there is none yet
        return []
    last = (path.rpartition("/")[2] for path in paths)
    return [int(name) for name in last if name.isdigit()]


def _offsets(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """Return ours in an offset file: a version, metadata, then a line for each source."""
    rows = [row[0] for row in spark.read.text(path).collect()]
    found = [json.loads(row) for row in rows if row.startswith("{")]
    return [each for each in found if {"n", "lock", "next", "kind"} <= each.keys()]
