"""``report``: how late, how often again, how many in vain, and what is to come."""

from __future__ import annotations

import base64
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import database_now, fetch, steady
from delayed_queue.spark.pipeline import figures as measured
from delayed_queue.spark.pipeline import plots
from delayed_queue.spark.pipeline.cli import (
    DONE,
    add_file_format,
    add_partitions,
    instant,
)
from delayed_queue.spark.pipeline.console import Console, aligned, span
from delayed_queue.spark.pipeline.figures import Campaign, campaign_of
from delayed_queue.spark.pipeline.lake import KIND, PARQUET, read_lake
from delayed_queue.spark.pipeline.session import Stopping, session
from delayed_queue.spark.pipeline.values import storable_json
from delayed_queue.spark.settings import SparkSettings, partitions_on
from delayed_queue.spark.store.archiving import SAVE_REPORT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_REPORTS: Final = 30
_JSON: Final = "report.json"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What ``report`` was asked for."""

    drained: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    snapshot: str | None = None
    events: tuple[str, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    form: str = PARQUET
    campaign: Campaign | None = None
    since: datetime | None = None
    until: datetime | None = None
    uses_database: bool = True
    compared: Path | None = None
    out: Path | None = None
    partitions: int | None = None

    @property
    def has_campaigns(self) -> bool:
        return self.campaign is not None or "campaign" in self.mapping


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
    earlier = None if options.compared is None else earlier_report(options.compared)
    console.progress("measuring …")
    now = database_now()
    ended = _ended(spark, options).persist()
    try:
        waiting = _waiting(spark, options)
        figures: dict[str, Any] = {
            "created_at": now.isoformat(),
            "since": None if options.since is None else options.since.isoformat(),
            "until": None if options.until is None else options.until.isoformat(),
            "kinds": measured.kind_figures(ended),
            "throughput": measured.throughput(ended),
            "hours": measured.lateness_by_hour(ended),
            "attempts": measured.attempts(ended),
            "reasons": measured.reasons(ended),
            "funnel": measured.funnel(ended, waiting, now) if options.has_campaigns else [],
            "backlog": measured.backlog(waiting, now),
        }
    finally:
        ended.unpersist()
    if earlier is not None:
        figures["compared"] = compared(figures, earlier)
    report = Report(figures, plots.draw(figures))
    _write(report, options, console)
    return report


def _ended(spark: SparkSession, options: ReportOptions) -> DataFrame:
    from pyspark.sql.functions import col, lit

    def read(path: str) -> DataFrame:
        return read_lake(spark, path, form=options.form)

    campaign = options.campaign
    frames = [measured.drained(read(each), each, campaign) for each in options.drained]
    frames += [measured.archived(read(each), each, campaign) for each in options.archives]
    frames += [measured.others(read(each), each, options.mapping) for each in options.events]
    if options.uses_database:
        frames.append(measured.stored_letters(spark, campaign, options.partitions))
    found = measured.together(spark, frames).where("finished_at IS NOT NULL")
    if options.since is not None:
        found = found.where(col("finished_at") >= lit(options.since))
    if options.until is not None:
        found = found.where(col("finished_at") < lit(options.until))
    return found


def _waiting(spark: SparkSession, options: ReportOptions) -> DataFrame | None:
    """Return what has not ended, with its campaign: for that alone payloads are read."""
    campaign = options.campaign
    if options.snapshot is not None:
        found = read_lake(spark, options.snapshot, form=options.form)
    elif not options.uses_database:
        return None
    else:
        column = "" if campaign is None else f", {campaign.column} string"
        reader = spark.read.format("delayed_queue")
        reader = reader.schema(f"kind string, scheduled_at timestamp{column}")
        if (partitions := partitions_on(spark, options.partitions)) is not None:
            reader = reader.option("numPartitions", str(partitions))
        found = reader.option("allQueues", "true").load()
    at = "CAST(scheduled_at AS TIMESTAMP) AS scheduled_at"
    return found.selectExpr(KIND, at, campaign_of(found, campaign))


# Beside an earlier one

_COMPARED: Final = ("messages", "done", "dead", "failure_rate", "redelivery_rate")
_COMPARED_SPANS: Final = ("lateness_seconds", "latency_seconds")
_Rows = Sequence[Mapping[str, Any]]
_Pair = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]


def earlier_report(path: Path) -> dict[str, Any]:
    """Return the figures of a report that was written before: its JSON, or its directory."""
    try:
        text = (path / _JSON if path.is_dir() else path).read_text(encoding="utf-8")
        found = json.loads(text)
        is_report = {"created_at", "kinds", "reasons"} <= set(found)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidConfiguration(f"--compare {path}: there is no report: {error}") from None
    if not is_report:
        raise InvalidConfiguration(f"--compare {path} is not the {_JSON} of a report.")
    return found  # type: ignore[no-any-return]


def compared(figures: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return pairs of what an earlier report says and what this one says, by kind and by reason."""
    kinds = _paired(earlier["kinds"], figures["kinds"], ("kind",))
    why = _paired(earlier["reasons"], figures["reasons"], ("kind", "reason"))
    return {
        "created_at": earlier["created_at"],
        # As reports had it that did not tell them apart.
        "has_dead_in_spans": any("dead_lateness_seconds" not in each for each in earlier["kinds"]),
        "kinds": [{"kind": kind, **_both(pair)} for (kind,), pair in kinds.items()],
        "reasons": [
            {"kind": kind, "reason": reason, "messages": _values(pair, "messages")}
            for (kind, reason), pair in why.items()
        ],
    }


