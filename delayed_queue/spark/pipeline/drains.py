"""``drain``: what is due leaves the queue, into files or through a handler, and is deleted."""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.durations import parse_duration
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MILLISECOND
from delayed_queue.retries import RetryPolicy
from delayed_queue.spark.database import connect, look_around
from delayed_queue.spark.pipeline.cli import (
    CODECS,
    DONE,
    FAILED,
    add_partitions,
    asked_kind,
    format_name,
    given,
    pair,
    whole,
)
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.handling import OUTCOMES, HandledPartition, Handling, ended_of
from delayed_queue.spark.pipeline.lake import (
    FILES,
    WRITTEN_AS,
    check_root,
    claim_lake,
    directory_of,
)
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings, partitions_on, tasks_of
from delayed_queue.spark.source.leases import acknowledge_checkpoint, is_started, owner_of
from delayed_queue.spark.source.ledger import JobKey
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.queues import check_known, left_behind, rules_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

# A task that handles reads ids by one connection, and settles by another.
CONNECTIONS_OF_TASK: Final = 2


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """Options of ``drain``."""

    kind: str
    # None: a checkpoint in ``to``.
    checkpoint: str | None = None
    to: str | None = None
    sink: str = "parquet"
    sink_options: Mapping[str, str] = field(default_factory=dict)
    handling: Handling | None = None
    is_continuous: bool = False
    interval: str = "1 second"
    max_messages: int = 100_000
    lease: str = "10m"
    partitions: int | None = None

    def __post_init__(self) -> None:
        if (self.to is None) == (self.handling is None):
            raise InvalidConfiguration("Pass either --to or --handler.")
        if self.to is None and self.checkpoint is None:
            raise InvalidConfiguration("--handler needs --checkpoint, Spark's record of progress.")
        if self.handling is None and not self.writes_files and self.checkpoint is None:
            raise InvalidConfiguration(
                f"--sink {self.sink} needs --checkpoint: --to may be a table, not a directory."
            )

    @property
    def writes_files(self) -> bool:
        """True for a sink of Spark that writes files."""
        return self.handling is None and self.sink in FILES


@dataclass(slots=True)
class Drained:
    """The result of a drain."""

    kind: str
    messages: int = 0
    batches: int = 0
    ended: Counter[str] | None = None
    # The last batch of the stream that is counted.
    last: int = -1
    # Why due messages were left although the drain could have taken them.
    refused: str | None = None

    def report(self) -> dict[str, Any]:
        found = {"kind": self.kind, "messages": self.messages, "batches": self.batches}
        return found | ({} if self.ended is None else {each: self.ended[each] for each in OUTCOMES})

    def lines(self) -> list[str]:
        """Return the answer in words."""
        return aligned(list(self.report().items()))


def run(
    spark: SparkSession, options: DrainOptions, console: Console, stopping: threading.Event
) -> Drained:
    """Drain until nothing due is left, or continuously until the event is set.

    Raises InvalidConfiguration for a queue that neither the database nor the checkpoint knows.
    """
    if options.handling is not None:
        # Before anything is leased: a path that names nothing is no reason to try again.
        options.handling.registered()
    options = _placed(options)
    began = _claim(spark, options)
    found = Drained(options.kind, ended=None if options.handling is None else Counter())
    query = _started(spark, options)
    try:
        _waited(query, found, console, stopping)
    finally:
        if query.isActive:
            query.stop()
    # Spark reports a batch after its commit: the last one while the query stops.
    _count_committed(query, found, console)
    if stopping.is_set():
        # Otherwise Spark planned one more batch, which acknowledged the last one.
        acknowledge_checkpoint(spark, str(options.checkpoint))
    with closing(connect()) as connection:
        if not found.messages or rules_of(connection, options.kind).has_rules:
            found.refused = left_behind(connection, options.kind, began)
    return found


def _placed(options: DrainOptions) -> DrainOptions:
    """Return the options with a place of the queue's own for what is written, and its progress.

    Spark's file sinks number what they write by their directory, which so is for one stream. Other
    sinks have a table, which several can share.
    """
    if options.to is None:
        return options
    name = directory_of(options.kind)
    root = options.to.rstrip("/")
    checkpoint = options.checkpoint or f"{root}/_checkpoint/{name.partition('=')[2]}"
    to = f"{root}/{name}" if options.writes_files else options.to
    return replace(options, to=to, checkpoint=checkpoint)


def _claim(spark: SparkSession, options: DrainOptions) -> int:
    """Claim the directory for the checkpoint; return the database's clock.

    Raises InvalidConfiguration if either belongs to another queue, or if the queue is unknown.
    """
    checkpoint = str(options.checkpoint)
    lake = options.to if options.writes_files else None
    if lake is not None:
        check_root(spark, lake.rpartition("/")[0])
    with closing(connect()) as connection:
        is_known = is_started(spark, checkpoint, owner_of(options.kind, connection))
        began = look_around(connection, Options())
        if not is_known:
            check_known(connection, options.kind)
    if lake is not None:
        claim_lake(spark, lake, checkpoint)
    return began


