"""``snapshot`` and ``report`` on a session of Spark in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.spark.models import PipelineReport
from delayed_queue.spark.pipeline import reports, snapshots
from delayed_queue.spark.source.reader import consistent_snapshot
from tests.spark.pipelines import CONSOLE, letters
from tests.spark.support import with_jvm

pytestmark = with_jvm


class TestSnapshot:
    """P11."""

    def test_is_of_one_moment(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(50):
            queue.offer_or_update(f"k{n}", {"n": n})
        DelayedQueue("mail").offer_or_update("m", 1)

        @contextmanager
        def and_then() -> Iterator[str]:
            with consistent_snapshot() as name:
                queue.drop_all_messages("Yes, please, I know what I'm doing!")
                queue.offer_or_update("late", 1)
                yield name

        monkeypatch.setattr(snapshots, "consistent_snapshot", and_then)
        found = snapshots.run(spark, None, lake, CONSOLE)
        assert found.messages == 51
        rows = spark.read.parquet(found.path).collect()
        assert {row["key"] for row in rows} == {f"k{n}" for n in range(50)} | {"m"}
        assert [each.name for each in Path(lake).iterdir()] == [Path(found.path).name]
        monkeypatch.undo()


class TestReport:
    """P9."""

    def test_figures_are_those_of_a_hand(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Ten messages of 1 to 10 s, 1 s of it before their due time; two letters."""
        begin = datetime(2026, 5, 1, 12, tzinfo=UTC)
        rows = [
            {
                "kind": "orders|json", "key": f"k{n}", "headers": None, "created_at": begin,
                "scheduled_at_initially": begin + timedelta(seconds=1),
                "drained_at": begin + timedelta(seconds=n),
                "attempts": 2 if n > 8 else 1,
            }
            for n in range(1, 11)
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "drained.parquet")
        letters(2)
        queue.offer_or_update("due", 1)
        for hours in (0.5, 2.5, 100):
            queue.offer_or_update(f"in {hours}", 1, delay=timedelta(hours=hours))

        asked = reports.ReportOptions(drained=(str(tmp_path / "drained.parquet"),), out=tmp_path)
        report = reports.run(spark, asked, CONSOLE)

        (kind,) = report.figures["kinds"]
        assert (kind["messages"], kind["done"], kind["dead"], kind["redelivered"]) == (12, 10, 2, 4)
        assert kind["failure_rate"] == pytest.approx(2 / 12)
        assert kind["redelivery_rate"] == pytest.approx(4 / 12)
        # Nearest ranks 5, 9, 10 and 10 of 10; the two letters took a day, and do not count.
        assert kind["latency_seconds"] == {
            "p50": 5.0, "p90": 9.0, "p95": 10.0, "p99": 10.0, "max": 10.0,
        }  # fmt: skip
        assert kind["lateness_seconds"]["p50"] == 4.0
        assert report.figures["throughput"] == [
            {"kind": "orders|json", "minute": "2026-05-01T12:00:00+00:00", "messages": 10}
        ]
        assert {each["reason"]: each["messages"] for each in report.figures["reasons"]} == {
            "rejected": 1, "attempts exhausted: ValueError": 1,
        }  # fmt: skip
        (backlog,) = report.figures["backlog"]
        assert (backlog["due"], backlog["later"]) == (1, 1)
        assert [n for n, count in enumerate(backlog["hours"]) if count] == [0, 2]
        self.check_kept(report, tmp_path)

    def check_kept(self, report: reports.Report, out: Path) -> None:
        kept = PipelineReport.objects.get()
        assert kept.figures == report.figures == json.loads((out / "report.json").read_text())
        assert set(kept.plots) == {"lateness", "throughput", "backlog", "reasons"}
        assert (out / "lateness.png").read_bytes().startswith(b"\x89PNG")
        text = (out / "report.md").read_text()
        assert "| orders\\|json |" in text
        assert "![reasons](reasons.png)" in text

    def test_letters_of_one_cause_are_one_row_without_their_values(
        self, queue: DelayedQueue, spark: Any
    ) -> None:
        """Also those from before fingerprints."""
        letters(4)
        for n, letter in enumerate(DeadLetter.objects.all()):
            text = f"no customer 'Alice {n}' in order {n}"
            known = fingerprint(text, None) if n % 2 else ""
            DeadLetter.objects.filter(pk=letter.pk).update(reason=text, fingerprint=known)
        (reason,) = reports.run(spark, reports.ReportOptions(), CONSOLE).figures["reasons"]
        assert (reason["reason"], reason["messages"]) == ("no customer '…' in order #", 4)

    def test_of_an_empty_database_nothing_has_ended(self, queue: DelayedQueue, spark: Any) -> None:
        for _ in range(2):
            report = reports.run(spark, reports.ReportOptions(), CONSOLE)
        assert report.figures["kinds"] == report.figures["backlog"] == []
        assert report.markdown().endswith("Nothing has ended.")
        # The last one takes the place of the one before.
        assert PipelineReport.objects.get().figures == report.figures