def _paired(before: _Rows, now: _Rows, names: Sequence[str]) -> dict[tuple[str, ...], _Pair]:
    def keyed(rows: _Rows) -> dict[tuple[str, ...], Mapping[str, Any]]:
        return {tuple(each[name] for name in names): each for each in rows}

    old, new = keyed(before), keyed(now)
    return {each: (old.get(each), new.get(each)) for each in dict.fromkeys([*new, *old])}


def _values(pair: _Pair, name: str) -> list[Any]:
    return [None if each is None else each[name] for each in pair]


def _both(pair: _Pair) -> dict[str, Any]:
    found: dict[str, Any] = {name: _values(pair, name) for name in _COMPARED}
    for name in _COMPARED_SPANS:
        before, now = _values(pair, name)
        spans: _Pair = (before or None, now or None)
        found[name] = {share: _values(spans, share) for share in ("p50", "p95", "p99")}
    return found


# Words

Table = tuple[str, list[Sequence[str]], str]


def tables_of(figures: Mapping[str, Any]) -> list[Table]:
    """Return the figures as tables: a title, the head and the rows, and a note."""
    parts: list[tuple[str, Callable[[Any], Table]]] = [
        ("kinds", _kinds), ("kinds", _dead), ("compared", _compared),
        ("compared", _compared_reasons), ("funnel", _funnel), ("reasons", _reasons),
        ("attempts", _attempts), ("backlog", _backlog),
    ]  # fmt: skip
    found = (show(figures[name]) for name, show in parts if figures.get(name))
    return [each for each in found if len(each[1]) > 1]


