"""Every hour of ten years, repeated ones included, in every session zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from zoneinfo import available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark.pipeline.records import Checker, Rules
from delayed_queue.spark.source.arrow import converted
from delayed_queue.spark.source.rules import offers_of

BERLIN: Final = "Europe/Berlin"
SECOND: Final = 1_000_000
# Within an hour and within a millisecond, so that flooring and the zone both matter.
FIRST: Final = datetime(2020, 1, 1, 0, 30, 0, 1_999, tzinfo=UTC)
HOURS: Final = 10 * 8_766
# 02:30 in Berlin, before and after the clocks go back; past, so due.
TWICE: Final = [datetime(2025, 10, 26, hour, 30, 0, 1_999, tzinfo=UTC) for hour in (0, 1)]


def hours(zone: str) -> pa.Array:
    first = int(FIRST.timestamp()) * SECOND + FIRST.microsecond
    offsets = pc.multiply(pa.array(range(HOURS), pa.int64()), 3_600 * SECOND)
    return pc.add(offsets, first).cast(pa.timestamp("us", zone))


def floored(instants: pa.Array) -> pa.Array:
    """All of these are after 1970, where division floors."""
    return pc.divide(instants.cast(pa.int64()), 1_000)


def due_of(offers: pa.Table) -> pa.Array:
    return offers["schedule_at"].combine_chunks()


def batch(instants: pa.Array) -> pa.RecordBatch:
    keys = pa.array(map(str, range(len(instants))), pa.string())
    return pa.RecordBatch.from_pydict(
        {"key": keys, "payload": keys.cast(pa.binary()), "schedule_at": instants}
    )


def beside_changes(instants: pa.Array) -> pa.Array:
    """Return the hours on both sides of each change of the zone's offset."""
    local = pc.local_timestamp(instants).cast(pa.int64()).to_numpy()
    changes = np.flatnonzero(np.diff(local - instants.cast(pa.int64()).to_numpy()))
    around = {int(each) + by for each in changes for by in range(-1, 3)}
    return instants.take(pa.array(sorted(around), pa.int64()))


@given(st.sampled_from(sorted(available_timezones())))
@example(BERLIN)
@example("Australia/Lord_Howe")
def test_every_hour_is_the_same_instant_in_every_zone(zone: str):
    instants = hours(zone)
    wanted = floored(instants)
    written = offers_of(pa.Table.from_batches([batch(instants)]), "bytes")
    assert due_of(written).equals(wanted)

    checker = Checker(Rules("orders", codec="bytes"))
    assert due_of(checker.check(batch(instants))[0]).equals(wanted)
    # Record by record, as an import checks them, around the zone's clock changes.
    some = beside_changes(instants)
    assert due_of(checker.check(batch(some).to_pylist())[0]).equals(floored(some))

    stored = pa.RecordBatch.from_pydict({"scheduled_at": wanted})
    schema = StructType().add("scheduled_at", "timestamp")
    [streamed] = converted([stored], schema)
    assert floored(streamed.column(0)).equals(wanted)


@pytest.fixture
def in_berlin(spark: Any) -> Iterator[Any]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", BERLIN)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def due() -> list[datetime]:
    return list(Message.objects.order_by("scheduled_at").values_list("scheduled_at", flat=True))


def instants_of(frame: Any) -> list[int]:
    rows = frame.selectExpr("unix_millis(due_at) AS at").orderBy("at").collect()
    return [row["at"] for row in rows]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The two instants in a file of Parquet."""
    rows = batch(pa.array(TWICE, pa.timestamp("us", "UTC")))
    pq.write_table(pa.Table.from_batches([rows]), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


WANTED: Final = [each.replace(microsecond=1_000) for each in TWICE]


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestASessionWhoseClocksRepeatAnHour:
    def test_write(self, in_berlin: Any, queue: DelayedQueue, path: str):
        frame = in_berlin.read.parquet(path)
        frame.write.format("delayed_queue").option("queue", "orders").mode("append").save()
        assert due() == WANTED
