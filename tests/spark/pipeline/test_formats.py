"""Snapshots, and drains into Parquet, CSV, JSON and a table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import drains, replays, snapshots
from delayed_queue.spark.pipeline.console import sentence_of
from tests.spark.pipelines import CONSOLE
from tests.spark.support import with_jvm
from tests.support.sampling import sample

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]

# Texts that some formats change.
PAYLOADS: Final = (
    "plain", " spaced ", 'a,b;"c"', "line\nbreak\r\nand return", "\ttab", "ключ é", '\\ back \\"',
    "", "null", "0042", '{"a": "b\\"c"}',
)  # fmt: skip
READ: Final = {
    "csv": "read_csv(?, header = true, all_varchar = true, escape = '\"')",
    "json": "read_json(?, columns = {key: 'VARCHAR', payload: 'VARCHAR'})",
}


def fill() -> set[tuple[str, bytes, Any]]:
    notes = DelayedQueue("notes", codec="text")
    for n, text in enumerate(PAYLOADS):
        notes.offer_or_update(f"k{n}", text, headers={"n": 'a "b"'} if n % 2 else None)
    return stored()


def stored() -> set[tuple[str, bytes, Any]]:
    return {(each.key, bytes(each.payload), str(each.headers)) for each in Message.objects.all()}


def test_a_snapshot_comes_back_as_it_was(spark: Any, lake: str):
    before = fill()
    found = snapshots.run(spark, "notes|text", lake, CONSOLE)
    assert found.messages == len(PAYLOADS)
    Message.objects.all().delete()
    assert replays.run(spark, replays.ReplayOptions((found.path,)), CONSOLE).created == len(
        PAYLOADS
    )
    assert stored() == before


@pytest.mark.parametrize("form", sample(READ, "json"))
def test_another_engine_reads_what_was_drained(spark: Any, lake: str, form: str):
    fill()
    drains.run(spark, drains.DrainOptions("notes|text", to=lake, sink=form), CONSOLE, Event())
    assert not Message.objects.exists()
    sql = f"SELECT key, payload FROM {READ[form]}"  # noqa: S608
    found = duckdb.execute(sql, [f"{lake}/kind=notes|text/**/part-*.{form}"]).fetchall()
    assert {key: text or "" for key, text in found} == {
        f"k{n}": text for n, text in enumerate(PAYLOADS)
    }


@pytest.mark.parametrize("age", ["scheduled_at_initially", "diedAt"])
def test_a_column_without_a_value_has_no_type(spark: Any, tmp_path: Path, age: str):
    """pyarrow thus writes it to Parquet, where Spark takes it for a number."""
    began = datetime(2026, 5, 1, tzinfo=UTC)
    row = {"kind": "orders|json", "key": "k", "payload": b"1", age: began}
    if age == "diedAt":
        row = {"pKind": "orders|json", "pKey": "k", "payload": b"1", age: 1_777_593_600_000}
        row |= dict.fromkeys(("reason", "lastError", "firstError"))
    rows = pa.Table.from_pylist([{**row, "headers": None, "group": None}])
    assert pa.types.is_null(rows.schema.field("headers").type)
    pq.write_table(rows, tmp_path / "written.parquet")
    found = replays.run(spark, replays.ReplayOptions((str(tmp_path),)), CONSOLE)
    assert found.created == 1
    assert stored() == {("k", b"1", "None")}


def test_a_sink_that_spark_lacks_is_named_before_anything_is_leased(spark: Any, lake: str):
    fill()
    asked = drains.DrainOptions("notes|text", f"{lake}/progress", to=lake, sink="delta")
    with pytest.raises(Exception, match="delta") as caught:
        drains.run(spark, asked, CONSOLE, Event())
    assert sentence_of(caught.value) == "ClassNotFoundException: delta.DefaultSource"
    assert not Message.objects.filter(lease_id__isnull=False).exists()
    assert not list(Path(lake).rglob("part-*"))


def test_a_sink_of_tables_gets_the_kind_as_a_column(spark: Any, tmp_path: Path):
    """Here Spark's own in memory."""
    fill()
    asked = drains.DrainOptions(
        "notes|text", str(tmp_path / "checkpoint"), "", sink="memory",
        sink_options={"queryName": "drained"},
    )  # fmt: skip
    assert drains.run(spark, asked, CONSOLE, Event()).messages == len(PAYLOADS)
    assert not Message.objects.exists()
    rows = spark.table("drained").collect()
    assert {(row["kind"], row["payload"]) for row in rows} == {("notes|text", e) for e in PAYLOADS}


def test_a_table_needs_a_checkpoint():
    with pytest.raises(InvalidConfiguration, match="needs --checkpoint"):
        drains.DrainOptions("notes|text", to="lake.db.orders", sink="iceberg")
