"""What a report counts, counted by another engine: DuckDB, from the same files and rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.spark.pipeline import reports
from delayed_queue.spark.pipeline.figures import Campaign
from tests.spark.pipelines import CONSOLE
from tests.spark.support import with_jvm

pytestmark = with_jvm

BEGIN: Final = datetime(2026, 5, 1, 22, tzinfo=UTC)
KINDS: Final = ("orders|json", "mail|json", "push|json")
CAMPAIGNS: Final = ("spring", "summer", None)


def drained(count: int = 600) -> pa.Table:
    """Messages of three kinds over three hours, late by 1 s to about 10 min."""
    rows = [
        {
            "kind": KINDS[n % 3], "key": f"k{n}", "attempts": 1 + (n % 13) * (n % 2),
            "headers": json.dumps({"x.campaign": CAMPAIGNS[n % 3]}) if n % 5 else None,
            "payload": json.dumps({"order": {"campaign": CAMPAIGNS[n % 2]}}),
            "created_at": BEGIN + timedelta(seconds=n * 17),
            "scheduled_at_initially": BEGIN + timedelta(seconds=n * 18),
            "drained_at": BEGIN + timedelta(seconds=n * 18 + 1 + n * n % 599),
        }
        for n in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def write_letters(count: int = 40) -> None:
    """Letters of three causes, each with values of its own; some of before fingerprints."""
    reasons = ("no customer 'Alice {n}' in order {n}", "HTTP 503 for job {n}", "rejected")
    texts = [reasons[n % 3].format(n=n) for n in range(count)]
    DeadLetter.objects.bulk_create(
        DeadLetter(
            kind=KINDS[n % 2], key=f"d{n}", payload=b'{"order": {"campaign": "spring"}}',
            headers={"x.campaign": "spring"}, attempts=5, reason=text, last_error=None,
            first_error=None, scheduled_at_initially=BEGIN, created_at=BEGIN,
            died_at=BEGIN + timedelta(days=1, seconds=n),
            fingerprint=fingerprint(text, None) if n % 4 else "",
        )
        for n, text in enumerate(texts)
    )  # fmt: skip


def test_counts_are_those_of_another_engine(queue: DelayedQueue, spark: Any, tmp_path: Path):
    """Of drained files, letters of the database, and three messages that wait."""
    pq.write_table(drained(), tmp_path / "drained.parquet")
    write_letters()
    queue.offer_or_update("due", {}, headers={"x.campaign": "spring"})
    for hours in (1, 2):
        queue.offer_or_update(
            f"in {hours}", {}, delay=timedelta(hours=hours), headers={"x.campaign": "summer"}
        )
    asked = reports.ReportOptions(
        drained=(str(tmp_path / "drained.parquet"),), campaign=Campaign.of("header:x.campaign")
    )
    measured = reports.run(spark, asked, CONSOLE).figures
    check_counts(measured)
    check_reasons(measured)
    check_campaigns(measured)


def ask(sql: str, letters: pa.Table | None = None) -> list[tuple[Any, ...]]:
    """Ask DuckDB, of ``drained`` and ``letters``."""
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("drained", drained())
        if letters is not None:
            engine.register("letters", letters)
        return engine.execute(sql).fetchall()


def stored() -> pa.Table:
    names = ("kind", "reason", "attempts")
    return pa.Table.from_pylist([*DeadLetter.objects.values(*names)])


LATE: Final = "epoch_ms(drained_at) - epoch_ms(scheduled_at_initially)"


def check_counts(measured: Mapping[str, Any]) -> None:
    letters = stored()
    kinds = ask(
        f"""SELECT kind, count(*) FILTER (done), count(*) FILTER (NOT done),
            count(*) FILTER (attempts > 1), quantile_disc(late, [0.5, 0.9, 0.95, 0.99]), max(late)
        FROM (SELECT kind, attempts, true AS done, {LATE} AS late FROM drained
            UNION ALL BY NAME SELECT kind, attempts, false AS done FROM letters)
        GROUP BY kind ORDER BY kind""",  # noqa: S608
        letters,
    )
    assert [
        (
            each["kind"], each["done"], each["dead"], each["redelivered"],
            [round(each["lateness_seconds"][name] * 1000) for name in ("p50", "p90", "p95", "p99")],
            round(each["lateness_seconds"]["max"] * 1000),
        )
        for each in measured["kinds"]
    ] == kinds  # fmt: skip
    assert [
        (datetime.fromisoformat(each["minute"]), each["kind"], each["messages"])
        for each in measured["throughput"]
    ] == ask(
        """SELECT date_trunc('minute', drained_at) AS minute, kind, count(*) FROM drained
        GROUP BY ALL ORDER BY 1, 2"""
    )
    assert [
        (datetime.fromisoformat(each["hour"]), each["kind"], each["messages"], each["p95"] * 1000)
        for each in measured["hours"]
    ] == ask(
        f"""SELECT date_trunc('hour', scheduled_at_initially) AS hour, kind, count(*),
            quantile_disc({LATE}, 0.95)
        FROM drained GROUP BY ALL ORDER BY 1, 2"""  # noqa: S608
    )
    assert {
        (each["kind"], outcome, place + 1, count)
        for each in measured["attempts"]
        for outcome in ("done", "dead")
        for place, count in enumerate(each[outcome])
        if count
    } == set(
        ask(
            """SELECT kind, 'done', least(attempts, 11), count(*) FROM drained GROUP BY ALL
            UNION ALL
            SELECT kind, 'dead', least(attempts, 11), count(*) FROM letters GROUP BY ALL""",
            letters,
        )
    )


def check_reasons(measured: Mapping[str, Any]) -> None:
    """Those of one cause are one, and say no values."""
    counted = ask("SELECT kind, left(reason, 6), count(*) FROM letters GROUP BY ALL", stored())
    found = {(each["kind"], each["reason"][:6], each["messages"]) for each in measured["reasons"]}
    assert found == set(counted)
    assert {each["reason"] for each in measured["reasons"]} == {
        "no customer '…' in order #", "HTTP 503 for job #", "rejected",
    }  # fmt: skip
    assert all(
        each["fingerprint"] == fingerprint(each["reason"], None)
        for each in measured["reasons"]
        if each["reason"] == "rejected"
    )
    assert "Alice" not in json.dumps(measured)


def check_campaigns(measured: Mapping[str, Any]) -> None:
    """By a header whose name has a dot; three more wait, of which one is due."""
    by_header = """SELECT headers ->> '$."x.campaign"', count(*) FROM drained GROUP BY 1"""
    counted = dict(ask(by_header))
    assert {
        each["campaign"]: (each["offered"], each["due"], each["done"], each["dead"])
        for each in measured["funnel"]
    } == {
        "spring": (counted["spring"] + 41, counted["spring"] + 41, counted["spring"], 40),
        "summer": (counted["summer"] + 2, counted["summer"], counted["summer"], 0),
        None: (counted[None], counted[None], counted[None], 0),
    }


def test_by_a_field_of_events_and_of_payloads_with_an_earlier_report(
    queue: DelayedQueue, spark: Any, tmp_path: Path
):
    """Rows of an application, whose words for what was cancelled and expired are known."""
    pq.write_table(drained(60), tmp_path / "drained.parquet")
    statuses = ["DELIVERED", "FAILED", "cancelled", "Expired"] * 5
    events = pa.table(
        {
            "kind": ["email"] * 20, "ended": [BEGIN] * 20, "status": statuses,
            "batch": ["spring", "autumn"] * 10, "due": [BEGIN - timedelta(seconds=1)] * 20,
        }
    )  # fmt: skip
    pq.write_table(events, tmp_path / "events.parquet")
    asked = reports.ReportOptions(
        drained=(str(tmp_path / "drained.parquet"),),
        events=(str(tmp_path / "events.parquet"),),
        mapping={"finished_at": "ended", "outcome": "status", "campaign": "batch",
                 "scheduled_at": "due"},
        campaign=Campaign.of("payload:order.campaign"), uses_database=False, out=tmp_path / "a",
    )  # fmt: skip
    found = reports.run(spark, asked, CONSOLE).figures
    rows = {each.pop("campaign"): each for each in found["funnel"]}
    nothing = {"dead": 0, "dropped": 0, "expired": 0}
    assert rows["summer"] == {"offered": 30, "due": 30, "done": 30, **nothing}
    assert rows["spring"] == {
        "offered": 40, "due": 40, "done": 35, "dead": 0, "dropped": 5, "expired": 0,
    }  # fmt: skip
    assert rows["autumn"] == {
        "offered": 10,
        "due": 10,
        "done": 0,
        **nothing,
        "dead": 5,
        "expired": 5,
    }
    email = next(each for each in found["kinds"] if each["kind"] == "email")
    assert (email["dropped"], email["expired"], email["failure_rate"]) == (5, 5, 0.25)
    later = reports.ReportOptions(
        drained=asked.drained, uses_database=False, compared=tmp_path / "a"
    )
    pairs = {each["kind"]: each["messages"] for each in self_compared(spark, later)["kinds"]}
    assert pairs == {**{each: [20, 20] for each in KINDS}, "email": [20, None]}


def self_compared(spark: Any, asked: reports.ReportOptions) -> Mapping[str, Any]:
    found: Mapping[str, Any] = reports.run(spark, asked, CONSOLE).figures["compared"]
    return found
