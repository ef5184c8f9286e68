"""The pipeline's commands on a session of Spark in this process."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue, RetryPolicy
from delayed_queue.exceptions import InvalidConfiguration, TooManyConnections
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import ArchiveManifest, DeadLetter, Message, PipelineReport
from delayed_queue.spark import doctor, starting
from delayed_queue.spark.jobs import archives, drains, imports, replays, reports, snapshots
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.jobs.counts import Counts
from delayed_queue.spark.jobs.handling import Handling
from delayed_queue.spark.jobs.inputs import Input
from delayed_queue.spark.jobs.records import Rules
from delayed_queue.spark.jobs.spreading import Spread
from delayed_queue.spark.jobs.tables import KNOWN
from delayed_queue.spark.settings import SparkSettings
from tests.processes import wait_until
from tests.spark.support import with_jvm

pytestmark = with_jvm

TARGETS = "tests.spark.pipeline_targets"
CONSOLE = Console(out=io.StringIO(), err=io.StringIO())
HOUR = 3_600_000


def lines(path: Path, records: list[Any]) -> str:
    """Write JSON lines; what is text already is written as it is."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def options(tmp_path: Path, *paths: str, **changes: Any) -> imports.ImportOptions:
    mapping = changes.pop("mapping", {})
    form = changes.pop("form", "jsonl")
    rules = Rules("orders", mapping=mapping, are_texts_json=form != "jsonl")
    return imports.ImportOptions(
        Input(paths, form, rules), quarantine=str(tmp_path / "quarantine"), **changes
    )


def schedules(connection: psycopg.Connection[Any]) -> list[int]:
    rows = connection.execute('SELECT "scheduledAt" FROM delayed_queue ORDER BY 1')
    return [row[0] for row in rows]


