"""``import`` on a session of Spark in this process."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Message
from delayed_queue.spark import counts
from delayed_queue.spark.pipeline import imports
from delayed_queue.spark.pipeline.offers import Offered, Spread
from delayed_queue.spark.pipeline.records import Rules
from tests.spark.pipelines import CONSOLE, lines, options, schedules
from tests.spark.support import with_jvm

pytestmark = with_jvm


class TestImport:
    """P6."""

    def test_one_in_a_hundred_is_bad(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any
    ) -> None:
        records: list[Any] = [{"key": f"k{n}", "payload": {"n": n}} for n in range(1000)]
        records[50] = "{broken"
        for place in range(150, 1000, 100):
            records[place] = {"key": "", "payload": 1}
        records[150] = {"key": "a\x00b", "payload": 1}
        records[7] = ""  # a blank line is no record, and still a line
        records += [{"key": "k1", "payload": "again"}]
        path = lines(tmp_path / "in put.jsonl", records)

        report = imports.run(spark, options(tmp_path, path), CONSOLE)

        assert report.input == 1000
        assert report.parts == {
            "created": 989, "updated": 0, "ignored": 0, "duplicates": 1, "quarantined": 10,
        }  # fmt: skip
        assert sum(report.parts.values()) == report.input
        assert queue.stats().due == 989
        stored = queue.read("k1")
        assert stored is not None
        assert stored.payload == {"n": 1}  # for repeated keys the first is offered
        self.check_quarantine(spark, report)
        # The key is stored as far as PostgreSQL can store it.
        assert [each["key"] for each in report.samples][1] == "a\ufffdb"
        again = imports.run(spark, options(tmp_path, path), CONSOLE)
        assert again == replace(report, was_done=True)
        assert queue.stats().due == 989

    def check_quarantine(self, spark: Any, report: Offered) -> None:
        rows = spark.read.parquet(report.quarantine).orderBy("line").collect()
        assert [row["line"] for row in rows] == [51, *range(151, 1001, 100)]
        assert rows[0]["record"] == "{broken"
        assert rows[0]["reasons"] == ["The line is not JSON (character 2)."]
        assert rows[1]["file"].endswith("in%20put.jsonl")
        assert [row["key"] for row in rows[:3]] == [None, "a\ufffdb", ""]

    def test_lines_are_right_across_blocks(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Spark splits the files; line numbers and spread times continue across splits."""
        texts = [json.dumps({"key": f"k{n:05}", "payload": n}) for n in range(4000)]
        texts[3210] = "bad"
        path = lines(tmp_path / "in.jsonl", texts)
        before = spark.conf.get("spark.sql.files.maxPartitionBytes")
        spark.conf.set("spark.sql.files.maxPartitionBytes", "20000")
        try:
            spread = Spread.of(datetime(2031, 1, 1, tzinfo=UTC), per_second=10)
            report = imports.run(spark, options(tmp_path, path, spread=spread), CONSOLE)
        finally:
            spark.conf.set("spark.sql.files.maxPartitionBytes", before)
        assert [each["line"] for each in report.samples] == [3211]
        start = to_milliseconds(datetime(2031, 1, 1, tzinfo=UTC))
        times = dict(Message.objects.values_list("key", "scheduled_at"))
        found = {key: to_milliseconds(at) - start for key, at in times.items()}
        assert found == {f"k{n:05}": n * 100 for n in range(4000) if n != 3210}

    def test_too_many_bad_ones_stop_it_before_the_first_offer(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        path = lines(tmp_path / "in.jsonl", [{"key": "a", "payload": 1}, "bad"])
        with pytest.raises(InvalidConfiguration, match=r"1 of 2 records are bad.*nothing was"):
            imports.run(spark, options(tmp_path, path, max_bad_ratio=0.4), CONSOLE)
        assert queue.stats().due == 0
        assert imports.run(spark, options(tmp_path, path, max_bad_ratio=0.5), CONSOLE).created == 1

    def test_a_dry_run_writes_nothing(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        records = [{"key": "a", "payload": 1}, {"key": "a", "payload": 2}, "bad"]
        path = lines(tmp_path / "in.jsonl", records)
        found = imports.run(spark, options(tmp_path, path, is_dry_run=True), CONSOLE)
        assert (found.input, found.duplicates, found.quarantined) == (3, 1, 1)
        assert "would be offered      1" in found.lines()
        assert queue.stats().due == 0
        assert not (tmp_path / "quarantine").exists()

    def test_an_upsert_takes_the_last_and_updates(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any
    ) -> None:
        queue.offer_or_update("a", "old", datetime(2031, 1, 1, tzinfo=UTC))
        queue.offer_or_update("b", "same", datetime(2031, 1, 1, tzinfo=UTC))
        at = "2031-01-01T00:00:00+00:00"
        records = [
            {"key": "a", "payload": "new", "schedule_at": at},
            {"key": "b", "payload": "same", "schedule_at": at},
            {"key": "c", "payload": "first", "schedule_at": at},
            {"key": "c", "payload": "last", "schedule_at": at},
        ]
        path = lines(tmp_path / "in.jsonl", records)
        found = imports.run(spark, options(tmp_path, path, mode="upsert"), CONSOLE)
        assert (found.created, found.updated, found.ignored, found.duplicates) == (1, 1, 1, 1)
        stored = {each.key: bytes(each.payload) for each in Message.objects.all()}
        assert stored == {"a": b'"new"', "b": b'"same"', "c": b'"last"'}

    def test_spread_from_now_on_in_the_order_of_the_input(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any
    ) -> None:
        records: list[Any] = [{"key": f"k{n}", "payload": n} for n in range(100)]
        records.append({"key": "own", "payload": 1, "schedule_at": "2031-01-01T00:00:00Z"})
        path = lines(tmp_path / "in.jsonl", records)
        spread = Spread.of(over=timedelta(seconds=1010))
        imports.run(spark, options(tmp_path, path, spread=spread), CONSOLE)
        times = schedules(other)
        assert times[-1] == to_milliseconds(datetime(2031, 1, 1, tzinfo=UTC))
        assert [at - times[0] for at in times[:-1]] == [n * 10_000 for n in range(100)]

    def test_repeated_after_a_crash_it_offers_only_what_is_missing(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any
    ) -> None:
        """The content identifies a chunk: messages handled since are not offered again."""
        records = [{"key": f"k{n}", "payload": n} for n in range(200)]
        path = lines(tmp_path / "in.jsonl", records)
        asked = options(tmp_path, path, spread=Spread.of(over=timedelta(hours=1)))
        assert imports.run(spark, asked, CONSOLE).created == 200
        # As left by a driver that dies before its end.
        other.execute('DELETE FROM delayed_queue_offer_ledger WHERE "partition" = -1')
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" < 'k5'""")
        left = other.execute("SELECT count(*) FROM delayed_queue").fetchone()

        again = imports.run(spark, asked, CONSOLE)

        assert (again.created, again.was_done) == (200, False)
        assert other.execute("SELECT count(*) FROM delayed_queue").fetchone() == left

    def test_several_queues_in_one_input(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        records = [
            {"key": f"k{n}", "queue": f"q{n % 3}", "payload": n, "group": f"g{n % 2}"}
            for n in range(30)
        ]
        path = lines(tmp_path / "in.jsonl", records)
        asked = options(tmp_path, path)
        rules = Rules(None)
        report = imports.run(
            spark, replace(asked, source=replace(asked.source, rules=rules)), CONSOLE
        )
        assert report.created == 30
        assert [DelayedQueue(f"q{n}").stats().due for n in range(3)] == [10, 10, 10]
        assert Message.objects.filter(group="g1").count() == 15
        # In one job for any number of queues.
        assert counts(report.job).offered == 30
