"""The figures of a report: messages that ended, messages that wait, and the tables of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queue.fingerprints import describe, fingerprint
from delayed_queue.spark.pipeline.console import span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Figures = Mapping[str, Any]
PERCENTILES: Final = (50, 90, 95, 99)
# Spark's percentiles are exact up to this number of messages.
_ACCURACY: Final = 10_000
_MAX_REASONS: Final = 20
_MAX_MINUTES: Final = 24 * 60
_HOURS: Final = 24

# A fact is a message that ended: the same columns for drained messages and for dead letters.
_DRAINED: Final = (
    "coalesce(kind, '') AS kind", "CAST(attempts AS INT) AS attempts",
    "CAST(created_at AS TIMESTAMP) AS created_at",
    "CAST(scheduled_at_initially AS TIMESTAMP) AS scheduled_at",
    "CAST(drained_at AS TIMESTAMP) AS finished_at", "'done' AS outcome",
    *(f"CAST(NULL AS STRING) AS {name}" for name in ("reason", "error", "fingerprint")),
)  # fmt: skip
DRAINED_SCHEMA: Final = (
    "kind string, attempts int, created_at timestamp, scheduled_at_initially timestamp, "
    "drained_at timestamp"
)
_DEAD: Final = (
    "pKind AS kind", "CAST(attempts AS INT) AS attempts",
    "timestamp_millis(CAST(createdAt AS BIGINT)) AS created_at",
    "timestamp_millis(CAST(scheduledAtInitially AS BIGINT)) AS scheduled_at",
    "timestamp_millis(CAST(diedAt AS BIGINT)) AS finished_at", "'dead' AS outcome",
    "reason", "lastError AS error", "fingerprint",
)  # fmt: skip
# Columns of the table of dead letters that a report reads.
DEAD_COLUMNS: Final = (
    "id", "pKind", "attempts", "reason", "lastError", "fingerprint", "scheduledAtInitially",
    "createdAt", "diedAt",
)  # fmt: skip


def drained_facts(frame: DataFrame, path: str) -> DataFrame:
    """Return a fact for each message that ``drain`` has written."""
    return _facts(frame, path, "drained_at", _DRAINED, "files of drain")


def dead_facts(frame: DataFrame, path: str = "") -> DataFrame:
    """Return a fact for each dead letter, of the database or of an archive."""
    return _facts(frame, path, "diedAt", _DEAD, "an archive of dead letters")


def _facts(
    frame: DataFrame, path: str, needed: str, columns: Sequence[str], what: str
) -> DataFrame:
    if needed not in frame.columns:
        raise InvalidConfiguration(
            f"{path} is not {what}: it has the columns {', '.join(frame.columns)}."
        )
    return frame.selectExpr(*columns)


def measure_kinds(facts: DataFrame) -> list[dict[str, Any]]:
    """Return counts, rates and percentiles of each kind, in seconds.

    Latency is from the offer to the end, lateness from the first schedule to the end. Both count
    only messages that are done. A percentile is the nearest rank, exact up to 10,000 messages and
    within 0.01 % of the rank above.
    """
    from pyspark.sql.functions import expr

    columns = [
        "count(*) AS messages", "count_if(outcome = 'done') AS done",
        "count_if(outcome = 'dead') AS dead", "count_if(attempts > 1) AS redelivered",
        "count_if(outcome = 'dead') / count(*) AS failure_rate",
        "count_if(attempts > 1) / count(*) AS redelivery_rate",
        _spread("latency_seconds", "created_at"), _spread("lateness_seconds", "scheduled_at"),
    ]  # fmt: skip
    rows = facts.groupBy("kind").agg(*map(expr, columns)).orderBy("kind").collect()
    return [row.asDict() for row in rows]


def _spread(name: str, since: str) -> str:
    """Return the map of percentiles and the maximum; null without messages that are done."""
    seconds = f"(unix_micros(finished_at) - unix_micros({since})) / 1e6D"
    value = f"IF(outcome = 'done', {seconds}, NULL)"
    names = ", ".join(f"'p{each}'" for each in PERCENTILES)
    shares = ", ".join(f"{each / 100}" for each in PERCENTILES)
    found = f"percentile_approx({value}, array({shares}), {_ACCURACY})"
    return (
        f"IF(count({value}) > 0, map_from_arrays(array({names}, 'max'), "
        f"array_append({found}, max({value}))), NULL) AS {name}"
    )


def measure_throughput(facts: DataFrame) -> list[dict[str, Any]]:
    """Return the number of done messages by kind and minute, for the last 1,440 minutes."""
    minutes = facts.where("outcome = 'done'").selectExpr(
        "kind", "unix_seconds(date_trunc('minute', finished_at)) AS minute"
    )
    last = minutes.agg({"minute": "max"}).collect()[0][0] or 0
    rows = minutes.where(f"minute > {last - 60 * _MAX_MINUTES}").groupBy("kind", "minute").count()
    return [
        {"kind": kind, "minute": datetime.fromtimestamp(at, UTC).isoformat(), "messages": count}
        for kind, at, count in rows.orderBy("minute", "kind").collect()
    ]


def measure_reasons(facts: DataFrame) -> list[dict[str, Any]]:
    """Return the most frequent causes of death, without values of single messages.

    Dead letters are grouped by fingerprint, as in the admin's page of failures. A letter without
    a fingerprint gets one here.
    """
    from pyspark.sql.functions import coalesce, expr, udf

    # Without the function's own annotations, which Spark refuses.
    found = udf(lambda reason, error: fingerprint(reason, error), "string")
    missing = found("cause.reason", "cause.error")
    groups = (
        facts.where("outcome = 'dead'")
        .selectExpr(
            "kind", "nullif(fingerprint, '') AS known",
            "struct(coalesce(reason, 'no reason given') AS reason, error) AS cause",
        )
        .groupBy("kind", "known", expr("IF(known IS NULL, cause, NULL)"))
        .agg(expr("count(*) AS messages"), expr("min(cause) AS cause"))
        .withColumn("fingerprint", coalesce("known", missing))
        .groupBy("kind", "fingerprint")
        .agg(expr("min(cause) AS cause"), expr("sum(messages) AS messages"))
        .orderBy("messages", "kind", "cause", ascending=[False, True, True])
        .limit(_MAX_REASONS)
    )  # fmt: skip
    return [
        {"kind": kind, "fingerprint": found, "reason": describe(*cause), "messages": messages}
        for kind, found, cause, messages in groups.collect()
    ]


def measure_backlog(waiting: DataFrame, now: datetime) -> list[dict[str, Any]]:
    """Return by kind the messages that are due, due in each of the next 24 hours, or later."""
    begin = int(now.timestamp() * 1e6)
    hour = f"CAST(floor((unix_micros(scheduled_at) - {begin}L) / 3.6e9D) AS INT)"
    rows = (
        waiting.selectExpr("kind", f"least(greatest({hour}, -1), {_HOURS}) AS hour")
        .groupBy("kind")
        .pivot("hour", list(range(-1, _HOURS + 1)))
        .count()
        .na.fill(0)
        .orderBy("kind")
    )
    return [
        {"kind": kind, "due": due, "hours": hours, "later": later}
        for kind, due, *hours, later in rows.collect()
    ]


class Table(NamedTuple):
    """Figures in words: the first ``texts`` columns are texts."""

    title: str
    texts: int
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


_SPANS: Final = ("p50", "p95", "p99", "max")


def tables_of(figures: Figures) -> list[Table]:
    """Return the tables of a report that have rows."""
    kinds = [
        (
            each["kind"], *(f"{each[name]:,}" for name in ("messages", "done", "dead")),
            *(f"{each[name]:.2%}" for name in ("failure_rate", "redelivery_rate")),
            *_spans(each["lateness_seconds"]), *_spans(each["latency_seconds"]),
        )
        for each in figures["kinds"]
    ]  # fmt: skip
    reasons = [
        (each["kind"], each["reason"], f"{each['messages']:,}") for each in figures["reasons"]
    ]
    heads = [f"{name} {each}" for name in ("late", "took") for each in _SPANS]
    tables = [
        Table("Ended messages", 1, ("kind", "ended", "done", "dead", "failed", "again", *heads),
              kinds, "late: end less first schedule; took: end less offer; both of done messages. "
              "again: more than one attempt"),
        Table("Why messages died", 2, ("kind", "reason", "messages"), reasons),
        Table("Backlog", 1, ("kind", "due now", "1 h", "6 h", "24 h", "later"),
              [_backlog_row(each) for each in figures["backlog"]],
              "due now, and falling due within that time"),
    ]  # fmt: skip
    return [each for each in tables if each.rows]


def _spans(found: Mapping[str, float] | None) -> list[str]:
    return ["-" if found is None else span(found[each]) for each in _SPANS]


def _backlog_row(each: Figures) -> tuple[str, ...]:
    hours = each["hours"]
    counts = (each["due"], hours[0], sum(hours[:6]), sum(hours), each["later"])
    return (each["kind"], *(f"{count:,}" for count in counts))
