"""``archive``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from delayed_queue.messages import to_milliseconds
from delayed_queue.spark.commands import arguments
from delayed_queue.spark.commands.arguments import DONE, Command
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("tables", nargs="*", default=["dead-letters"], metavar="TABLE",
        help="dead-letters, callback-attempts, or a table of yours")  # fmt: skip
    add("--older-than", type=arguments.duration, required=True, metavar="TIME", help="as in 30d")
    add("--to", required=True, metavar="PATH", help="where the archives are kept")
    add("--key", metavar="COLUMN", help="the primary key; default: id")
    add("--age", metavar="COLUMN", help="by which rows age; NULL never does")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add(
        "--rows",
        type=arguments.whole,
        default=1_000_000,
        metavar="N",
        help="of one archive, at most",
    )
    add("--rows-per-file", type=arguments.whole, default=100_000, metavar="N")
    add(
        "--batch-size",
        type=arguments.whole,
        default=5_000,
        metavar="N",
        help="rows deleted at a time",
    )
    add("--dry-run", action="store_true", help="count what would be archived")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
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
        batch_size=options.batch_size,
        is_dry_run=options.dry_run,
    )
    with session(settings, console, "archive", is_verbose=options.verbose) as spark:
        found = archives.run(spark, asked, console)
    console.answer({"tables": [asdict(each) for each in found]}, archives.lines_of(found))
    return DONE


COMMAND: Final = Command("archive", "Move old rows to Parquet.", _add_arguments, _run)
