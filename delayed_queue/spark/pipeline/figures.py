"""The figures of a report: what ended and what waits, from files and the database, measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queue.fingerprints import describe, fingerprint
from delayed_queue.spark.pipeline.lake import KIND
from delayed_queue.spark.pipeline.tables import KNOWN, read_rows

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
    "campaign": "string",
}
# What only dead letters have: why, in full, and what such failures have in common.
_OF_LETTERS: Final = ("error", "fingerprint")
SCHEMA: Final = ", ".join(
    f"{name} {kind}"
    for name, kind in [*FIELDS.items(), *((each, "string") for each in _OF_LETTERS)]
)
# What an outcome is called elsewhere, in upper case; what is none of these is dead.
_OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "done": ("DONE", "SUCCESSFULLY_PROCESSED", "DELIVERED", "SENT", "SUCCESS", "SUCCEEDED"),
    "dropped": ("DROPPED", "CANCELLED", "CANCELED", "SKIPPED", "SUPPRESSED"),
    "expired": ("EXPIRED", "TIMED_OUT"),
}
OUTCOMES: Final = ("done", "dead", "dropped", "expired")
_LETTERS: Final = (
    "pKind AS kind", "timestamp_millis(CAST(createdAt AS BIGINT)) AS created_at",
    "timestamp_millis(CAST(scheduledAtInitially AS BIGINT)) AS scheduled_at",
    "timestamp_millis(CAST(diedAt AS BIGINT)) AS finished_at", "CAST(attempts AS INT) AS attempts",
    "'dead' AS outcome", "reason",
)  # fmt: skip
_DRAINED: Final = (
    KIND, "CAST(created_at AS TIMESTAMP) AS created_at",
    "CAST(scheduled_at_initially AS TIMESTAMP) AS scheduled_at",
    "CAST(drained_at AS TIMESTAMP) AS finished_at", "CAST(attempts AS INT) AS attempts",
    "'done' AS outcome",
)  # fmt: skip
_LETTER_COLUMNS: Final = (
    "id", "pKind", "attempts", "reason", "lastError", "fingerprint", "scheduledAtInitially",
    "createdAt", "diedAt",
)  # fmt: skip
_NULL: Final = "CAST(NULL AS STRING)"


@dataclass(frozen=True, slots=True)
class Campaign:
    """By what messages are told apart: a header, or a field of a payload that is JSON."""

    column: str
    path: str

    @classmethod
    def of(cls, text: str) -> Campaign:
        """Read ``header:NAME`` or ``payload:FIELD``, where a field may be one in another."""
        where, colon, name = text.partition(":")
        if where not in {"header", "payload"} or not colon or not name or set(name) & set("'\"\\"):
            raise InvalidConfiguration(
                f"--campaign {text!r} is neither header:NAME nor payload:FIELD."
            )
        steps = [name] if where == "header" else name.split(".")
        column = "headers" if where == "header" else "payload"
        return cls(column, "$" + "".join(f"['{each}']" for each in steps))

    @property
    def expression(self) -> str:
        """Return it as Spark's SQL, of a frame that has the column."""
        return f'get_json_object(CAST({self.column} AS STRING), "{self.path}")'


def campaign_of(frame: DataFrame, campaign: Campaign | None) -> str:
    """Return the campaign's column; what has no such column, as files of before, has none."""
    is_there = campaign is not None and campaign.column in frame.columns
    return f"{campaign.expression if is_there and campaign else _NULL} AS campaign"


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


def drained(frame: DataFrame, path: str, campaign: Campaign | None = None) -> DataFrame:
    """Return the messages that drain has written."""
    _check(frame, "drained_at", path, "of drain")
    return frame.selectExpr(
        *_DRAINED, f"{_NULL} AS reason", campaign_of(frame, campaign), *_as_nulls(_OF_LETTERS)
    )


def archived(frame: DataFrame, path: str, campaign: Campaign | None = None) -> DataFrame:
    """Return the dead letters that archive has written."""
    _check(frame, "diedAt", path, "an archive of dead letters")
    return _of_letters(frame, campaign)


def stored_letters(
    spark: SparkSession, campaign: Campaign | None = None, partitions: int | None = None
) -> DataFrame:
    """Return the dead letters that the database has, without payloads that nobody asks for."""
    columns = (*_LETTER_COLUMNS, *(() if campaign is None else (campaign.column,)))
    return _of_letters(read_rows(spark, KNOWN["dead-letters"], columns, partitions), campaign)


def _of_letters(frame: DataFrame, campaign: Campaign | None) -> DataFrame:
    """Return letters; archives of earlier releases have no fingerprint."""
    known = "fingerprint" if "fingerprint" in frame.columns else f"{_NULL} AS fingerprint"
    return frame.selectExpr(
        *_LETTERS, campaign_of(frame, campaign), "lastError AS error", known
    )  # fmt: skip


