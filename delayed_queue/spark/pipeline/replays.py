"""``replay``: archived, drained or snapshotted messages back into their queues."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_KEY_LENGTH
from delayed_queue.spark.database import check_database
from delayed_queue.spark.pipeline.cli import DONE, add_offering, given, instant
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.lake import KIND, read_lake
from delayed_queue.spark.pipeline.offers import (
    ROWS_PER_PARTITION,
    JobOptions,
    Offered,
    Spread,
    held,
    id_of,
    offer,
    ranked,
)
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Other tools write a column without any value as a column of numbers.
_TEXTS: Final = ("CAST(headers AS STRING) AS headers", "CAST(`group` AS STRING) AS `group`")
_LETTERS: Final = (
    "pKind AS kind", "pKey AS key", "CAST(payload AS BINARY) AS payload",
    *_TEXTS,
    "timestamp_millis(CAST(diedAt AS BIGINT)) AS at",
    "concat_ws('\\n', reason, lastError, firstError) AS error",
)  # fmt: skip
_MESSAGES: Final = (
    KIND, "key", "CAST(payload AS BINARY) AS payload", *_TEXTS,
    "CAST(scheduled_at_initially AS TIMESTAMP) AS at", "CAST(NULL AS STRING) AS error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayOptions(JobOptions):
    """Options of ``replay``."""

    paths: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    keys: str = "keep"
    mode: str = "offer"
    spread: Spread | None = None


def run(spark: SparkSession, options: ReplayOptions, console: Console) -> Offered:
    """Offer the messages that pass the filters; of several with one key, the latest."""
    if not options.is_dry_run:
        check_database(spark)
    console.progress(f"reading {', '.join(options.paths)} …")
    source = read_lake(spark, *options.paths, recursiveFileLookup="false")
    files = source.inputFiles()
    job = options.job or _job(spark, options, files)
    with held(_chosen(_normal(source), options)) as (chosen, total):
        order = "at DESC, payload, headers, `group`, error"
        pieces = options.partitions or max(1, -(-total // ROWS_PER_PARTITION))
        latest = ranked(chosen, pieces, order).where("rank = 1").drop("rank")
        with held(_keyed(latest, options, job)) as (unique, count):
            console.progress(f"{total:,} messages were chosen, {total - count:,} of them repeated")
            found = Offered(job, total, duplicates=total - count, is_dry_run=options.is_dry_run)
            if options.is_dry_run:
                return found
            placed = _spread(unique, options.spread, count, job)
            return offer(placed, count, found, options.mode, console)


def _normal(source: DataFrame) -> DataFrame:
    """Return the files of archive, drain or snapshot in one form."""
    columns = set(source.columns)
    if {"pKind", "pKey", "payload", "diedAt"} <= columns:
        return source.selectExpr(*_LETTERS)
    if {"kind", "key", "payload", "scheduled_at_initially"} <= columns:
        return source.selectExpr(*_MESSAGES)
    raise InvalidConfiguration(
        "These files are neither an archive of dead letters, nor of drain or snapshot: they have "
        f"the columns {', '.join(sorted(columns))}."
    )


def _chosen(frame: DataFrame, options: ReplayOptions) -> DataFrame:
    from pyspark.sql.functions import col, lit

    wanted: Column = lit(True)
    if options.kinds:
        wanted &= col("kind").isin(*options.kinds)
    if options.since is not None:
        wanted &= col("at") >= lit(options.since)
    if options.until is not None:
        wanted &= col("at") < lit(options.until)
    if options.error is not None:
        wanted &= col("error").contains(options.error)
    return frame.where(wanted)


def _keyed(frame: DataFrame, options: ReplayOptions, job: str) -> DataFrame:
    """Return the rows under their keys, or under new ones that no earlier replay has used."""
    from pyspark.sql.functions import col, concat, length, lit

    if options.keys == "keep":
        return frame
    # All of an id that was given: others may begin like it.
    suffix = f"~{job if options.job is not None else job[:12]}"
    found = frame.withColumn("key", concat(col("key"), lit(suffix)))
    too_long = found.where(length("key") > MAX_KEY_LENGTH).count()
    if too_long:
        raise InvalidConfiguration(
            f"{too_long:,} keys would have more than {MAX_KEY_LENGTH} characters with the suffix "
            f"{suffix!r}: pass a shorter --id, or keep the keys."
        )
    return found


def _spread(frame: DataFrame, spread: Spread | None, total: int, job: str) -> DataFrame:
    """Give each its time by the hash of its key: evenly, and the same when it is repeated."""
    after = "CAST(NULL AS BIGINT)"
    if spread is not None:
        span = max(int(spread.step(total) * total), 1)
        after = f"{spread.start_of(job)}L + pmod(xxhash64(kind, key), {span}L)"
    at = f"timestamp_millis({after}) AS schedule_at"
    return frame.selectExpr("kind", "key", "payload", "headers", "group", at)


def _job(spark: SparkSession, options: ReplayOptions, files: list[str]) -> str:
    asked = {**asdict(options), "paths": None, "spread": None, "is_dry_run": None}
    del asked["partitions"]
    stamps = [(name.rpartition("/")[2], size) for name, size, _ in files_on(spark).stamps(files)]
    return id_of(sorted(stamps), asked)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="of archive, drain or snapshot")
    add("--kind", action="append", default=[], metavar="KIND", help="as name|codec; repeat")
    add(
        "--since",
        type=instant,
        metavar="AT",
        help="died, or was scheduled, then or later",
    )
    add("--until", type=instant, metavar="AT", help="before then")
    add("--error", metavar="TEXT", help="whose reason or errors contain this")
    add("--keys", choices=["keep", "suffix"], default="keep", help="suffix: as new messages")
    add_offering(parser, "replay", dry_run="count, offer nothing")


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    asked = given(
        ReplayOptions, options, paths=tuple(options.paths), kinds=tuple(options.kind),
        spread=Spread.of(options.start, options.over, options.rate),
    )  # fmt: skip
    with session(settings, console, "replay", is_verbose=options.verbose) as spark:
        found = run(spark, asked, console)
    console.answer(asdict(found), found.lines())
    return DONE
