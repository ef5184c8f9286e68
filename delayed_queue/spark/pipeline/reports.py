"""``report``: lateness, failures and throughput of messages that ended, and the backlog."""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delayed_queue.spark.database import database_now, fetch, steady
from delayed_queue.spark.pipeline import measures
from delayed_queue.spark.pipeline.cli import DONE, add_partitions, given, instant
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.lake import read_lake
from delayed_queue.spark.pipeline.plots import draw
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.pipeline.tables import KNOWN, read_rows
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.store.archiving import SAVE_REPORT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of ``report``."""

    drained: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    out: Path | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Figures as in the JSON, and plots as PNG by name."""

    figures: dict[str, Any]
    plots: dict[str, bytes]

    def markdown(self, *, has_plots: bool = False) -> str:
        """Return the tables, and links to the plots, as Markdown."""
        parts = [f"# Report of {self.figures['created_at']}"]
        if not self.figures["kinds"]:
            parts.append("Nothing has ended.")
        for each in measures.tables_of(self.figures):
            parts += [f"## {each.title}", _markdown_table(each), each.note]
        parts += [f"![{name}]({name}.png)" for name in self.plots if has_plots]
        return "\n\n".join(filter(None, parts))


def _markdown_table(table: measures.Table) -> str:
    """Return the table with aligned columns; figures are on the right."""
    rule = ["---"] * table.texts + ["--:"] * (len(table.head) - table.texts)
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, rule, *table.rows)]
    return "\n".join(f"| {row} |" for row in aligned(cells, names=table.texts, gap=" | "))


def run(spark: SparkSession, options: ReportOptions, console: Console) -> Report:
    """Measure and draw; write the files, and save the report in the database."""
    console.progress("measuring …")
    now = database_now()
    facts = _facts(spark, options).persist()
    try:
        figures: dict[str, Any] = {
            "created_at": now.isoformat(),
            "since": None if options.since is None else options.since.isoformat(),
            "until": None if options.until is None else options.until.isoformat(),
            "kinds": measures.measure_kinds(facts),
            "throughput": measures.measure_throughput(facts),
            "reasons": measures.measure_reasons(facts),
            "backlog": measures.measure_backlog(_waiting(spark, options.partitions), now),
        }
    finally:
        facts.unpersist()
    report = Report(figures, draw(figures))
    if options.out is not None:
        _write(report, options.out)
        console.progress(f"report and plots are in {options.out}")
    _save(report)
    console.progress("the admin shows the report")
    return report


def _facts(spark: SparkSession, options: ReportOptions) -> DataFrame:
    from pyspark.sql.functions import col, lit

    read = {path: read_lake(spark, path) for path in (*options.drained, *options.archives)}
    frames = [measures.drained_facts(read[path], path) for path in options.drained]
    frames += [measures.dead_facts(read[path], path) for path in options.archives]
    letters = KNOWN["dead-letters"]
    stored = read_rows(spark, letters, measures.DEAD_COLUMNS, options.partitions)
    frames.append(measures.dead_facts(stored))
    nothing = measures.drained_facts(spark.createDataFrame([], measures.DRAINED_SCHEMA), "")
    found = reduce(lambda left, right: left.unionByName(right), frames, nothing)
    if options.since is not None:
        found = found.where(col("finished_at") >= lit(options.since))
    if options.until is not None:
        found = found.where(col("finished_at") < lit(options.until))
    return found


def _waiting(spark: SparkSession, partitions: int | None) -> DataFrame:
    """Return kind and schedule of the messages that have not ended."""
    reader = spark.read.format("delayed_queue").option("allQueues", "true")
    reader = reader.schema("kind string, scheduled_at timestamp")
    return reader.options(**partitions_on(spark, partitions)).load()


def _write(report: Report, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.figures, indent=2)
    (directory / "report.json").write_text(text, encoding="utf-8")
    (directory / "report.md").write_text(f"{report.markdown(has_plots=True)}\n", encoding="utf-8")
    for name, data in report.plots.items():
        (directory / f"{name}.png").write_bytes(data)


def _save(report: Report) -> None:
    encoded = {name: base64.b64encode(data).decode() for name, data in report.plots.items()}
    params = {"figures": json.dumps(report.figures), "plots": json.dumps(encoded), "now": None}
    with steady() as connection:
        fetch(connection, SAVE_REPORT, params)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--drained", action="append", default=[], metavar="PATH", help="files of drain")
    add("--archive", action="append", default=[], metavar="PATH", help="archived dead letters")
    add("--since", type=instant, metavar="AT", help="messages that ended then or later")
    add("--until", type=instant, metavar="AT", help="messages that ended before then")
    add("--out", type=Path, metavar="DIR", help="report.md, report.json and plots, on this machine")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    asked = given(
        ReportOptions, options, drained=tuple(options.drained), archives=tuple(options.archive)
    )
    with session(settings, console, "report", is_verbose=options.verbose) as spark:
        report = run(spark, asked, console)
    console.answer(report.figures, report.markdown().splitlines())
    return DONE