def _as_nulls(names: Iterable[str]) -> list[str]:
    return [f"{_NULL} AS {each}" for each in names]


def others(frame: DataFrame, path: str, mapping: Mapping[str, str]) -> DataFrame:
    """Return rows of the application's own, such as archived notifications."""
    for name in ("finished_at", "kind"):
        if mapping.get(name, name) not in frame.columns:
            raise InvalidConfiguration(
                f"{path} has no column {mapping.get(name, name)!r} for {name}; it has "
                f"{', '.join(frame.columns)}. Use --map column=field."
            )
    columns = [_expression(frame, mapping.get(name, name), name) for name in FIELDS]
    return frame.selectExpr(*columns, *_as_nulls(_OF_LETTERS))


def _expression(frame: DataFrame, column: str, name: str) -> str:
    value = f"`{column}`" if column in frame.columns else "NULL"
    if name == "outcome" and value != "NULL":
        cases = " ".join(
            f"WHEN upper({value}) IN ({', '.join(map(repr, words))}) THEN '{outcome}'"
            for outcome, words in _OUTCOMES.items()
        )
        return f"CASE {cases} ELSE 'dead' END AS outcome"
    if name == "outcome":
        return "'done' AS outcome"
    return f"CAST({value} AS {FIELDS[name]}) AS {name}"


def _check(frame: DataFrame, needed: str, path: str, what: str) -> None:
    if needed not in frame.columns:
        raise InvalidConfiguration(
            f"{path} is not {what}: it has the columns {', '.join(frame.columns)}."
        )


