"""The commands: their arguments, and the call each of them is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MILLISECOND, to_milliseconds
from delayed_queue.payloads import check_kind, codec_named, kind_of
from delayed_queue.retries import RetryPolicy, parse_duration
from delayed_queue.spark import cli
from delayed_queue.spark.bundle import bundle
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import session

CODECS: Final = ("json", "text", "bytes")
MODES: Final = ("offer", "upsert")


@dataclass(frozen=True, slots=True)
class Command:
    """A word of the command line."""

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace, SparkSettings, Console, cli.Stopping], int]


def _kind(options: Namespace) -> str:
    """Return the kind of --queue: a name and the codec's, or a kind as it is written."""
    name = str(options.queue)
    if "|" in name:
        return check_kind(name)
    return check_kind(kind_of(check_kind(name), codec_named(options.codec)))


def _name(options: Namespace) -> str | None:
    """Return the name of --queue, also of one that is written as a kind."""
    name, bar, codec = (options.queue or "").rpartition("|")
    if not bar:
        return options.queue  # type: ignore[no-any-return]
    if codec != options.codec:
        raise InvalidConfiguration(
            f"--queue {options.queue!r} is a kind of the codec {codec!r}, and --codec is "
            f"{options.codec!r}."
        )
    return name


# import


def _import_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="files, directories or globs")
    add("--queue", metavar="NAME", help="for records that name none; or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--input-format", choices=["parquet", "csv", "jsonl"], help="default: what names end in")
    add("--delimiter", type=cli.delimiter, default=",", help="of CSV; \\t is a tab")
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields: key, payload, schedule_at, delay, headers, queue")  # fmt: skip
    add("--mode", choices=MODES, default="offer", help="what happens to keys that exist")
    add("--target", metavar="PKG:FUNC", help="give the rows to this function, not to the queue")
    add(
        "--start",
        type=cli.instant,
        metavar="AT",
        help="when the first falls due, in UTC without an offset; default: now",
    )
    add("--over", type=cli.duration, metavar="TIME", help="spread over so long, as in 2h")
    add("--rate", type=cli.number, metavar="N", help="spread to so many a second")
    add("--max-bytes", type=cli.whole, default=256 * 1024, metavar="N", help="of a payload")
    add("--max-depth", type=cli.whole, default=32, metavar="N", help="of a JSON payload")
    add("--max-bad-ratio", type=cli.ratio, default=1.0, metavar="R",
        help="offer nothing when more records are bad: 0.01 is one in a hundred")  # fmt: skip
    add("--quarantine", default="quarantine", metavar="DIR", help="where bad records are put")
    add("--quarantine-format", choices=["parquet", "jsonl"], default="parquet")
    add("--id", metavar="ID", help="of this import; default: from files and options")
    add("--dry-run", action="store_true", help="check everything, write nothing")


