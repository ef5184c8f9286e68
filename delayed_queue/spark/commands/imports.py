"""``import``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from delayed_queue.spark.commands import arguments
from delayed_queue.spark.commands.arguments import (
    CODECS,
    DONE,
    FAILED,
    MODES,
    QUARANTINED,
    Command,
    asked_name,
)
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", help="files, directories or globs")
    add("--queue", metavar="NAME", help="for records that name none; or a kind, as name|codec")
    add("--codec", choices=CODECS, default="json")
    add("--input-format", choices=["parquet", "csv", "jsonl"], help="default: what names end in")
    add("--delimiter", type=arguments.delimiter, default=",", help="of CSV; \\t is a tab")
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields: key, payload, schedule_at, delay, headers, queue")  # fmt: skip
    add("--time-unit", choices=["s", "ms"], help="of schedule_at as a number; default: ms")
    add("--mode", choices=MODES, default="offer", help="what happens to keys that exist")
    add("--target", metavar="PKG:FUNC", help="give the rows to this function, not to the queue")
    add(
        "--start",
        type=arguments.instant,
        metavar="AT",
        help="when the first falls due, in UTC without an offset; default: now",
    )
    add("--over", type=arguments.duration, metavar="TIME", help="spread over so long, as in 2h")
    add("--rate", type=arguments.number, metavar="N", help="spread to so many a second")
    add("--max-bytes", type=arguments.whole, default=256 * 1024, metavar="N", help="of a payload")
    add("--max-depth", type=arguments.whole, default=32, metavar="N", help="of a JSON payload")
    add("--max-bad-ratio", type=arguments.ratio, default=1.0, metavar="R",
        help="offer nothing when more records are bad: 0.01 is one in a hundred")  # fmt: skip
    add("--quarantine", default="quarantine", metavar="DIR", help="where bad records are put")
    add("--quarantine-format", choices=["parquet", "jsonl"], default="parquet")
    add("--id", metavar="ID", help="of this import; default: from files and options")
    add("--dry-run", action="store_true", help="check everything, write nothing")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
    from delayed_queue.spark.jobs import imports
    from delayed_queue.spark.jobs.inputs import Input, format_of
    from delayed_queue.spark.jobs.offers import Spread
    from delayed_queue.spark.jobs.records import Rules, parse_mapping

    kind_of_files = format_of(options.paths, options.input_format)
    rules = Rules(
        asked_name(options), options.codec, parse_mapping(options.map), options.max_bytes,
        options.max_depth, are_texts_json=kind_of_files != "jsonl",
        time_unit=options.time_unit,
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
        return FAILED
    return QUARANTINED if report.quarantined else DONE


COMMAND: Final = Command("import", "Offer the records of files.", _add_arguments, _run)
