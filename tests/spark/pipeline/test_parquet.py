"""``import`` of Parquet: repeated keys, many queues, and a repetition after a crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import imports, repeats
from delayed_queue.spark.pipeline.records import Rules
from tests.spark.pipelines import CONSOLE, options
from tests.spark.support import with_jvm

pytestmark = with_jvm


class TestImport:
    """Files of Parquet with the codec bytes."""

    def asked(self, tmp_path: Path, keys: list[Any], **changes: Any) -> imports.ImportOptions:
        payloads = [str(number).encode() for number in range(len(keys))]
        columns = {"key": pa.array(keys, pa.string()), "payload": pa.array(payloads)}
        # Several row groups, and so several tasks.
        pq.write_table(pa.table(columns), tmp_path / "in.parquet", row_group_size=100)
        asked = options(tmp_path, str(tmp_path / "in.parquet"), form="parquet", **changes)
        rules = replace(asked.source.rules, codec="bytes")
        return replace(asked, source=replace(asked.source, rules=rules))

    @pytest.mark.parametrize("most", [1000, 1])
    @pytest.mark.parametrize(("mode", "winner"), [("offer", b"3"), ("upsert", b"401")])
    def test_of_repeated_keys_one_is_offered(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        mode: str, winner: bytes, most: int,
    ) -> None:  # fmt: skip
        """Also if more of them repeat than each task receives."""
        monkeypatch.setattr(repeats, "MOST_REPEATED", most)
        keys = [f"k{n}" for n in range(400)]
        found = imports.run(
            spark, self.asked(tmp_path, [*keys, "k7", "k3", "k7"], mode=mode), CONSOLE
        )
        assert (found.input, found.created, found.duplicates) == (403, 400, 3)
        assert Message.objects.count() == 400
        stored = bytes(Message.objects.get(key="k3").payload)
        assert stored == winner

    @pytest.mark.parametrize("codec", ["bytes", "json"])
    def test_thousands_of_queues_are_one_job(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: psycopg.Connection[Any],
        codec: str,
    ) -> None:  # fmt: skip
        path, queues = str(tmp_path / "in.parquet"), 2_000
        # Three records for each queue; the first two share a key, the same in all queues.
        columns = {"key": [f"k{n // 2}" for n in range(3) for _ in range(queues)],
                   "queue": [f"tenant-{n}" for n in range(queues)] * 3,
                   "payload": [b"1"] * queues * 3}  # fmt: skip
        pq.write_table(pa.table(columns), path)
        asked = options(tmp_path, path, form="parquet", job="tenants")
        rules = Rules(None, codec)
        found = imports.run(
            spark, replace(asked, source=replace(asked.source, rules=rules)), CONSOLE
        )
        assert (found.created, found.duplicates) == (queues * 2, queues)
        of_files = "SELECT queue || ?, count(DISTINCT key) FROM read_parquet(?) GROUP BY queue"
        of_table = 'SELECT "pKind", count(*) FROM delayed_queue GROUP BY "pKind"'
        assert set(other.execute(of_table)) == set(
            duckdb.execute(of_files, [f"|{codec}", path]).fetchall()
        )
        jobs = other.execute("SELECT DISTINCT job FROM delayed_queue_offer_ledger").fetchall()
        assert jobs == [(found.job,)]

    @pytest.mark.parametrize("most", [10**6, 10])
    def test_repeated_after_a_crash_on_another_cluster_it_offers_what_is_missing(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        other: Any, most: int,
    ) -> None:  # fmt: skip
        """Chunks depend on the files alone, even if a partition is split anew."""
        monkeypatch.setattr(imports, "MOST_OF_PARTITION", most)
        asked = self.asked(tmp_path, [f"k{n}" for n in range(500)])
        assert imports.run(spark, asked, CONSOLE).created == 500
        other.execute('DELETE FROM delayed_queue_offer_ledger WHERE "partition" = -1')
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" < 'k3'""")
        left = Message.objects.count()
        spark.conf.set("spark.sql.leafNodeDefaultParallelism", "7")
        try:
            again = imports.run(spark, asked, CONSOLE)
        finally:
            spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
        assert (again.created, again.was_done) == (500, False)
        assert Message.objects.count() == left < 500
