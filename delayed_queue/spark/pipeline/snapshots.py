"""``snapshot``: all messages of a queue, or of all queues, as they stand at one moment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from delayed_queue.spark.database import connect, database_now
from delayed_queue.spark.pipeline.cli import CODECS, DONE, add_partitions, asked_kind
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.source.queues import check_known
from delayed_queue.spark.source.reader import consistent_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The directory, and the number of messages in it."""

    path: str
    messages: int


def run(
    spark: SparkSession, kind: str | None, to: str, console: Console, *,
    partitions: int | None = None,
) -> Snapshot:  # fmt: skip
    """Write the messages as they stand at one moment, then give their directory its name.

    Raises InvalidConfiguration for a queue that the database does not know.
    """
    if kind is not None:
        with closing(connect()) as connection:
            check_known(connection, kind)
    name = f"snapshot={database_now():%Y%m%dT%H%M%S.%fZ}"
    staging, path = f"{to.rstrip('/')}/_staging-{name}", f"{to.rstrip('/')}/{name}"
    which = {"allQueues": "true"} if kind is None else {"kind": kind}
    files = files_on(spark)
    try:
        console.progress("reading the messages …")
        written = _write(spark, staging, {**which, **partitions_on(spark, partitions)})
        files.rename(staging, path)
    # Also after a stop by a signal no incomplete files stay.
    except BaseException:
        files.delete(staging)
        raise
    return Snapshot(path, written)


def _write(spark: SparkSession, staging: str, which: Mapping[str, str]) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    written = Observation()
    with consistent_snapshot() as name:
        frame = spark.read.format("delayed_queue").options(**which).option("snapshot", name).load()
        counted = frame.observe(written, expr("count(1)").alias("messages"))
        counted.write.partitionBy("kind").parquet(staging)
    return int(written.get["messages"])


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="or a kind, as name|codec; default: all")
    parser.add_argument("--codec", choices=CODECS, default="json")
    parser.add_argument("--to", required=True, metavar="PATH", help="where snapshots are kept")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    kind = None if options.queue is None else asked_kind(options)
    with session(settings, console, "snapshot", is_verbose=options.verbose) as spark:
        found = run(spark, kind, options.to, console, partitions=options.partitions)
    console.answer(asdict(found), [f"{found.messages:,} messages", found.path])
    return DONE
