"""``report``: how late, how often again, how many in vain, and what is to come."""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.commands import DONE, add_partitions, instant
from delayed_queue.spark.database import fetch, steady
from delayed_queue.spark.jobs import plots
from delayed_queue.spark.jobs.console import Console, aligned, span
from delayed_queue.spark.jobs.files import KIND, read_lake
from delayed_queue.spark.jobs.tables import KNOWN, read_rows
from delayed_queue.spark.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.store.archiving import SAVE_REPORT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS: Final[Mapping[str, str]] = {
    "kind": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "finished_at": "timestamp",
    "attempts": "int",
    "outcome": "string",
    "reason": "string",
}
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
# What an outcome is called elsewhere, in upper case.
_DONE: Final = ("DONE", "SUCCESSFULLY_PROCESSED", "DELIVERED", "SENT", "SUCCESS", "SUCCEEDED")
_LETTERS: Final = (
    "pKind AS kind", "timestamp_millis(createdAt) AS created_at",
    "timestamp_millis(scheduledAtInitially) AS scheduled_at",
    "timestamp_millis(diedAt) AS finished_at", "attempts", "'dead' AS outcome", "reason",
)  # fmt: skip
_DRAINED: Final = (
    KIND, "created_at", "scheduled_at_initially AS scheduled_at", "drained_at AS finished_at",
    "attempts", "'done' AS outcome", "CAST(NULL AS STRING) AS reason",
)  # fmt: skip
_LETTER_COLUMNS: Final = (
    "id", "pKind", "attempts", "reason", "scheduledAtInitially", "createdAt", "diedAt",
)  # fmt: skip


def parse_mapping(pairs: Sequence[str]) -> dict[str, str]:
    """Return the column by field of ``column=field`` texts."""
    found = {}
    for pair in pairs:
        column, equals, name = pair.rpartition("=")
        if not equals or not column or name not in FIELDS:
            raise InvalidConfiguration(
                f"--map {pair!r} is not column=field; the fields are {', '.join(FIELDS)}."
            )
        found[name] = column
    return found


def drained(spark: SparkSession, path: str) -> DataFrame:
    """Return the messages that drain has written."""
    return _selected(read_lake(spark, path), _DRAINED, path, "of drain")


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Return the dead letters that archive has written."""
    return _selected(read_lake(spark, path), _LETTERS, path, "an archive of dead letters")


def stored_letters(spark: SparkSession, partitions: int | None = None) -> DataFrame:
    """Return the dead letters that the database has, without their payloads."""
    rows = read_rows(spark, KNOWN["dead-letters"], _LETTER_COLUMNS, partitions)
    return rows.selectExpr(*_LETTERS)


def others(spark: SparkSession, path: str, mapping: Mapping[str, str]) -> DataFrame:
    """Return rows of the application's own, such as archived notifications."""
    frame = read_lake(spark, path)
    for name in ("finished_at", "kind"):
        if mapping.get(name, name) not in frame.columns:
            raise InvalidConfiguration(
                f"{path} has no column {mapping.get(name, name)!r} for {name}; it has "
                f"{', '.join(frame.columns)}. Say which is what: --map column=field."
            )
    columns = [_expression(frame, mapping.get(name, name), name) for name in FIELDS]
    return frame.selectExpr(*columns)


def _expression(frame: DataFrame, column: str, name: str) -> str:
    value = f"`{column}`" if column in frame.columns else "NULL"
    if name == "outcome" and value != "NULL":
        words = ", ".join(f"'{each}'" for each in _DONE)
        return f"IF(upper({value}) IN ({words}), 'done', 'dead') AS outcome"
    if name == "outcome":
        return "'done' AS outcome"
    return f"CAST({value} AS {FIELDS[name]}) AS {name}"


def _selected(frame: DataFrame, columns: Sequence[str], path: str, what: str) -> DataFrame:
    needed = "drained_at" if columns is _DRAINED else "diedAt"
    if needed not in frame.columns:
        raise InvalidConfiguration(
            f"{path} is not {what}: it has the columns {', '.join(frame.columns)}."
        )
    return frame.selectExpr(*columns)


