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
    add_file_format,
    add_partitions,
    asked_kind,
)
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.files import Sums, files_on, sums
from delayed_queue.spark.pipeline.lake import FILES, PARQUET, READ_AS, TEXTS, WRITTEN_AS
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.source.queues import check_known
from delayed_queue.spark.source.schema import TEXT_CODECS
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
    form: str = PARQUET,
) -> Snapshot:
    """Write the messages, count them against the same moment of the database, then name them.

    Raises InvalidConfiguration for a queue that the database does not know.
    """
    check_form(form, kind)
    if kind is not None:
        with closing(connect()) as connection:
            check_known(connection, kind)
    name = f"snapshot={database_now():%Y%m%dT%H%M%S.%fZ}"
    staging, path = f"{to.rstrip('/')}/_staging-{name}", f"{to.rstrip('/')}/{name}"
    files = files_on(spark)
    try:
        partitions = partitions_on(spark, partitions)
        given = {} if partitions is None else {"numPartitions": str(partitions)}
        written = _write(spark, kind, staging, console, given, form)
        count = len(files.sizes(staging)) if written.rows else 0
        files.rename(staging, path)
    # Whatever ended it, a stop too: nothing half written stays.
    except BaseException:
        files.delete(staging)
        raise
    return Snapshot(path, written.rows, count, f"{written.checksum % 2**64:016x}")


def check_form(form: str, kind: str | None) -> None:
    """Raise InvalidConfiguration where the messages would not come back as they were."""
    if form not in {*FILES, "delta"}:
        raise InvalidConfiguration(
            f"A snapshot is a directory that is renamed when it is complete; a table of {form!r} "
            f"cannot be: use {', '.join(sorted(FILES))} or delta."
        )
    if form in TEXTS and not (kind or "").endswith(TEXT_CODECS):
        raise InvalidConfiguration(
            f"{form!r} holds only texts, and payloads may be bytes: pass a --queue of the codec "
            "json or text, or use parquet, orc or avro."
        )


def _write(
    spark: SparkSession,
    kind: str | None,
    staging: str,
    console: Console,
    given: Mapping[str, str],
    form: str,
) -> Sums:
    with moment() as (connection, snapshot):
        console.progress("reading the messages …")
        reader = spark.read.format("delayed_queue").option("snapshot", snapshot)
        which = {**given, **({"allQueues": "true"} if kind is None else {"kind": kind})}
        frame = reader.options(**which).load()
        writer = frame.write.format(form).options(**WRITTEN_AS.get(form, {}))
        writer.partitionBy("kind").save(staging)
        expected = int(fetch(connection, COUNT_MESSAGES.text, {"kind": kind})[0][0])
    if not expected:
        return Sums(0, 0)
    reader = spark.read.format(form).options(**READ_AS.get(form, {}))
    # A table knows its own; of texts they must be said.
    back = (reader.schema(frame.schema) if form in FILES else reader).load(staging)
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
    add_file_format(parser)
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    kind = None if options.queue is None else asked_kind(options)
    with session(settings, console, "snapshot", is_verbose=options.verbose) as spark:
        found = run(
            spark, kind, options.to, console,
            partitions=options.partitions, form=options.file_format,
        )  # fmt: skip
    console.answer(asdict(found), found.lines())
    return DONE