def _started(spark: SparkSession, options: DrainOptions) -> StreamingQuery:
    from delayed_queue.spark.source.schema import read_schema

    reader = (
        spark.readStream.format("delayed_queue")
        .option("kind", options.kind)
        .option("maxMessagesPerTrigger", str(options.max_messages))
        .option("lease", options.lease)
        .options(**partitions_on(spark, options.partitions))
    )
    if options.handling is not None:
        # Tasks read the rest just before they handle it. Handlers are slow, so no batch is leased
        # ahead: other consumers can take its messages.
        reader = reader.schema("id bigint, lock_uuid string").option("prefetch", "false")
        reader = reader.option("connections", str(CONNECTIONS_OF_TASK * tasks_of(spark)))
        # Calls are slow, so a task may have as few messages as it makes concurrent calls.
        reader = reader.option("rowsPerTask", str(options.handling.concurrency))
    else:
        # As bytes: one payload that is no text must not stop all that come after it.
        reader = reader.schema(read_schema(None))
    writer: Any = _sink(reader.load(), options)
    writer = writer.option("checkpointLocation", options.checkpoint)
    if options.is_continuous:
        return writer.trigger(processingTime=options.interval).start()  # type: ignore[no-any-return]
    return writer.trigger(availableNow=True).start()  # type: ignore[no-any-return]


def _sink(frame: DataFrame, options: DrainOptions) -> Any:
    from delayed_queue.spark.source.schema import TEXT_CODECS

    if options.handling is not None:
        handling = HandledPartition(options.handling, options.kind)
        return frame.mapInArrow(handling, "id bigint").writeStream.format("noop")
    # Files have the kind in the name of their directory.
    left_out = {"lock_uuid", "state", "id", "expires_at"}
    left_out |= {"kind"} if options.writes_files else set()
    columns = [f"`{each}`" for each in frame.columns if each not in left_out]
    if options.kind.endswith(TEXT_CODECS):
        columns[columns.index("`payload`")] = "CAST(payload AS STRING) AS payload"
    drained = frame.selectExpr(
        *columns, "current_timestamp() AS drained_at", "CAST(current_date() AS STRING) AS date"
    )
    writer = drained.writeStream.format(options.sink).option("path", options.to or "")
    for name, value in {**WRITTEN_AS.get(options.sink, {}), **options.sink_options}.items():
        writer = writer.option(name, value)
    return writer.partitionBy("date") if options.sink in {"parquet", "orc"} else writer


def _waited(
    query: StreamingQuery, found: Drained, console: Console, stopping: threading.Event
) -> None:
    """Wait for the end; count the batches that Spark has committed."""
    ended = False
    while not ended and not stopping.is_set():
        ended = bool(query.awaitTermination(1))  # raises what ended the query
        _count_committed(query, found, console)
    if stopping.is_set():
        console.progress("stopping …")


def _count_committed(query: StreamingQuery, found: Drained, console: Console) -> None:
    for each in query.recentProgress:
        # A repeated batch has no rows if a dead driver's tasks have handled all of them.
        if each.batchId > found.last and "addBatch" in each.durationMs:
            found.last = each.batchId
            _counted(each, found, console)


def _counted(progress: StreamingQueryProgress, found: Drained, console: Console) -> None:
    rows = progress.numInputRows
    found.batches += 1
    if found.ended is not None:
        ended = ended_of(JobKey(str(progress.id), progress.batchId))
        found.ended.update(ended)
        # A repeated task does not read what the dead one had settled.
        rows = max(rows, ended.total() - ended["lost"])
    found.messages += rows
    console.progress(f"batch {progress.batchId}: {rows:,} messages")


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--queue", required=True, metavar="NAME", help="or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--to", metavar="PATH", help="where the sink writes")
    add("--sink", type=format_name, default="parquet", metavar="FORMAT",
        help="parquet, json, csv, or another of Spark's")  # fmt: skip
    add("--sink-option", type=pair, action="append", default=[], metavar="NAME=VALUE")
    add("--handler", metavar="PKG:FUNC", help="call this for each message, in the executors")
    add("--concurrency", type=whole, metavar="N", help="calls at once in a task")
    add("--retry", metavar="LADDER", help="waits after failures, as in '15s 3m 10m'")
    add("--checkpoint", metavar="PATH", help="default: the queue's own, in --to")
    add("--continuous", dest="is_continuous", action="store_true",
        help="until it is stopped, not until it is empty")  # fmt: skip
    add("--max-messages", type=whole, default=100_000, metavar="N", help="of a batch")
    add("--lease", default="10m", metavar="TIME", help="how long a batch stays exclusive")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    kind = asked_kind(options)
    handling = _handling(options, kind)
    sink_options = dict(options.sink_option)
    asked = given(DrainOptions, options, kind=kind, handling=handling, sink_options=sink_options)
    with (
        session(settings, console, "drain", is_verbose=options.verbose) as spark,
        stopping.gently() as event,
    ):
        found = run(spark, asked, console, event)
    console.answer(found.report(), found.lines())
    if found.refused is not None:
        console.warn(found.refused)
        return FAILED
    return DONE


def _handling(options: Namespace, kind: str) -> Handling | None:
    if options.handler is not None:
        retry = None if options.retry is None else RetryPolicy.ladder(options.retry)
        lease_ms = parse_duration(options.lease) // MILLISECOND
        queue = kind.rpartition("|")[0]
        return Handling(
            options.handler, queue, options.codec, retry, lease_ms, options.concurrency or 1
        )  # fmt: skip
    if options.concurrency is not None:
        raise InvalidConfiguration("--concurrency is of --handler.")
    return None
