"""Draining a queue once, to its end, with the acknowledgement of the last batch."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from delayed_queue import sql
from delayed_queue.spark.drivers import Session
from delayed_queue.spark.links import Link
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
    the next, and so not of the last one. Does nothing while there is no finished batch.
    """
    done = _numbers(spark, f"{checkpoint}/commits")
    if not done:
        return 0
    leases = list(_leases(spark, f"{checkpoint}/offsets/{max(done)}"))
    link = Link(options or Options())
    try:
        for lease_id in leases:
            link.repeat("The acknowledgement", partial(_acknowledge, lease_id))
    finally:
        link.close()
    return len(leases)


def _acknowledge(lease_id: str, session: Session) -> None:
    session.fetch(sql.ACKNOWLEDGE_LEASE, {"lease_id": lease_id})


def _numbers(spark: SparkSession, directory: str) -> list[int]:
    from pyspark.errors import AnalysisException
    from pyspark.sql.functions import input_file_name

    try:
        # By Spark, because a checkpoint may be in any file system that it knows.
        names = spark.read.text(directory).select(input_file_name()).distinct().collect()
    except AnalysisException:  # there is none yet
        return []
    last = (row[0].rpartition("/")[2] for row in names)
    return [int(name) for name in last if name.isdigit()]


def _leases(spark: SparkSession, path: str) -> set[str]:
    """Return the leases in an offset file: a version, metadata, then a line for each source."""
    found = set()
    for row in spark.read.text(path).collect():
        offset: Any = json.loads(row[0]) if row[0].startswith("{") else None
        if isinstance(offset, dict) and set(offset) == {"n", "lock"} and offset["lock"]:
            found.add(offset["lock"])
    return found
