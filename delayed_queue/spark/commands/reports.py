"""``report``: its arguments, and the call it is a shell around."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from delayed_queue.spark.commands import arguments
from delayed_queue.spark.commands.arguments import DONE, Command
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.starting import Stopping, session


def _add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--drained", action="append", default=[], metavar="PATH", help="files of drain")
    add("--archive", action="append", default=[], metavar="PATH", help="archived dead letters")
    add("--snapshot", metavar="PATH", help="the backlog of this snapshot, not of the database")
    add("--events", action="append", default=[], metavar="PATH",
        help="Parquet of yours, with the columns of --map")  # fmt: skip
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields of events: kind, created_at, scheduled_at, finished_at, attempts, outcome, "
        "reason")  # fmt: skip
    add("--since", type=arguments.instant, metavar="AT", help="what ended then or later")
    add("--until", type=arguments.instant, metavar="AT", help="before then")
    add("--no-database", action="store_true", help="from files alone; nothing is saved")
    add("--out", metavar="DIR", help="for report.json and the plots, on this machine")


def _run(options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping) -> int:
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
    return DONE


COMMAND: Final = Command(
    "report", "Measure latency, failures, throughput and backlog.", _add_arguments, _run
)