def together(spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows in one frame; an empty one where there is none."""
    if not frames:
        return spark.createDataFrame([], SCHEMA)
    return reduce(lambda left, right: left.unionByName(right), frames)


PERCENTILES: Final = (50, 90, 95, 99)
KEPT_REPORTS: Final = 30
_ACCURACY: Final = 10_000
_MOST_REASONS: Final = 20
_HORIZON: Final = timedelta(hours=24)
_MOST_MINUTES: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What ``report`` was asked for."""

    drained: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    snapshot: str | None = None
    events: tuple[str, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    uses_database: bool = True
    out: Path | None = None
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Figures as JSON has them, and plots as PNG by name."""

    figures: dict[str, Any]
    plots: dict[str, bytes]

    def lines(self) -> list[str]:
        """Return the report in words."""
        return words_of(self.figures)


def run(spark: SparkSession, options: ReportOptions, console: Console) -> Report:
    """Measure, draw, write and keep."""
    console.progress("measuring …")
    now = datetime.now(UTC)
    ended = _ended(spark, options).persist()
    try:
        figures = {
            "created_at": now.isoformat(),
            "since": None if options.since is None else options.since.isoformat(),
            "until": None if options.until is None else options.until.isoformat(),
            "kinds": kind_figures(ended),
            "throughput": throughput(ended),
            "reasons": reasons(ended),
            "backlog": backlog(_waiting(spark, options), now),
        }
    finally:
        ended.unpersist()
    report = Report(figures, plots.draw(figures))
    _write(report, options, console)
    return report


def _ended(spark: SparkSession, options: ReportOptions) -> DataFrame:
    from pyspark.sql.functions import col, lit

    frames = [drained(spark, each) for each in options.drained]
    frames += [archived(spark, each) for each in options.archives]
    frames += [others(spark, each, options.mapping) for each in options.events]
    if options.uses_database:
        frames.append(stored_letters(spark, options.partitions))
    found = together(spark, frames).where("finished_at IS NOT NULL")
    if options.since is not None:
        found = found.where(col("finished_at") >= lit(options.since))
    if options.until is not None:
        found = found.where(col("finished_at") < lit(options.until))
    return found


def _waiting(spark: SparkSession, options: ReportOptions) -> DataFrame | None:
    if options.snapshot is not None:
        return read_lake(spark, options.snapshot).selectExpr(KIND, "scheduled_at")
    if not options.uses_database:
        return None
    reader = spark.read.format("delayed_queue").schema("kind string, scheduled_at timestamp")
    if (partitions := partitions_on(spark, options.partitions)) is not None:
        reader = reader.option("numPartitions", str(partitions))
    return reader.option("allQueues", "true").load()


# Figures


def kind_figures(ended: DataFrame) -> list[dict[str, Any]]:
    """Return counts, rates and percentiles of each kind, in seconds.

    Latency is from the offer to the end, lateness from the first schedule to the end; a
    percentile is the nearest rank, exact up to 10,000 messages and within 0.01 % of the rank above.
    """
    share = ", ".join(f"{each / 100}" for each in PERCENTILES)
    rows = (
        ended.selectExpr(
            "*",
            f"{_seconds('created_at')} AS latency",
            f"{_seconds('scheduled_at')} AS lateness",
        )
        .groupBy("kind")
        .agg(
            *_expressions(
                "count(*) AS messages",
                "count_if(outcome = 'done') AS done",
                "count_if(outcome = 'dead') AS dead",
                "count_if(attempts > 1) AS redelivered",
                f"percentile_approx(latency, array({share}), {_ACCURACY}) AS latency",
                "max(latency) AS latency_max",
                f"percentile_approx(lateness, array({share}), {_ACCURACY}) AS lateness",
                "max(lateness) AS lateness_max",
            )
        )
        .orderBy("kind")
        .collect()
    )
    return [_kind_figures(row.asDict()) for row in rows]


def _seconds(since: str) -> str:
    return f"(unix_micros(finished_at) - unix_micros({since})) / 1e6D"


def _expressions(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(each) for each in texts]


def _kind_figures(row: dict[str, Any]) -> dict[str, Any]:
    messages = row["messages"]
    return {
        "kind": row["kind"],
        "messages": messages,
        "done": row["done"],
        "dead": row["dead"],
        "failure_rate": row["dead"] / messages,
        "redelivered": row["redelivered"],
        "redelivery_rate": row["redelivered"] / messages,
        "latency_seconds": _percentiles(row["latency"], row["latency_max"]),
        "lateness_seconds": _percentiles(row["lateness"], row["lateness_max"]),
    }


def _percentiles(found: list[float] | None, most: float | None) -> dict[str, float] | None:
    if found is None or most is None:
        return None
    names = [f"p{each}" for each in PERCENTILES]
    return {**dict(zip(names, found, strict=True)), "max": most}


def throughput(ended: DataFrame) -> list[dict[str, Any]]:
    """Return how many of each kind were done in each of the last 1,440 minutes with any."""
    minutes = ended.where("outcome = 'done'").selectExpr(
        "kind", "date_trunc('minute', finished_at) AS minute"
    )
    last = minutes.agg({"minute": "max"}).collect()[0][0]
    if last is None:
        return []
    rows = (
        minutes.groupBy("kind", "minute")
        .count()
        .orderBy("minute", "kind")
        .where(f"minute > timestamp_seconds({int(_utc(last).timestamp())} - 60 * {_MOST_MINUTES})")
        .collect()
    )
    return [
        {"kind": row["kind"], "minute": _utc(row["minute"]).isoformat(), "messages": row["count"]}
        for row in rows
    ]


def _utc(found: datetime) -> datetime:
    """Return the instant that PySpark gives in this process's zone, without saying so."""
    return found.astimezone(UTC)


def reasons(ended: DataFrame) -> list[dict[str, Any]]:
    """Return why messages died, the most frequent first."""
    rows = (
        ended.where("outcome = 'dead'")
        .selectExpr("kind", "substring(coalesce(reason, 'no reason given'), 1, 200) AS reason")
        .groupBy("kind", "reason")
        .count()
        .orderBy("count", "kind", "reason", ascending=[False, True, True])
        .limit(_MOST_REASONS)
        .collect()
    )
    return [{"kind": row[0], "reason": row[1], "messages": row[2]} for row in rows]


def backlog(waiting: DataFrame | None, now: datetime) -> list[dict[str, Any]]:
    """Return how many of each kind are due, and fall due in each of the next 24 hours, or later."""
    if waiting is None:
        return []
    begin, hours = int(now.timestamp() * 1e6), int(_HORIZON.total_seconds()) // 3600
    hour = f"CAST(floor((unix_micros(scheduled_at) - {begin}L) / 3.6e9D) AS INT)"
    rows = (
        waiting.selectExpr("kind", f"least(greatest({hour}, -1), {hours}) AS hour")
        .groupBy("kind")
        .pivot("hour", list(range(-1, hours + 1)))
        .count()
        .na.fill(0)
        .orderBy("kind")
        .collect()
    )
    return [
        {
            "kind": row["kind"],
            "due": row["-1"],
            "hours": [row[str(each)] for each in range(hours)],
            "later": row[str(hours)],
        }
        for row in rows
    ]


# Words


def words_of(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures as tables."""
    found = [f"Report of {figures['created_at']}", ""]
    found += _kind_table(figures["kinds"]) if figures["kinds"] else ["Nothing has ended."]
    if figures["reasons"]:
        rows = [(each["kind"], each["messages"], each["reason"]) for each in figures["reasons"]]
        found += ["", *aligned([("why messages died", "messages", ""), *rows])]
    if figures["backlog"]:
        found += ["", *_backlog_table(figures["backlog"])]
    return found


def _kind_table(kinds: list[dict[str, Any]]) -> list[str]:
    head = ("kind", "ended", "done", "dead", "failed", "again", *_heads("late"), *_heads("took"))
    rows = [
        (
            each["kind"], each["messages"], each["done"], each["dead"],
            f"{each['failure_rate']:.2%}", f"{each['redelivery_rate']:.2%}",
            *_spans(each["lateness_seconds"]), *_spans(each["latency_seconds"]),
        )
        for each in kinds
    ]  # fmt: skip
    note = "late: end less first schedule; took: end less offer; again: more than one attempt"
    return [*aligned([head, *rows]), note]


def _heads(name: str) -> list[str]:
    return [f"{name} {each}" for each in ("p50", "p95", "p99", "max")]


def _spans(found: Mapping[str, float] | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    return [span(found[each]) for each in ("p50", "p95", "p99", "max")]


def _backlog_table(rows: list[dict[str, Any]]) -> list[str]:
    head = ("backlog", "due now", "1 h", "6 h", "24 h", "later")
    table = [
        (
            each["kind"], each["due"], each["hours"][0], sum(each["hours"][:6]),
            sum(each["hours"]), each["later"],
        )
        for each in rows
    ]  # fmt: skip
    return [*aligned([head, *table]), "due now, and falling due within that time"]


# Keeping


def _write(report: Report, options: ReportOptions, console: Console) -> None:
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report.figures, indent=2)
        (options.out / "report.json").write_text(text, encoding="utf-8")
        for name, data in report.plots.items():
            (options.out / f"{name}.png").write_bytes(data)
        console.progress(f"report and plots are in {options.out}")
    if options.uses_database:
        save(report)
        console.progress("the admin shows the report")


def save(report: Report) -> None:
    """Keep the report in the database."""
    encoded = {name: base64.b64encode(data).decode() for name, data in report.plots.items()}
    params = {
        "figures": json.dumps(report.figures), "plots": json.dumps(encoded),
        "keep": KEPT_REPORTS, "now": None,
    }  # fmt: skip
    with steady() as connection:
        fetch(connection, SAVE_REPORT, params)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--drained", action="append", default=[], metavar="PATH", help="files of drain")
    add("--archive", action="append", default=[], metavar="PATH", help="archived dead letters")
    add("--snapshot", metavar="PATH", help="the backlog of this snapshot, not of the database")
    add("--events", action="append", default=[], metavar="PATH",
        help="Parquet of yours, with the columns of --map")  # fmt: skip
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields of events: kind, created_at, scheduled_at, finished_at, attempts, outcome, "
        "reason")  # fmt: skip
    add("--since", type=instant, metavar="AT", help="what ended then or later")
    add("--until", type=instant, metavar="AT", help="before then")
    add("--no-database", action="store_true", help="from files alone; nothing is saved")
    add("--out", metavar="DIR", help="for report.json and the plots, on this machine")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:

    asked = ReportOptions(
        drained=tuple(options.drained),
        archives=tuple(options.archive),
        snapshot=options.snapshot,
        events=tuple(options.events),
        mapping=parse_mapping(options.map),
        since=options.since,
        until=options.until,
        uses_database=not options.no_database,
        out=None if options.out is None else Path(options.out),
        partitions=options.partitions,
    )
    with session(settings, console, "report", is_verbose=options.verbose) as spark:
        report = run(spark, asked, console)
    console.answer(report.figures, report.lines())
    return DONE
