"""``replay``: archived, drained or snapshotted messages back into their queues."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_KEY_LENGTH, Counts
from delayed_queue.spark.database import check_database
from delayed_queue.spark.pipeline.cli import (
    DONE,
    add_file_format,
    add_offering,
    instant,
)
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.console import count as add_up
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.lake import KIND, PARQUET, read_lake
from delayed_queue.spark.pipeline.offers import (
    JobOptions,
    Offer,
    Spread,
    delivered,
    from_its_beginning,
    held,
    id_of,
    offer,
    offered_of,
    pieces_of_rows,
    ranked,
    telling,
)
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Other tools write a column without any value as one of numbers.
_TEXTS: Final = ("CAST(headers AS STRING) AS headers", "CAST(`group` AS STRING) AS grouped")
_LETTERS: Final = (
    "pKind AS kind", "pKey AS key", "CAST(payload AS BINARY) AS payload",
    *_TEXTS,
    "timestamp_millis(CAST(diedAt AS BIGINT)) AS at",
    "concat_ws('\\n', reason, lastError, firstError) AS error",
)  # fmt: skip
_MESSAGES: Final = (
    KIND, "key", *_TEXTS,
    "CAST(scheduled_at_initially AS TIMESTAMP) AS at", "CAST(NULL AS STRING) AS error",
)  # fmt: skip
_AS_IT_IS: Final = "CAST(payload AS BINARY) AS payload"
_PAYLOADS: Final[Mapping[str, str]] = {
    # What is no text Spark writes there in base 64.
    "json": "IF(substring_index(kind, '|', -1) IN ('json', 'text'), CAST(payload AS BINARY), "
    "unbase64(payload)) AS payload",
    # There is no other way to say that a text is empty.
    "csv": "CAST(coalesce(payload, '') AS BINARY) AS payload",
}


@dataclass(frozen=True, slots=True)
class ReplayOptions(JobOptions):
    """What ``replay`` was asked for."""

    paths: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    suffix: bool = False
    mode: str = "offer"
    spread: Spread | None = None
    form: str = PARQUET


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the archived messages that the filters chose."""

    job: str
    chosen: int
    counts: Counts
    duplicates: int = 0
    was_done: bool = False
    is_dry_run: bool = False

    def report(self) -> dict[str, Any]:
        return {
            "job": self.job, "chosen": self.chosen, "duplicates": self.duplicates,
            "was_done": self.was_done, "is_dry_run": self.is_dry_run, **asdict(self.counts),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Return the answer in words."""
        rows: list[tuple[str, int]] = [("chosen", self.chosen), ("duplicates", self.duplicates)]
        if not self.is_dry_run:
            rows += list(asdict(self.counts).items())
        found = aligned(rows)
        if self.was_done:
            found.append("An earlier replay had offered all of it; these are its counts.")
        return [*found, f"replay id: {self.job}"]


def run(spark: SparkSession, options: ReplayOptions, console: Console) -> Replayed:
    """Offer what the filters choose; of several with one key, the latest."""
    if not options.is_dry_run:
        check_database(spark)
    console.progress(f"reading {', '.join(options.paths)} …")
    source = read_lake(spark, *options.paths, form=options.form, recursiveFileLookup="false")
    files = source.inputFiles()
    job = options.job or _job(spark, options, files)
    with held(_chosen(_normal(source, options.form), options)) as (chosen, total):
        order = "at DESC, payload, headers, grouped, error"
        pieces = options.partitions or pieces_of_rows(total)
        latest = ranked(chosen, pieces, order).where("rank = 1").drop("rank")
        with held(_keyed(latest, options, job)) as (unique, count):
            console.progress(f"{total:,} messages were chosen, {total - count:,} of them repeated")
            found = Replayed(job, total, Counts(), total - count, is_dry_run=options.is_dry_run)
            return found if options.is_dry_run else _offered(unique, options, found, console)


def _offered(
    unique: DataFrame, options: ReplayOptions, found: Replayed, console: Console
) -> Replayed:
    count = found.chosen - found.duplicates
    spread = options.spread and from_its_beginning(options.spread, found.job)
    rows = _spread(unique, spread, count)
    how = Offer(found.job, options.mode)
    with telling(console, lambda: offered_of(found.job, count)):
        offered = delivered(count, lambda: offer(rows, how), "replay")
    add_up("replay", "", asdict(offered.counts))
    return replace(found, counts=offered.counts, was_done=offered.was_done)


def _normal(source: DataFrame, form: str) -> DataFrame:
    """Return one form of what archive, drain and snapshot write."""
    columns = set(source.columns)
    if {"pKind", "pKey", "payload", "diedAt"} <= columns:
        return source.selectExpr(*_LETTERS)
    if {"kind", "key", "payload", "scheduled_at_initially"} <= columns:
        return source.selectExpr(*_MESSAGES, _PAYLOADS.get(form, _AS_IT_IS))
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

    if not options.suffix:
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


def _spread(frame: DataFrame, spread: Spread | None, total: int) -> DataFrame:
    """Give each its time by the hash of its key: evenly, and the same when it is repeated."""
    after = "CAST(NULL AS BIGINT)"
    if spread is not None:
        span = max(int(spread.step(total) * total), 1)
        after = f"pmod(xxhash64(kind, key), {span}L)"
        after = f"{spread.start_ms or 0}L + {after}"
    times = (f"{after} AS schedule_ms", "CAST(NULL AS BIGINT) AS delay_ms")
    return frame.selectExpr("kind", "key", "payload", "headers", "grouped", *times)


def _job(spark: SparkSession, options: ReplayOptions, files: list[str]) -> str:
    asked = {**asdict(options), "paths": None, "spread": None, "is_dry_run": None}
    # How it is done, not what.
    del asked["partitions"], asked["form"]
    if not files:
        raise InvalidConfiguration(
            f"Spark does not list the files of {options.form!r}, and a replay is identified by "
            "them: pass an --id."
        )
    stamps = [(name.rpartition("/")[2], size) for name, size, _ in files_on(spark).stamps(files)]
    return id_of(sorted(stamps), asked)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="of archive, drain or snapshot")
    add_file_format(parser)
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
    asked = ReplayOptions(
        paths=tuple(options.paths),
        kinds=tuple(options.kind),
        since=options.since,
        until=options.until,
        error=options.error,
        suffix=options.keys == "suffix",
        mode=options.mode,
        spread=Spread.of(options.start, options.over, options.rate),
        job=options.id,
        is_dry_run=options.dry_run,
        partitions=options.partitions,
        form=options.file_format,
    )
    with session(settings, console, "replay", is_verbose=options.verbose) as spark:
        found = run(spark, asked, console)
    console.answer(found.report(), found.lines())
    return DONE