def words_of(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures as lines of text."""
    found = [f"Report of {figures['created_at']}"]
    if not figures["kinds"]:
        found += ["", "Nothing has ended."]
    for title, rows, note in tables_of(figures):
        found += ["", title, *aligned(rows), *([note] if note else [])]
    return found


def _kinds(kinds: _Rows) -> Table:
    ends = [each for each in ("dropped", "expired") if any(row.get(each) for row in kinds)]
    counts = ("messages", "done", "dead", *ends)
    head = ("kind", "ended", *counts[1:], "failed", "again",
            *_heads("late"), *_heads("took"))  # fmt: skip
    rows = [
        (
            each["kind"], *(f"{each.get(name, 0):,}" for name in counts),
            f"{each['failure_rate']:.2%}", f"{each['redelivery_rate']:.2%}",
            *_spans(each["lateness_seconds"]), *_spans(each["latency_seconds"]),
        )
        for each in kinds
    ]  # fmt: skip
    note = ("late: end less first schedule; took: end less offer; both of what was done. "
            "again: more than one attempt")  # fmt: skip
    return "Ended messages", [head, *rows], note


def _dead(kinds: _Rows) -> Table:
    rows = [
        (each["kind"], f"{each['dead']:,}", *_spans(each["dead_lateness_seconds"]))
        for each in kinds
        if each.get("dead_lateness_seconds")
    ]
    note = "late: from the first schedule until it was given up"
    return "Dead letters", [("kind", "dead", *_heads("late")), *rows], note


def _heads(name: str) -> list[str]:
    return [f"{name} {each}" for each in ("p50", "p95", "p99", "max")]


def _spans(found: Mapping[str, float] | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    return [span(found[each]) for each in ("p50", "p95", "p99", "max")]


def _compared(found: Mapping[str, Any]) -> Table:
    head = ("kind", "ended", "done", "dead", "failed", "again", "late p50", "late p95", "took p95")
    rows = [
        (
            each["kind"], *(_change(each[name], "{:,}".format) for name in _COMPARED[:3]),
            *(_change(each[name], "{:.2%}".format) for name in _COMPARED[3:]),
            _change(each["lateness_seconds"]["p50"], span),
            _change(each["lateness_seconds"]["p95"], span),
            _change(each["latency_seconds"]["p95"], span),
        )
        for each in found["kinds"]
    ]  # fmt: skip
    note = "The earlier one counts dead letters in its times." if found["has_dead_in_spans"] else ""
    return f"Since the report of {found['created_at'][:16]}", [head, *rows], note


def _change(pair: Sequence[Any], form: Callable[[Any], str]) -> str:
    before, now = ("-" if each is None else form(each) for each in pair)
    return now if before == now else f"{before} → {now}"


def _compared_reasons(found: Mapping[str, Any]) -> Table:
    rows = [
        (each["kind"], _change(each["messages"], "{:,}".format), each["reason"])
        for each in found["reasons"]
        if each["messages"][0] != each["messages"][1]
    ]
    note = "-: not among the most frequent"
    return "Why messages died, since then", [("kind", "messages", "reason"), *rows], note


def _funnel(campaigns: _Rows) -> Table:
    names = ("offered", "due", "done", "dead", "dropped", "expired")
    rows = [
        (plots.campaign_name(each["campaign"]), *(f"{each[name]:,}" for name in names))
        for each in campaigns
    ]
    return "Campaigns", [("campaign", *names), *rows], "of what ended, and what waits"


def _reasons(found: _Rows) -> Table:
    rows = [(each["kind"], f"{each['messages']:,}", each["reason"]) for each in found]
    return "Why messages died", [("kind", "messages", "reason"), *rows], ""


def _attempts(found: _Rows) -> Table:
    places = range(len(found[0]["done"]))
    used = [
        place for place in places if any(row["done"][place] or row["dead"][place] for row in found)
    ]
    rows = [
        (row["kind"], name, *(f"{row[name][place]:,}" for place in used))
        for row in found
        for name in ("done", "dead")
        if any(row[name])
    ]
    names = [str(place + 1) if place < len(places) - 1 else "more" for place in used]
    return "Attempts", [("kind", "ended", *names), *rows], "how many attempts, to the end"


def _backlog(rows: _Rows) -> Table:
    head = ("kind", "due now", "1 h", "6 h", "24 h", "later")
    table = [
        (
            each["kind"],
            *(
                f"{count:,}"
                for count in (each["due"], each["hours"][0], sum(each["hours"][:6]),
                              sum(each["hours"]), each["later"])
            ),
        )
        for each in rows
    ]  # fmt: skip
    return "Backlog", [head, *table], "due now, and falling due within that time"


# Keeping


def _write(report: Report, options: ReportOptions, console: Console) -> None:
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report.figures, indent=2)
        (options.out / _JSON).write_text(text, encoding="utf-8")
        (options.out / "report.html").write_text(
            plots.page(report.figures, tables_of(report.figures)), encoding="utf-8"
        )
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
        "figures": storable_json(report.figures), "plots": json.dumps(encoded),
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
        help="files of yours, with the columns of --map")  # fmt: skip
    add("--map", action="append", default=[], metavar="COLUMN=FIELD",
        help="fields of events: kind, created_at, scheduled_at, finished_at, attempts, outcome, "
        "reason, campaign")  # fmt: skip
    add_file_format(parser)
    add("--campaign", type=Campaign.of, metavar="header:NAME",
        help="what became of each campaign, by a header or by payload:FIELD")  # fmt: skip
    add("--since", type=instant, metavar="AT", help="what ended then or later")
    add("--until", type=instant, metavar="AT", help="before then")
    add("--no-database", action="store_true", help="from files alone; nothing is saved")
    add("--compare", type=Path, metavar="PATH", help="an earlier report: its JSON or directory")
    add("--out", metavar="DIR", help="for report.html, .json and plots, on this machine")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:

    asked = ReportOptions(
        drained=tuple(options.drained),
        archives=tuple(options.archive),
        snapshot=options.snapshot,
        events=tuple(options.events),
        mapping=measured.parse_mapping(options.map),
        form=options.file_format,
        campaign=options.campaign,
        since=options.since,
        until=options.until,
        uses_database=not options.no_database,
        compared=options.compare,
        out=None if options.out is None else Path(options.out),
        partitions=options.partitions,
    )
    with session(settings, console, "report", is_verbose=options.verbose) as spark:
        report = run(spark, asked, console)
    console.answer(report.figures, report.lines())
    return DONE