class TestImport:
    """P6."""

    def test_one_in_a_hundred_is_bad(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any
    ) -> None:
        records: list[Any] = [{"key": f"k{n}", "payload": {"n": n}} for n in range(1000)]
        records[50] = "{broken"
        for place in range(150, 1000, 100):
            records[place] = {"key": "", "payload": 1}
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
        assert stored.payload == {"n": 1}  # of repeated keys the first is offered
        self.check_quarantine(spark, report)
        again = imports.run(spark, options(tmp_path, path), CONSOLE)
        assert again.was_done
        assert again.parts == report.parts
        assert queue.stats().due == 989

    def check_quarantine(self, spark: Any, report: imports.ImportReport) -> None:
        rows = spark.read.parquet(report.quarantine).orderBy("line").collect()
        assert [row["line"] for row in rows] == [51, *range(151, 1001, 100)]
        assert rows[0]["record"] == "{broken"
        assert rows[0]["reasons"] == ["The line is not JSON (character 2)."]
        assert rows[1]["file"].endswith("in%20put.jsonl")

    def test_lines_are_right_across_blocks(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Spark cuts the files; the lines, and the times of a spread, go on over the cuts."""
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

    def test_csv_by_columns(self, queue: DelayedQueue, spark: Any, tmp_path: Path) -> None:
        path = tmp_path / "in.csv"
        text = '\ufeffid,amount,at\na,"1,5",2031-01-01T00:00:00Z\nb,2\nc,"3\n\nd,4,tomorrow\n'
        path.write_bytes(text.encode() + b"e\xff,1,\n")
        found = imports.run(
            spark,
            options(tmp_path, str(path), form="csv", mapping={"id": "key", "at": "schedule_at"}),
            CONSOLE,
        )
        assert (found.created, found.quarantined) == (1, 4)
        stored = queue.read("a")
        assert stored is not None
        assert stored.payload == {"amount": "1,5"}
        assert stored.scheduled_at == datetime(2031, 1, 1, tzinfo=UTC)
        assert [each["line"] for each in found.samples] == [3, 4, 6, 7]
        assert "not UTF-8" in found.samples[-1]["reasons"][0]

    def test_a_missing_column_is_said_before_anything_is_written(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table({"a": [1], "b": ["x"]}), path)
        asked = options(tmp_path, str(path), form="parquet", mapping={"order": "key"})
        with pytest.raises(InvalidConfiguration, match="no column 'order'; it has a, b"):
            imports.run(spark, asked, CONSOLE)
        assert queue.stats().due == 0
        assert not (tmp_path / "quarantine").exists()

    def test_parquet_of_all_types(self, queue: DelayedQueue, spark: Any, tmp_path: Path) -> None:
        path = tmp_path / "in.parquet"
        at = datetime(2031, 1, 1, tzinfo=UTC)
        table = pa.table(
            {
                "key": ["a", "b", None],
                "payload": ['{"n":1}', "[", "1"],
                "schedule_at": pa.array([at] * 3, pa.timestamp("us", tz="UTC")),
                "headers": ['{"h":"1"}', None, None],
            }
        )
        pq.write_table(table, path)
        found = imports.run(spark, options(tmp_path, str(path), form="parquet"), CONSOLE)
        assert (found.created, found.quarantined) == (1, 2)
        assert [each["line"] for each in found.samples] == [2, 3]
        stored = queue.read("a")
        assert stored is not None
        assert (stored.payload, stored.headers) == ({"n": 1}, {"h": "1"})
        assert stored.scheduled_at == at

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
        """Chunks are known again by what is in them: what was handled meanwhile stays away."""
        records = [{"key": f"k{n}", "payload": n} for n in range(200)]
        path = lines(tmp_path / "in.jsonl", records)
        asked = options(tmp_path, path, spread=Spread.of(over=timedelta(hours=1)))
        assert imports.run(spark, asked, CONSOLE).created == 200
        # As a driver leaves it that dies before its end.
        other.execute('DELETE FROM delayed_queue_offer_ledger WHERE "partition" = -1')
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" < 'k5'""")
        left = other.execute("SELECT count(*) FROM delayed_queue").fetchone()

        again = imports.run(spark, asked, CONSOLE)

        assert (again.created, again.was_done) == (200, False)
        assert other.execute("SELECT count(*) FROM delayed_queue").fetchone() == left

    def test_several_queues_in_one_input(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        records = [{"key": f"k{n}", "queue": f"q{n % 3}", "payload": n} for n in range(30)]
        path = lines(tmp_path / "in.jsonl", records)
        asked = options(tmp_path, path)
        rules = Rules(None)
        report = imports.run(
            spark, replace(asked, source=replace(asked.source, rules=rules)), CONSOLE
        )
        assert report.created == 30
        assert [DelayedQueue(f"q{n}").stats().due for n in range(3)] == [10, 10, 10]

    def test_a_target_is_given_the_rows_that_its_check_lets_through(
        self, known: str, spark: Any, tmp_path: Path
    ) -> None:
        records = [{"key": f"k{n}", "payload": {"amount": n}} for n in range(5)]
        path = lines(tmp_path / "in.jsonl", records)
        found = imports.run(spark, options(tmp_path, path, target=f"{TARGETS}:picky"), CONSOLE)
        assert (found.updated, found.quarantined) == (4, 1)
        assert found.reasons == (("The amount is not above 0.", 1),)

    def test_a_target_is_told_by_how_much_a_row_is_spread(
        self, known: str, spark: Any, tmp_path: Path
    ) -> None:
        path = lines(tmp_path / "in.jsonl", [{"key": f"k{n}", "payload": n} for n in range(5)])
        over = Spread.of(None, timedelta(hours=1), None)
        asked = options(tmp_path, path, target=f"{TARGETS}:spread", spread=over)
        assert imports.run(spark, asked, CONSOLE).created == 5
        assert imports.run(spark, replace(asked, spread=None), CONSOLE).ignored == 5

    def test_a_target_that_miscounts_is_found_out(
        self, known: str, spark: Any, tmp_path: Path
    ) -> None:
        path = lines(tmp_path / "in.jsonl", [{"key": "a", "payload": 1}])
        with pytest.raises(InvalidConfiguration, match="1 messages were given out and 0 were"):
            imports.run(spark, options(tmp_path, path, target=f"{TARGETS}:losing"), CONSOLE)


def test_a_session_that_is_open_is_taken_and_stays_open(known: str, spark: Any) -> None:
    with starting.session(SparkSettings(), CONSOLE, "again") as taken:
        assert taken.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def drain(spark: Any, tmp_path: Path, **changes: Any) -> drains.Drained:
    asked = drains.DrainOptions("orders|json", str(tmp_path / "checkpoint"), **changes)
    return drains.run(spark, asked, CONSOLE, threading.Event())


class TestDrain:
    """P7."""

    def test_to_parquet_by_kind_and_date(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        lake = str(tmp_path / "lake")
        for n in range(30):
            queue.offer_or_update(f"k{n}", {"n": n})
        queue.offer_or_update("later", 1, datetime(2031, 1, 1, tzinfo=UTC))
        found = drain(spark, tmp_path, to=lake, max_messages=20)
        assert (found.messages, found.batches) == (30, 2)
        assert queue.stats().due == queue.stats().leased == 0
        assert queue.contains_message("later")
        rows = spark.read.parquet(lake)
        assert {row["key"] for row in rows.collect()} == {f"k{n}" for n in range(30)}
        assert {"kind", "date", "drained_at", "attempts"} <= set(rows.columns)
        # Nothing is due any more: nothing is written, nothing is left under a lease.
        assert drain(spark, tmp_path, to=lake).messages == 0
        assert spark.read.parquet(lake).count() == 30

    def test_a_payload_that_is_no_text_is_kept_as_it_is(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: psycopg.Connection[Any]
    ) -> None:
        """It must not stop what comes after it, and comes back by a replay byte for byte."""
        lake = str(tmp_path / "lake")
        for key in ("a", "b", "c"):
            queue.offer_or_update(key, {"é": key})
        other.execute("""UPDATE delayed_queue SET payload = '\\xff00fe' WHERE "pKey" = 'b'""")
        before = {each.key: bytes(each.payload) for each in Message.objects.all()}
        assert drain(spark, tmp_path, to=lake).messages == 3
        assert dict(spark.read.parquet(lake).dtypes)["payload"] == "string"
        assert replays.run(spark, replays.ReplayOptions((lake,)), CONSOLE).counts.created == 3
        assert {each.key: bytes(each.payload) for each in Message.objects.all()} == before

    @pytest.mark.parametrize("name", ["answering", "answering_later"])
    def test_a_handler_is_judged_by_the_workers_rules(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: Any, name: str
    ) -> None:
        for key, payload in {
            "done": 1, "snoozed": "snooze", "failed": "fail", "rejected": "reject",
        }.items():  # fmt: skip
            queue.offer_or_update(key, payload)
        queue.offer_or_update("unreadable", 1)
        other.execute("""UPDATE delayed_queue SET payload = '{' WHERE "pKey" = 'unreadable'""")
        queue.offer_or_update("often", "fail")
        other.execute("""UPDATE delayed_queue SET attempts = 1 WHERE "pKey" = 'often'""")
        handling = Handling(f"{TARGETS}:{name}", "orders", retry=RetryPolicy.ladder("1h"))

        found = drain(spark, tmp_path, handling=handling)

        assert found.report() == {
            "kind": "orders|json", "messages": 6, "batches": 1, "done": 1, "retried": 1,
            "snoozed": 1, "dead": 3, "lost": 0,
        }  # fmt: skip
        letters = dict(DeadLetter.objects.values_list("key", "reason"))
        assert letters.keys() == {"rejected", "unreadable", "often"}
        assert letters["rejected"] == "no such order"
        assert letters["often"] == "attempts exhausted: ValueError"
        assert "cannot decode" in letters["unreadable"]
        left = {each.key: each for each in Message.objects.all()}
        assert left.keys() == {"snoozed", "failed"}
        assert (left["snoozed"].attempts, left["failed"].attempts) == (0, 1)
        assert "ValueError: broken" in (left["failed"].last_error or "")
        assert all(each.lease_id is None for each in left.values())

    def test_the_decorators_rules_win(
        self, transactional_db: None, known: str, spark: Any, tmp_path: Path
    ) -> None:
        DelayedQueue("orders").offer_or_update("a", "fail")
        handling = Handling(f"{TARGETS}:strict", "orders", retry=RetryPolicy.ladder("1h"))
        assert drain(spark, tmp_path, handling=handling).report()["dead"] == 1

    def test_a_handler_may_settle_by_itself(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        queue.offer_or_update("a", 1)
        handling = Handling(f"{TARGETS}:settling", "orders", lease_ms=HOUR)
        assert drain(spark, tmp_path, handling=handling, lease="1h").report()["lost"] == 1
        stored = queue.read("a")
        assert stored is not None
        assert stored.state == "scheduled"

    def test_a_message_that_kills_runs_out_of_attempts_and_takes_none_along(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Under one lease, which a repeated task has too, and a batch that comes again."""
        for n in range(20):
            queue.offer_or_update(f"k{n:02}", "die" if n == 7 else n)
        handling = Handling(f"{TARGETS}:deadly", "orders", retry=RetryPolicy.ladder("1s"))
        assert drain(spark, tmp_path, handling=handling).report()["dead"] == 1
        assert Message.objects.count() == 0
        letter = DeadLetter.objects.get()
        # Two deliveries, and a third that was not made any more.
        assert (letter.key, letter.attempts) == ("k07", 3)
        assert letter.reason == "attempts exhausted: no delivery ended with an answer"

    def test_a_handler_that_is_not_there_is_told_before_anything_is_leased(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        queue.offer_or_update("a", 1)
        with pytest.raises(InvalidConfiguration, match=f"'{TARGETS}:nobody' cannot be loaded"):
            drain(spark, tmp_path, handling=Handling(f"{TARGETS}:nobody", "orders"))
        assert queue.stats().due == 1

    def test_room_for_all_its_connections_is_looked_for_before_anything_is_leased(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.offer_or_update("a", 1)
        monkeypatch.setattr(drains, "CONNECTIONS_OF_TASK", 1000)
        with pytest.raises(Exception, match=r"TooManyConnections.*2000 tasks, 4 leases"):
            drain(spark, tmp_path, handling=Handling(f"{TARGETS}:answering", "orders"))
        assert queue.stats().due == 1


def letters(count: int, **values: Any) -> None:
    DeadLetter.objects.bulk_create(
        DeadLetter(
            kind="orders|json", key=f"k{n}", payload=json.dumps({"n": n}).encode(),
            headers={"h": str(n)} if n % 2 else None, attempts=3,
            reason="attempts exhausted: ValueError" if n % 3 else "rejected",
            last_error=None, first_error=None,
            scheduled_at_initially=datetime(2026, 1, 1, tzinfo=UTC),
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            died_at=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=n), **values,
        )
        for n in range(count)
    )  # fmt: skip


def archive(spark: Any, lake: str, **changes: Any) -> archives.Archived:
    cutoff = to_milliseconds(datetime(2026, 2, 1, tzinfo=UTC))
    asked = archives.ArchiveOptions((KNOWN["dead-letters"],), cutoff, lake, **changes)
    return archives.run(spark, asked, CONSOLE)[0]


def alter(part: Path) -> None:
    data = bytearray(part.read_bytes())
    data[8] ^= 1
    part.write_bytes(bytes(data))
    part.with_name(f".{part.name}.crc").unlink(missing_ok=True)


def remove(part: Path) -> None:
    part.unlink()


def add(part: Path) -> None:
    part.with_name("one-more.parquet").write_bytes(part.read_bytes())


def parquet_files(lake: str) -> list[Path]:
    return list(Path(lake).glob("*/archive=*/*.parquet"))


CUT_KEEPERS = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%SET holder = %'
"""
# A partition for each, so that Spark opens one when the one before has been read.
ONE_FILE_EACH = {
    "spark.sql.files.maxPartitionBytes": "4000000",
    "spark.sql.files.openCostInBytes": "4000000",
}


class TestArchiveAndReplay:
    """P8 and P10."""

    def test_a_replayed_archive_equals_the_original(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(100)
        DeadLetter.objects.create(
            kind="orders|json", key="young", payload=b"1", attempts=1, reason="rejected",
            scheduled_at_initially=datetime.now(UTC), created_at=datetime.now(UTC),
            died_at=datetime.now(UTC),
        )  # fmt: skip
        original = {
            each.key: (bytes(each.payload), each.headers)
            for each in DeadLetter.objects.exclude(key="young")
        }
        found = archive(spark, lake, rows_per_archive=60, rows_per_file=25, bite=7)
        assert (found.rows, found.deleted, found.changed, found.archives) == (100, 100, 0, 2)
        assert [each.key for each in DeadLetter.objects.all()] == ["young"]
        path = f"{lake}/delayed_queue_dead_letter"

        asked = replays.ReplayOptions((path,), spread=Spread.of(over=timedelta(hours=2)))
        replayed = replays.run(spark, asked, CONSOLE)

        assert replayed.counts == Counts(created=100)
        stored = {each.key: (bytes(each.payload), each.headers) for each in Message.objects.all()}
        assert stored == original
        spans = [each.scheduled_at - each.created_at for each in Message.objects.all()]
        # From the beginning of the replay, a moment before the first offer.
        assert timedelta(seconds=-30) < min(spans) < timedelta(minutes=20)
        assert timedelta(minutes=100) < max(spans) < timedelta(hours=2)
        queue.drop_all_messages("Yes, please, I know what I'm doing!")
        assert replays.run(spark, asked, CONSOLE).was_done
        assert Message.objects.count() == 0  # the very same replay changes nothing

    def test_replays_what_the_filters_choose_under_new_keys(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(9)
        archive(spark, lake)
        asked = replays.ReplayOptions(
            (f"{lake}/delayed_queue_dead_letter",),
            kinds=("orders|json",),
            since=datetime(2026, 1, 2, 0, 0, 2, tzinfo=UTC),
            until=datetime(2026, 1, 2, 0, 0, 8, tzinfo=UTC),
            error="ValueError",
            suffix=True,
            job="second",
        )
        assert replays.run(spark, replace(asked, is_dry_run=True), CONSOLE).chosen == 4
        assert Message.objects.count() == 0
        assert replays.run(spark, asked, CONSOLE).counts.created == 4
        keys = set(Message.objects.values_list("key", flat=True))
        assert keys == {f"k{n}~second" for n in (2, 4, 5, 7)}

    def test_a_letter_that_changed_since_stays_and_one_redriven_is_no_loss(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(10)
        publish = archives._Archive._publish

        def meddle(self: Any, manifest: Any) -> None:
            publish(self, manifest)
            DeadLetter.objects.filter(key="k3").update(reason="looked at")
            DeadLetter.objects.filter(key="k4").delete()
            monkeypatch.setattr(archives._Archive, "_publish", publish)

        monkeypatch.setattr(archives._Archive, "_publish", meddle)
        found = archive(spark, lake)
        # The changed one is archived again, as it is now.
        assert (found.archives, found.rows, found.deleted, found.changed) == (2, 11, 9, 1)
        assert DeadLetter.objects.count() == 0

    @pytest.mark.parametrize("how", [alter, remove, add])
    def test_files_that_are_not_those_of_the_manifest_delete_nothing(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch,
        how: Callable[[Path], None],
    ) -> None:  # fmt: skip
        letters(10)
        publish = archives._Archive._publish

        def damage(self: Any, manifest: Any) -> None:
            publish(self, manifest)
            how(next(Path(manifest.path).glob("*.parquet")))

        monkeypatch.setattr(archives._Archive, "_publish", damage)
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)
        monkeypatch.undo()
        # Nor does the next command believe them.
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)
        assert DeadLetter.objects.count() == 10

    def test_a_file_that_vanishes_while_rows_are_deleted_keeps_its_rows(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(30)
        vanished: list[int] = []
        delete = archives._Archive._delete

        def and_vanish(self: Any, keys: list[str], digests: list[str]) -> int:
            if not vanished:
                of = {each: pq.read_table(each)["id"].to_pylist() for each in parquet_files(lake)}
                part = next(each for each in of if not {*map(str, of[each])} & {*keys})
                vanished.extend(of[part])
                part.unlink()
            return delete(self, keys, digests)

        monkeypatch.setattr(archives._Archive, "_delete", and_vanish)
        before = {name: spark.conf.get(name) for name in ONE_FILE_EACH}
        for name, value in ONE_FILE_EACH.items():
            spark.conf.set(name, value)
        try:
            with pytest.raises(Exception, match=r"(?i)not exist"):
                archive(spark, lake, rows_per_file=10, bite=10)
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)
        left = set(DeadLetter.objects.values_list("id", flat=True))
        assert len(vanished) == 10
        assert left >= set(vanished)
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)

    def test_a_directory_of_another_database_is_neither_taken_nor_replaced(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(5)
        archive(spark, lake)
        (mine,) = ArchiveManifest.objects.all()
        directory = Path(lake) / mine.source
        foreign = directory / f"archive={mine.pk + 1:08d}"
        (directory / f"archive={mine.pk:08d}").rename(foreign)
        letters(5)
        for _ in range(2):
            with pytest.raises(InvalidConfiguration, match="is there already"):
                archive(spark, lake)
        assert DeadLetter.objects.count() == 5
        foreign.rename(directory / "elsewhere")
        assert archive(spark, lake).deleted == 5

    def test_a_connection_that_is_cut_does_not_end_its_keeping(
        self, queue: DelayedQueue, spark: Any, lake: str, other: psycopg.Connection[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        letters(3)
        publish = archives._Archive._publish

        def held_until() -> int:
            rows = other.execute('SELECT "heldUntil" FROM delayed_queue_archive').fetchall()
            return int(rows[0][0])

        def cut(self: Any, manifest: Any) -> None:
            other.execute(CUT_KEEPERS)
            before = held_until()
            wait_until(lambda: held_until() > before)
            publish(self, manifest)

        monkeypatch.setattr(archives._Archive, "_publish", cut)
        assert archive(spark, lake, lease_ms=900).deleted == 3

    def test_room_for_its_connections_is_looked_for_before_anything_is_planned(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(1)
        monkeypatch.setattr(archives, "CONNECTIONS_OF_DRIVER", 1000)
        with pytest.raises(TooManyConnections, match="2 tasks, 1000 leases"):
            archive(spark, lake)
        assert not ArchiveManifest.objects.exists()

    def test_tables_that_cannot_be_archived(self, queue: DelayedQueue, spark: Any) -> None:
        for table, said in (
            (replace(KNOWN["dead-letters"], source="nothing"), "There is no table"),
            (replace(KNOWN["dead-letters"], age="death"), "no column 'death'"),
            (replace(KNOWN["dead-letters"], key="pKey"), "not the primary key"),
            (replace(KNOWN["dead-letters"], age="reason"), "an age is a timestamp"),
        ):
            asked = archives.ArchiveOptions((table,), 0, "nowhere")
            with pytest.raises(InvalidConfiguration, match=said):
                archives.run(spark, asked, CONSOLE)


class TestSnapshot:
    """P11."""

    def test_is_of_one_moment(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(50):
            queue.offer_or_update(f"k{n}", {"n": n})
        DelayedQueue("mail").offer_or_update("m", 1)
        moment = snapshots._moment

        @contextmanager
        def and_then() -> Iterator[Any]:
            with moment() as found:
                queue.drop_all_messages("Yes, please, I know what I'm doing!")
                queue.offer_or_update("late", 1)
                yield found

        monkeypatch.setattr(snapshots, "_moment", and_then)
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
        """Ten messages that took 1 to 10 s, 1 s of it before they were due; two letters."""
        begin = datetime(2026, 5, 1, 12, tzinfo=UTC)
        rows = [
            {
                "kind": "orders|json", "created_at": begin,
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
        # The two letters took a day: nearest ranks 6, 11, 12 and 12 of 12.
        assert kind["latency_seconds"] == {
            "p50": 6.0, "p90": 86_400.0, "p95": 86_401.0, "p99": 86_401.0, "max": 86_401.0,
        }  # fmt: skip
        assert kind["lateness_seconds"]["p50"] == 5.0
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
        assert any("orders|json" in line for line in report.lines())

    def test_from_files_of_ones_own_alone(self, spark: Any, tmp_path: Path) -> None:
        begin = datetime(2026, 5, 1, 12, tzinfo=UTC)
        table = pa.table(
            {
                "channel": ["email", "email"], "born": [begin] * 2,
                "ended": [begin + timedelta(seconds=3), None], "status": ["DELIVERED", "FAILED"],
            }
        )  # fmt: skip
        pq.write_table(table, tmp_path / "events.parquet")
        asked = reports.ReportOptions(
            events=(str(tmp_path / "events.parquet"),),
            mapping={"kind": "channel", "created_at": "born", "finished_at": "ended",
                     "outcome": "status"},
            uses_database=False,
        )  # fmt: skip
        (kind,) = reports.run(spark, asked, CONSOLE).figures["kinds"]
        assert (kind["kind"], kind["done"], kind["latency_seconds"]["max"]) == ("email", 1, 3.0)
        assert kind["lateness_seconds"] is None

    def test_only_the_last_reports_are_kept(
        self, queue: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reports, "KEPT_REPORTS", 3)
        for n in range(5):
            reports._save(reports.Report({"n": n}, {}))
        found = PipelineReport.objects.order_by("id").values_list("figures", flat=True)
        assert list(found) == [{"n": 2}, {"n": 3}, {"n": 4}]


class TestDoctor:
    """P11."""

    def test_executors_see_what_the_driver_sees(self, queue: DelayedQueue, spark: Any) -> None:
        rows = doctor._from_executors(spark)
        assert len(rows) >= 2
        assert [each.level for each in doctor.executors(rows)] == [doctor.OK]
        found = doctor.database()
        assert (found.level, found.found.partition(" ")[0]) == (doctor.OK, "PostgreSQL")

    def test_tables_that_are_missing_are_named(
        self, queue: DelayedQueue, spark: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dsn = f"{os.environ['DELAYED_QUEUE_DSN']} options='-c search_path=pg_catalog'"
        monkeypatch.setenv("DELAYED_QUEUE_DSN", dsn)
        found = doctor.database()
        assert (found.level, found.advice) == (doctor.FAIL, "Run manage.py migrate.")
        assert "without delayed_queue," in found.found