def _import(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import imports
    from delayed_queue.spark.jobs.inputs import Input, format_of
    from delayed_queue.spark.jobs.records import Rules, parse_mapping
    from delayed_queue.spark.jobs.spreading import Spread

    kind_of_files = format_of(options.paths, options.input_format)
    rules = Rules(
        _name(options), options.codec, parse_mapping(options.map), options.max_bytes,
        options.max_depth, are_texts_json=kind_of_files != "jsonl",
    )  # fmt: skip
    asked = imports.ImportOptions(
        source=Input(tuple(options.paths), kind_of_files, rules, delimiter=options.delimiter),
        mode=options.mode,
        target=options.target,
        spread=Spread.of(options.start, options.over, options.rate),
        max_bad_ratio=options.max_bad_ratio,
        quarantine=options.quarantine,
        quarantine_format=options.quarantine_format,
        job=options.id,
        is_dry_run=options.dry_run,
    )
    with session(settings, console, "import", is_verbose=options.verbose) as spark:
        report = imports.run(spark, asked, console)
    console.answer(report.report(), report.lines())
    if report.refused is not None:
        console.warn(report.refused)
        return cli.FAILED
    return cli.QUARANTINED if report.quarantined else cli.DONE


# drain


def _drain_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--queue", required=True, metavar="NAME", help="or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--to", metavar="PATH", help="where the sink writes")
    add("--sink", default="parquet", metavar="FORMAT", help="any of Spark's formats")
    add("--sink-option", type=cli.pair, action="append", default=[], metavar="NAME=VALUE")
    add("--handler", metavar="PKG:FUNC", help="call this for each message, in the executors")
    add("--retry", metavar="LADDER", help="waits after failures, as in '15s 3m 10m'")
    add("--checkpoint", metavar="PATH", help="default: beside --to")
    add("--continuous", action="store_true", help="until it is stopped, not until it is empty")
    add("--interval", type=cli.duration, metavar="TIME", help="of --continuous; default: 1s")
    add("--max-messages", type=cli.whole, default=100_000, metavar="N", help="of a batch")
    add("--lease", default="10m", metavar="TIME", help="how long a batch stays exclusive")


def _drain(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import drains
    from delayed_queue.spark.jobs.handling import Handling

    kind = _kind(options)
    handling = None
    if options.handler is not None:
        retry = None if options.retry is None else RetryPolicy.ladder(options.retry)
        lease_ms = parse_duration(options.lease) // MILLISECOND
        queue = kind.rpartition("|")[0]
        handling = Handling(options.handler, queue, options.codec, retry, lease_ms)
    interval = options.interval
    asked = drains.DrainOptions(
        kind=kind,
        checkpoint=_checkpoint(options),
        to=options.to,
        sink=options.sink,
        sink_options=dict(options.sink_option),
        handling=handling,
        is_continuous=options.continuous,
        interval=f"{int(interval.total_seconds() * 1000)} milliseconds" if interval else "1 second",
        max_messages=options.max_messages,
        lease=options.lease,
    )
    with (
        session(settings, console, "drain", is_verbose=options.verbose) as spark,
        stopping.gently() as event,
    ):
        found = drains.run(spark, asked, console, event)
    console.answer(found.report(), found.lines())
    return cli.DONE


def _checkpoint(options: Namespace) -> str:
    if options.checkpoint is not None:
        return str(options.checkpoint)
    if options.to is None:
        raise InvalidConfiguration("--handler needs --checkpoint: where Spark notes its progress.")
    return f"{options.to.rstrip('/')}/_checkpoint"


# archive


def _archive_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("tables", nargs="*", default=["dead-letters"], metavar="TABLE",
        help="dead-letters, callback-attempts, or a table of yours")  # fmt: skip
    add("--older-than", type=cli.duration, required=True, metavar="TIME", help="as in 30d")
    add("--to", required=True, metavar="PATH", help="where the archives are kept")
    add("--key", metavar="COLUMN", help="the primary key; default: id")
    add("--age", metavar="COLUMN", help="by which rows age; NULL never does")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add("--rows", type=cli.whole, default=1_000_000, metavar="N", help="of one archive, at most")
    add("--rows-per-file", type=cli.whole, default=100_000, metavar="N")
    add("--bite", type=cli.whole, default=5_000, metavar="N", help="rows deleted at a time")
    add("--dry-run", action="store_true", help="count what would be archived")


def _archive(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import archives
    from delayed_queue.spark.jobs.tables import named, parse_only

    only = parse_only(options.only)
    tables = tuple(named(each, options.key, options.age, only) for each in options.tables)
    asked = archives.ArchiveOptions(
        tables=tables,
        cutoff=to_milliseconds(datetime.now(UTC) - options.older_than),
        destination=options.to,
        rows_per_archive=options.rows,
        rows_per_file=options.rows_per_file,
        bite=options.bite,
        is_dry_run=options.dry_run,
    )
    with session(settings, console, "archive", is_verbose=options.verbose) as spark:
        found = archives.run(spark, asked, console)
    console.answer({"tables": [asdict(each) for each in found]}, archives.lines_of(found))
    return cli.DONE


# replay


def _replay_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="of archive, drain or snapshot")
    add("--kind", action="append", default=[], metavar="KIND", help="as name|codec; repeat")
    add("--since", type=cli.instant, metavar="AT", help="died, or was scheduled, then or later")
    add("--until", type=cli.instant, metavar="AT", help="before then")
    add("--error", metavar="TEXT", help="whose reason or errors contain this")
    add("--keys", choices=["keep", "suffix"], default="keep", help="suffix: as new messages")
    add("--mode", choices=MODES, default="offer", help="what happens to keys that exist")
    add(
        "--start",
        type=cli.instant,
        metavar="AT",
        help="when the first falls due, in UTC without an offset; default: now",
    )
    add("--over", type=cli.duration, metavar="TIME", help="spread over so long, as in 2h")
    add("--rate", type=cli.number, metavar="N", help="spread to so many a second, on average")
    add("--id", metavar="ID", help="of this replay; default: from files and options")
    add("--dry-run", action="store_true", help="count, offer nothing")


def _replay(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import replays
    from delayed_queue.spark.jobs.spreading import Spread

    asked = replays.ReplayOptions(
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
    )
    with session(settings, console, "replay", is_verbose=options.verbose) as spark:
        found = replays.run(spark, asked, console)
    console.answer(found.report(), found.lines())
    return cli.DONE


# snapshot


def _snapshot_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", metavar="NAME", help="or a kind, as name|codec; default: all")
    parser.add_argument("--codec", choices=CODECS, default="json")
    parser.add_argument("--to", required=True, metavar="PATH", help="where snapshots are kept")


def _snapshot(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import snapshots

    kind = None if options.queue is None else _kind(options)
    with session(settings, console, "snapshot", is_verbose=options.verbose) as spark:
        found = snapshots.run(spark, kind, options.to, console)
    console.answer(asdict(found), found.lines())
    return cli.DONE


# report


def _report_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--drained", action="append", default=[], metavar="PATH", help="files of drain")
    add("--archive", action="append", default=[], metavar="PATH", help="archived dead letters")
    add("--snapshot", metavar="PATH", help="the backlog of this snapshot, not of the database")
    add("--events", action="append", default=[], metavar="PATH",
        help="Parquet of yours, with the columns of --map")  # fmt: skip
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields of events: kind, created_at, scheduled_at, finished_at, attempts, outcome, "
        "reason")  # fmt: skip
    add("--since", type=cli.instant, metavar="AT", help="what ended then or later")
    add("--until", type=cli.instant, metavar="AT", help="before then")
    add("--no-database", action="store_true", help="from files alone; nothing is saved")
    add("--out", metavar="DIR", help="for report.json and the plots, on this machine")


def _report(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark.jobs import reports

    asked = reports.ReportOptions(
        drained=tuple(options.drained),
        archives=tuple(options.archive),
        snapshot=options.snapshot,
        events=tuple(options.events),
        mapping=reports.parse_mapping(options.map),
        since=options.since,
        until=options.until,
        uses_database=not options.no_database,
        out=None if options.out is None else Path(options.out),
    )
    with session(settings, console, "report", is_verbose=options.verbose) as spark:
        report = reports.run(spark, asked, console)
    console.answer(report.figures, report.lines())
    return cli.DONE


# doctor, bundle, main


def _nothing(parser: ArgumentParser) -> None:
    pass


def _doctor(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    from delayed_queue.spark import doctor

    findings = doctor.examine(settings, console, is_verbose=options.verbose)
    console.answer({"findings": [asdict(each) for each in findings]}, doctor.lines_of(findings))
    return cli.FAILED if any(each.level == "fail" for each in findings) else cli.DONE


def _bundle(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    path = str(bundle())
    console.answer({"path": path}, [path])
    return cli.DONE


def _main(
    options: Namespace, settings: SparkSettings, console: Console, stopping: cli.Stopping
) -> int:
    path = str(Path(__file__).with_name("__main__.py"))
    console.answer({"path": path}, [path])
    return cli.DONE


COMMANDS: Final = (
    Command("import", "Offer the records of files.", _import_arguments, _import),
    Command("drain", "Take out what is due: into files, or to a handler.", _drain_arguments,
            _drain),
    Command("archive", "Move old rows to Parquet.", _archive_arguments, _archive),
    Command("replay", "Offer archived messages again.", _replay_arguments, _replay),
    Command("snapshot", "Write a queue as it stands to Parquet.", _snapshot_arguments, _snapshot),
    Command("report", "Measure latency, failures, throughput and backlog.", _report_arguments,
            _report),
    Command("doctor", "Say what is wrong with the environment.", _nothing, _doctor),
    Command("bundle", "Print the path of the package for --py-files.", _nothing, _bundle),
    Command("main", "Print the path of the program for spark-submit.", _nothing, _main),
)  # fmt: skip
