"""``snapshot``: all messages of a queue, or of all queues, as they stand at one moment."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import Connection, connect, database_now, fetch, steady
from delayed_queue.spark.pipeline.cli import (
    CODECS,
    DONE,
    add_partitions,
    asked_kind,
)
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.files import Sums, files_on, sums
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.source.queues import check_known
from delayed_queue.spark.store.archiving import COUNT_MESSAGES, EXPORT_SNAPSHOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the files are, what is in them, and their checksum."""

    path: str
    messages: int
    files: int
    checksum: str

    def lines(self) -> list[str]:
        """Return the answer in words."""
        rows = [("messages", self.messages), ("files", self.files), ("checksum", self.checksum)]
        return [*aligned(rows), self.path]


def run(
    spark: SparkSession,
    kind: str | None,
    to: str,
    console: Console,
    *,
    partitions: int | None = None,
) -> Snapshot:
    """Write the messages, count them against the same moment of the database, then name them.

    Raises InvalidConfiguration for a queue that the database does not know.
    """
    if kind is not None:
        with closing(connect()) as connection:
            check_known(connection, kind)
    name = f"snapshot={database_now():%Y%m%dT%H%M%S.%fZ}"
    staging, path = f"{to.rstrip('/')}/_staging-{name}", f"{to.rstrip('/')}/{name}"
    files = files_on(spark)
    try:
        partitions = partitions_on(spark, partitions)
        given = {} if partitions is None else {"numPartitions": str(partitions)}
        written = _write(spark, kind, staging, console, given)
        count = len(files.sizes(staging)) if written.rows else 0
        files.rename(staging, path)
    # Whatever ended it, a stop too: nothing half written stays.
    except BaseException:
        files.delete(staging)
        raise
    return Snapshot(path, written.rows, count, f"{written.checksum % 2**64:016x}")


def _write(
    spark: SparkSession,
    kind: str | None,
    staging: str,
    console: Console,
    given: Mapping[str, str],
) -> Sums:
    with moment() as (connection, snapshot):
        console.progress("reading the messages …")
        reader = spark.read.format("delayed_queue").option("snapshot", snapshot)
        which = {**given, **({"allQueues": "true"} if kind is None else {"kind": kind})}
        frame = reader.options(**which).load()
        frame.write.partitionBy("kind").parquet(staging)
        expected = int(fetch(connection, COUNT_MESSAGES.text, {"kind": kind})[0][0])
    if not expected:
        return Sums(0, 0)
    back = spark.read.schema(frame.schema).parquet(staging)
    written = Sums.of(*back.agg(*sums(frame.columns)).collect()[0])
    if written.rows != expected:
        raise InvalidConfiguration(
            f"{written.rows:,} messages were written, and there were {expected:,}; try again."
        )
    return written


@contextmanager
def moment() -> Iterator[tuple[Connection, str]]:
    """Hold a moment of the database open, and give the name by which others see the same."""
    with steady() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield connection, fetch(connection, EXPORT_SNAPSHOT.text, {})[0][0]


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
    console.answer(asdict(found), found.lines())
    return DONE
