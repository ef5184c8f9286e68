"""``import``: records of files become messages, and what cannot is put aside with its reasons."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import check_database
from delayed_queue.spark.pipeline.blocks import Unpacking, blocks_of, is_cut, with_places
from delayed_queue.spark.pipeline.cli import (
    CODECS,
    DONE,
    FAILED,
    QUARANTINED,
    add_offering,
    asked_name,
    delimiter,
    given,
    ratio,
    whole,
    zone,
)
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.inputs import Input, checked, files_of
from delayed_queue.spark.pipeline.offers import (
    BYTES_PER_PARTITION,
    ROWS_PER_PARTITION,
    JobOptions,
    Offered,
    Spread,
    id_of,
    offer,
    telling,
)
from delayed_queue.spark.pipeline.records import Rules, parse_mapping
from delayed_queue.spark.pipeline.repeats import without_repeated
from delayed_queue.spark.pipeline.session import Stopping, cut_alike, session, uncut
from delayed_queue.spark.settings import SparkSettings, is_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES: Final = 5
# A larger share of bad records indicates a wrong mapping.
MAX_BAD_RATIO: Final = 0.05
# A partition with more rows is cut again.
MOST_OF_PARTITION: Final = 4 * ROWS_PER_PARTITION


@dataclass(frozen=True, slots=True)
class ImportOptions(JobOptions):
    """Options of ``import``."""

    source: Input
    mode: str = "offer"
    spread: Spread | None = None
    max_bad_ratio: float = MAX_BAD_RATIO
    quarantine: str = "quarantine"
    # The number of pieces by keys, and the name of the job: of its id, files and options.
    pieces: int = 1
    name: str = ""


def run(spark: SparkSession, options: ImportOptions, console: Console) -> Offered:
    """Import the files; nothing is offered before every record was checked."""
    if not options.is_dry_run:
        check_database(spark)
    files = files_of(spark, options.source.paths)
    stamps = files_on(spark).stamps(files)
    size = sum(each for _, each, _ in stamps)
    pieces = options.partitions or max(1, -(-size // BYTES_PER_PARTITION))
    options = replace(options, source=options.source.known(files), pieces=pieces)
    name = id_of(stamps, {**asdict(options.source), "mode": options.mode})
    # The same id with other files or options is another job.
    options = replace(options, name=name if options.job is None else f"{options.job}-{name}")
    console.progress(f"checking the records of {', '.join(options.source.paths)} …")
    try:
        return _run(spark, options, console, is_uncut=False)
    except _RecordWasCut:
        console.progress("a quoted cell goes on in another block; reading each file in one piece …")
        return _run(spark, options, console, is_uncut=True)


def parts_of(spark: SparkSession) -> str:
    """Return in words how much of what Spark is at has been read; Connect does not say it."""
    if is_elsewhere(spark):
        return "the records are being read"
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    done = sum(each.numCompletedTasks for each in stages if each is not None)
    total = sum(each.numTasks for each in stages if each is not None)
    return f"{done:,} of {total:,} parts are read"


def refusal_of(report: Offered, most: float) -> str | None:
    """Return why nothing is offered, if a larger share than ``most`` is bad."""
    # A quotient: 0.29 * 100 is less than 29.
    if report.quarantined / max(report.input, 1) <= most:
        return None
    return (
        f"{report.quarantined:,} of {report.input:,} records are bad, more than "
        f"--max-bad-ratio {most:g} allows; nothing was offered."
    )


class _RecordWasCut(Exception):
    """Spark has cut a file within a record."""


def _run(
    spark: SparkSession, options: ImportOptions, console: Console, *, is_uncut: bool
) -> Offered:
    alike = cut_alike(spark, BYTES_PER_PARTITION, options.pieces)
    with alike, uncut(spark, is_wanted=is_uncut):
        kept = checked(spark, options.source).persist()
        try:
            return _Import(spark, options, console, kept).report()
        finally:
            kept.unpersist()


class _Import:
    """One run over the checked rows."""

    def __init__(
        self, spark: SparkSession, options: ImportOptions, console: Console, frame: DataFrame
    ) -> None:
        self._spark = spark
        self._options = options
        self._console = console
        self._frame = frame
        with telling(console, lambda: parts_of(spark)):
            self._blocks, self._most = blocks_of(frame)
        if is_cut(self._blocks):
            raise _RecordWasCut

    def report(self) -> Offered:
        """Quarantine the bad records, and offer the others, one message for each key."""
        good, bad = (sum(getattr(each, of) for each in self._blocks) for of in ("good", "bad"))
        packs, repeated = without_repeated(
            self._frame.where("digests IS NOT NULL"), self._options.pieces, self._options.mode
        )
        self._console.progress(f"{good:,} records are good, {bad:,} are bad")
        report = Offered(self._options.name, good + bad, duplicates=repeated, quarantined=bad)
        refused = refusal_of(report, self._options.max_bad_ratio)
        if bad:
            report = self._with_reasons(report)
        if self._options.is_dry_run:
            return replace(report, is_dry_run=True, refused=refused)
        if bad:
            report = self._quarantine(report)
        if refused:
            raise InvalidConfiguration(f"{refused} They are in {report.quarantine}.")
        return self._offer(report, packs)

    # Bad records

    def _bad(self) -> DataFrame:
        rows = with_places(self._spark, self._frame.where("reasons IS NOT NULL"), self._blocks)
        line = "first_line + place + 1 AS line"
        return rows.selectExpr("file", line, "key", "reasons", "record")

    def _with_reasons(self, report: Offered) -> Offered:
        counted = (
            self._frame.selectExpr("explode(reasons) AS reason")
            .groupBy("reason")
            .count()
            .orderBy("count", "reason", ascending=[False, True])
            .limit(10)
            .collect()
        )
        samples = self._bad().orderBy("file", "line").limit(SAMPLES)
        return replace(
            report,
            reasons=tuple((row["reason"], row["count"]) for row in counted),
            # Where and why, not what: records are data.
            samples=tuple(row.asDict() for row in samples.drop("record").collect()),
        )

    def _quarantine(self, report: Offered) -> Offered:
        path = f"{self._options.quarantine.rstrip('/')}/{report.job}"
        self._bad().write.mode("overwrite").parquet(path)
        self._console.progress(f"{report.quarantined:,} bad records are in {path}")
        return replace(report, quarantine=path)

    # Good ones

    def _offer(self, report: Offered, packs: DataFrame) -> Offered:
        lines = sum(each.lines for each in self._blocks)
        unpack = Unpacking({(each.file, each.block): each.first_ordinal for each in self._blocks})
        # A record with its own time keeps it.
        if (spread := self._options.spread) is not None:
            start_ms, step = spread.start_of(report.job), spread.step(lines)
            unpack = replace(unpack, start_ms=start_ms, step=step)
        total = report.input - report.quarantined - report.duplicates
        packs = self._evened(packs, lines).select("file", "block", "offers", "repeated")
        return offer(packs, total, report, self._options.mode, self._console, unpack)

    def _evened(self, packs: DataFrame, lines: int) -> DataFrame:
        """Return the packs in partitions that are not too large.

        The same input gives the same ones on any cluster, by which the ledger knows chunks that an
        earlier run has offered; in others they are offered again, which changes nothing.
        """
        # One row group of Parquet, or a packed file, is one partition however large it is.
        if self._options.partitions is None and self._most <= MOST_OF_PARTITION:
            return packs
        pieces = self._options.pieces
        piece = f"CAST((first_ordinal + place) * {pieces} DIV {max(lines, 1)} AS INT)"
        placed = with_places(self._spark, packs, self._blocks)
        numbered = placed.selectExpr("*", f"{piece} AS piece").repartitionById(pieces, "piece")
        return numbered.sortWithinPartitions("first_ordinal", "place")


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="files, directories or globs")
    add("--queue", metavar="NAME", help="for records that name none; or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--input-format", choices=["parquet", "csv", "jsonl"], help="default: what names end in")
    add("--delimiter", type=delimiter, default=",", help="of CSV; \\t is a tab")
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields: key, payload, schedule_at, delay, headers, group, queue")  # fmt: skip
    add("--time-zone", type=zone, metavar="NAME",
        help="of instants without an offset, as in Europe/Berlin")  # fmt: skip
    add("--max-bytes", type=whole, default=256 * 1024, metavar="N", help="of a payload")
    add("--max-depth", type=whole, default=32, metavar="N", help="of a JSON payload")
    add("--max-bad-ratio", type=ratio, default=MAX_BAD_RATIO, metavar="R",
        help="offer nothing when more records are bad; default: 0.05, one in twenty")  # fmt: skip
    add("--quarantine", default="quarantine", metavar="DIR", help="where bad records are put")
    add_offering(parser, "import", dry_run="check everything, write nothing")


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    rules = Rules(
        asked_name(options), options.codec, parse_mapping(options.map), options.max_bytes,
        options.max_depth, time_zone=options.time_zone,
    )  # fmt: skip
    source = Input(tuple(options.paths), options.input_format, rules, options.delimiter)
    spread = Spread.of(options.start, options.over, options.rate)
    asked = given(ImportOptions, options, source=source, spread=spread)
    with session(settings, console, "import", is_verbose=options.verbose) as spark:
        report = run(spark, asked, console)
    console.answer(asdict(report), report.lines())
    if report.refused is not None:
        console.warn(report.refused)
        return FAILED
    return QUARANTINED if report.quarantined else DONE