def together(spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows in one frame; an empty one where there is none."""
    if not frames:
        return spark.createDataFrame([], SCHEMA)
    return reduce(lambda left, right: left.unionByName(right), frames)


PERCENTILES: Final = (50, 90, 95, 99)
_ACCURACY: Final = 10_000
_MOST_REASONS: Final = 20
_MOST_CAMPAIGNS: Final = 50
# Beyond, attempts are counted together.
MOST_ATTEMPTS: Final = 10
_HORIZON: Final = timedelta(hours=24)
_MOST_MINUTES: Final = 24 * 60
_MOST_HOURS: Final = 7 * 24


def kind_figures(ended: DataFrame) -> list[dict[str, Any]]:
    """Return counts, rates and percentiles of each kind, in seconds.

    Latency is from the offer to the end, lateness from the first schedule to the end, of what was
    done; what died has a lateness of its own, for its end is when somebody gave up. A percentile is
    the nearest rank, exact up to 10,000 messages and within 0.01 % of the rank above.
    """
    latency, lateness = _seconds("created_at"), _seconds("scheduled_at")
    rows = (
        ended.groupBy("kind")
        .agg(
            *_expressions(
                "count(*) AS messages",
                *(f"count_if(outcome = '{each}') AS {each}" for each in OUTCOMES),
                "count_if(attempts > 1) AS redelivered",
                *_spread("latency", f"IF(outcome = 'done', {latency}, NULL)"),
                *_spread("lateness", f"IF(outcome = 'done', {lateness}, NULL)"),
                *_spread("dead_lateness", f"IF(outcome = 'dead', {lateness}, NULL)"),
            )
        )
        .orderBy("kind")
        .collect()
    )
    return [_kind_figures(row.asDict()) for row in rows]


def _seconds(since: str) -> str:
    return f"(unix_micros(finished_at) - unix_micros({since})) / 1e6D"


def _spread(name: str, value: str) -> tuple[str, str]:
    share = ", ".join(f"{each / 100}" for each in PERCENTILES)
    percentiles = f"percentile_approx({value}, array({share}), {_ACCURACY}) AS {name}"
    return percentiles, f"max({value}) AS {name}_max"


def _expressions(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(each) for each in texts]


def _kind_figures(row: dict[str, Any]) -> dict[str, Any]:
    messages = row["messages"]
    spans = {
        f"{name}_seconds": _percentiles(row[name], row[f"{name}_max"])
        for name in ("latency", "lateness", "dead_lateness")
    }
    return {
        "kind": row["kind"],
        "messages": messages,
        **{each: row[each] for each in OUTCOMES},
        "failure_rate": row["dead"] / messages,
        "redelivered": row["redelivered"],
        "redelivery_rate": row["redelivered"] / messages,
        **spans,
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
    rows = _last(minutes, "minute", _MOST_MINUTES * 60).groupBy("kind", "minute").count()
    return [
        {"kind": row["kind"], "minute": _utc(row["minute"]).isoformat(), "messages": row["count"]}
        for row in rows.orderBy("minute", "kind").collect()
    ]


def lateness_by_hour(ended: DataFrame) -> list[dict[str, Any]]:
    """Return how late what was done had become, by the hour of its first schedule."""
    hours = ended.where("outcome = 'done' AND scheduled_at IS NOT NULL").selectExpr(
        "kind", "date_trunc('hour', scheduled_at) AS hour", f"{_seconds('scheduled_at')} AS late"
    )
    rows = (
        _last(hours, "hour", _MOST_HOURS * 3600)
        .groupBy("kind", "hour")
        .agg(*_expressions("count(*) AS messages", *_spread("late", "late")))
    )
    return [
        {
            "kind": row["kind"], "hour": _utc(row["hour"]).isoformat(),
            "messages": row["messages"], **(_percentiles(row["late"], row["late_max"]) or {}),
        }
        for row in rows.orderBy("hour", "kind").collect()
    ]  # fmt: skip


def _last(frame: DataFrame, column: str, seconds: int) -> DataFrame:
    """Return the rows of the last so many seconds that have any."""
    last = frame.agg({column: "max"}).collect()[0][0]
    if last is None:
        return frame
    return frame.where(f"{column} > timestamp_seconds({int(_utc(last).timestamp())} - {seconds})")


def _utc(found: datetime) -> datetime:
    """Return the instant that PySpark gives in this process's zone, without saying so."""
    return found.astimezone(UTC)


def attempts(ended: DataFrame) -> list[dict[str, Any]]:
    """Return how many of each kind took one attempt, two, … ten, and more, to their end."""
    rows = (
        ended.where("attempts IS NOT NULL AND outcome IN ('done', 'dead')")
        .selectExpr(
            "kind", "outcome", f"least(greatest(attempts, 1), {MOST_ATTEMPTS + 1}) AS attempts"
        )
        .groupBy("kind", "outcome", "attempts")
        .count()
        .collect()
    )
    found: dict[str, dict[str, Any]] = {}
    for kind, outcome, place, count in sorted(rows):
        empty = {"kind": kind, **{each: [0] * (MOST_ATTEMPTS + 1) for each in ("done", "dead")}}
        found.setdefault(kind, empty)[outcome][place - 1] = count
    return list(found.values())


def reasons(ended: DataFrame) -> list[dict[str, Any]]:
    """Return why messages died, the most frequent first: what failures have in common, no values.

    As in the admin's page of failures: by the fingerprint that a letter has, or is given here.
    """
    dead = ended.where("outcome = 'dead'").selectExpr(
        "kind", "nullif(fingerprint, '') AS fingerprint",
        "struct(coalesce(reason, 'no reason given') AS reason, error) AS said",
    )  # fmt: skip
    alike = (
        dead.groupBy(
            "kind", "fingerprint", *_expressions("IF(fingerprint IS NULL, said, NULL) AS own")
        )
        .agg(*_expressions("count(*) AS messages", "min(said) AS said"))
        .selectExpr("kind", "fingerprint", "said.reason", "said.error", "messages")
    )
    rows = (
        alike.mapInArrow(_described, "kind string, fingerprint string, reason string, n bigint")
        .groupBy("kind", "fingerprint")
        .agg(*_expressions("sum(n) AS messages", "min(reason) AS reason"))
        .orderBy("messages", "kind", "reason", ascending=[False, True, True])
        .limit(_MOST_REASONS)
        .collect()
    )
    return [
        {"kind": kind, "fingerprint": alike, "reason": reason, "messages": messages}
        for kind, alike, messages, reason in rows
    ]


def _described(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give each group its fingerprint and its sentence, in the executors."""
    for batch in batches:
        pairs = list(zip(batch["reason"].to_pylist(), batch["error"].to_pylist(), strict=True))
        known = batch["fingerprint"].to_pylist()
        alike = [
            each or fingerprint(*pair) for each, pair in zip(known, pairs, strict=True)
        ]  # fmt: skip
        said = [describe(*pair) for pair in pairs]
        yield pa.RecordBatch.from_pydict(
            {"kind": batch["kind"], "fingerprint": alike, "reason": said, "n": batch["messages"]}
        )


def funnel(ended: DataFrame, waiting: DataFrame | None, now: datetime) -> list[dict[str, Any]]:
    """Return what became of each campaign: of how many offers so many fell due, and ended how."""
    columns = ("campaign", "scheduled_at", "outcome")
    rows = ended.select(*columns)
    if waiting is not None:
        rows = rows.unionByName(
            waiting.selectExpr("campaign", "scheduled_at", f"{_NULL} AS outcome")
        )
    is_due = f"unix_micros(scheduled_at) <= {int(now.timestamp() * 1e6)}L"
    found = (
        rows.groupBy("campaign")
        .agg(
            *_expressions(
                "count(*) AS offered",
                f"count_if(coalesce(outcome IN ('done', 'dead'), false) OR {is_due}) AS due",
                *(f"count_if(outcome = '{each}') AS {each}" for each in OUTCOMES),
            )
        )
        .orderBy("offered", "campaign", ascending=[False, True])
        .limit(_MOST_CAMPAIGNS)
        .collect()
    )
    return [row.asDict() for row in found]


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
