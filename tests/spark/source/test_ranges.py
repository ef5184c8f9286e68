"""Reads of a range of ids, on PostgreSQL and without Spark (P1)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.db.sql import value_of
from delayed_queue.spark.database import APPLICATION, connect, fetch
from delayed_queue.spark.settings import TASKS
from delayed_queue.spark.source import reader as sampling
from delayed_queue.spark.source.large import read_large
from delayed_queue.spark.source.options import parse_options
from delayed_queue.spark.source.reader import BY_PAGES, QueueReader, selected
from delayed_queue.spark.source.schema import read_schema
from delayed_queue.spark.source.stream import LeasingReader
from delayed_queue.spark.store.archiving import STEADY_TEXT
from delayed_queue.spark.store.streaming import READ_RANGE
from tests.spark.leasing import fill, reader
from tests.spark.support import job, offer, rows
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("queue")

ALL = ReadMaxRows(100_000)
KEYS = [f"{each * 7919 % 10_007:05}" for each in range(5000)]


def test_each_page_is_visited_once(other: psycopg.Connection[Any]):
    """Tasks that write at the same time interleave over many pages."""
    offer(job(), [rows(KEYS, "1" * 100)])
    other.execute("ANALYZE delayed_queue")
    statement = selected(READ_RANGE, ["id", "payload"], [])
    with closing(connect()) as connection:
        connection.execute(BY_PAGES)
        first = value_of(fetch(connection, "SELECT min(id) FROM delayed_queue", {}))
        params = {"first": first, "last": first + 1000, "now": 0}
        plan = "\n".join(row[0] for row in fetch(connection, f"EXPLAIN {statement}", params))
        assert "Bitmap Heap Scan" in plan
        connection.rollback()
        assert fetch(connection, "SELECT current_setting('enable_indexscan')", {}) == [("on",)]


@pytest.mark.parametrize("driver", ["adbc", "psycopg"])
def test_each_driver_reads_in_the_transaction_of_the_statements_before(driver: str):
    offer(job(), [rows(KEYS)])
    schema = pa.schema([("key", pa.string()), ("zone", pa.string()), ("scan", pa.string())])
    statement = """
        SELECT
            "pKey"::text AS key,
            current_setting('TimeZone') AS zone,
            current_setting('enable_indexscan') AS scan
        FROM delayed_queue
        WHERE "pKey" < '05'
    """
    options = parse_options({"driver": driver})
    before = [BY_PAGES, STEADY_TEXT.text]
    batches = read_large(options, before, statement, schema)
    found = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(row["key"] for row in found) == sorted(key for key in KEYS if key < "05")
    assert {(row["zone"], row["scan"]) for row in found} == {("UTC", "off")}


@pytest.mark.parametrize("driver", ["adbc", "psycopg"])
def test_a_read_that_stops_early_leaves_no_connection(driver: str, other: psycopg.Connection[Any]):
    schema = pa.schema([("word", pa.string())])
    options = parse_options({"driver": driver})
    many = "SELECT repeat('x', 100) AS word FROM generate_series(1, 500000)"
    batches = read_large(options, [], many, schema)
    assert 0 < next(iter(batches)).num_rows < 500_000
    del batches
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    wait_until(lambda: other.execute(left, [APPLICATION]).fetchone() == (0,))


def outliers(queue: DelayedQueue, other: psycopg.Connection[Any], count: int) -> None:
    """One old message, then a jump of ten million ids, then the others."""
    fill(queue, 1)
    other.execute(
        "SELECT setval(seq, nextval(seq) + 10000000) "
        "FROM pg_get_serial_sequence('delayed_queue', 'id') AS seq"
    )
    queue.offer_batch([ScheduledMessage(f"n{each:05}", 1) for each in range(count - 1)])


def counted(source: Any, partitions: Sequence[InputPartition]) -> list[int]:
    return [sum(batch.num_rows for batch in source.read(each)) for each in partitions]


class TestSkew:
    """One old id must not put all others into one task."""

    @pytest.mark.parametrize(
        ("count", "least", "sizes"), [(2000, "10", [250] * 8), (50, "20", [25, 25])]
    )
    def test_a_lease_is_cut_by_its_messages_into_tasks_that_are_worth_it(
        self, queue: DelayedQueue, other: psycopg.Connection[Any], count: int, least: str,
        sizes: list[int],
    ):  # fmt: skip
        outliers(queue, other, count)
        source = reader(numPartitions="8", rowsPerTask=least)
        start = source.initialOffset()
        found = counted(source, source.partitions(start, source.latestOffset(start, ALL)))
        source.stop()
        assert found == sizes

    def test_a_table_is_cut_by_the_messages_of_the_kind(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ):
        outliers(queue, other, 2000)
        DelayedQueue("others").offer_batch([ScheduledMessage(f"o{n}", 1) for n in range(4000)])
        options = parse_options({"queue": "orders", "numPartitions": "8"})
        source = QueueReader(options, read_schema(options.kind))
        sizes = counted(source, source.partitions())
        assert (len(sizes), sum(sizes)) == (8, 2000)
        assert max(sizes) <= 1.1 * 2000 / 8

    def test_a_sampled_table_has_no_range_more(self, monkeypatch: pytest.MonkeyPatch):
        offer(job(), [rows(KEYS, "1" * 500)])
        monkeypatch.setattr(sampling, "_PAGES", 10)
        options = parse_options({"queue": "orders", "numPartitions": "2"})
        assert len(QueueReader(options, read_schema(options.kind)).partitions()) == 2

    def test_an_empty_lease_is_one_empty_task(self, queue: DelayedQueue, source: LeasingReader):
        fill(queue, 5)
        start = source.initialOffset()
        end = source.latestOffset(start, ALL)
        source.commit(end)
        assert counted(source, source.partitions(start, end)) == [0]


def test_a_read_has_three_tasks_for_each_that_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(TASKS, "16")
    assert parse_options({}).partitions == 48
    assert parse_options({"numPartitions": "5"}).partitions == 5
    monkeypatch.delenv(TASKS)
    assert parse_options({}).partitions == 8
