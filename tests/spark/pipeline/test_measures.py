"""The counts of a report match those of DuckDB from the same data."""

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
from tests.spark.pipelines import CONSOLE
from tests.spark.support import with_jvm

pytestmark = with_jvm

BEGIN: Final = datetime(2026, 5, 1, 22, tzinfo=UTC)
KINDS: Final = ("orders|json", "mail|json", "push|json")


def drained(count: int = 600) -> pa.Table:
    """Messages of three kinds over three hours, late by 1 s to about 10 min."""
    rows = [
        {
            "kind": KINDS[n % 3], "key": f"k{n}", "attempts": 1 + (n % 13) * (n % 2),
            "headers": json.dumps({"campaign": "spring"}) if n % 5 else None,
            "created_at": BEGIN + timedelta(seconds=n * 17),
            "scheduled_at_initially": BEGIN + timedelta(seconds=n * 18),
            "drained_at": BEGIN + timedelta(seconds=n * 18 + 1 + n * n % 599),
        }
        for n in range(count)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows)


def write_letters(count: int = 40) -> None:
    """Letters of three causes, each with different values; some from before fingerprints."""
    reasons = ("no customer 'Alice {n}' in order {n}", "HTTP 503 for job {n}", "rejected")
    texts = [reasons[n % 3].format(n=n) for n in range(count)]
    DeadLetter.objects.bulk_create(
        DeadLetter(
            kind=KINDS[n % 2], key=f"d{n}", payload=b"{}", headers=None, attempts=5,
            reason=text, last_error=None, first_error=None,
            scheduled_at_initially=BEGIN, created_at=BEGIN,
            died_at=BEGIN + timedelta(days=1, seconds=n),
            fingerprint=fingerprint(text, None) if n % 4 else "",
        )
        for n, text in enumerate(texts)
    )  # fmt: skip


def test_counts_are_those_of_another_engine(queue: DelayedQueue, spark: Any, tmp_path: Path):
    """Drained files and the database's dead letters; and DuckDB's results for the facts."""
    pq.write_table(drained(), tmp_path / "drained.parquet")
    write_letters()
    asked = reports.ReportOptions(
        drained=(str(tmp_path / "drained.parquet"),), facts=str(tmp_path / "facts")
    )
    measured = reports.run(spark, asked, CONSOLE).figures
    check_counts(measured)
    check_reasons(measured)
    facts = f"read_parquet('{tmp_path}/facts/*.parquet')"
    assert ask(
        f"""SELECT headers->>'campaign' AS campaign, outcome, count(*), count(DISTINCT key)
        FROM {facts} GROUP BY ALL ORDER BY 3"""  # noqa: S608
    ) == [(None, "dead", 40, 40), (None, "done", 120, 120), ("spring", "done", 480, 480)]


def ask(sql: str, letters: pa.Table | None = None) -> list[tuple[Any, ...]]:
    """Query ``drained`` and ``letters`` with DuckDB."""
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


def check_reasons(measured: Mapping[str, Any]) -> None:
    """Letters of one cause are one row, without values."""
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
