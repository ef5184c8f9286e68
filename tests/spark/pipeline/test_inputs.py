"""Input files: many, split into blocks, with several schemas and line breaks (P6)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import imports, replays
from delayed_queue.spark.pipeline.offers import Spread
from delayed_queue.spark.settings import VARIABLE
from tests.spark.pipelines import CONSOLE, archive, letters, lines, options, schedules
from tests.spark.support import with_jvm

pytestmark = with_jvm


@contextmanager
def set_to(spark: Any, **conf: str) -> Iterator[None]:
    names = {name: f"spark.sql.{name.replace('__', '.')}" for name in conf}
    before = {name: spark.conf.get(names[name]) for name in conf}
    for name, value in conf.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(names[name], value)


def payloads() -> dict[str, Any]:
    queue = DelayedQueue("orders")
    found = {key: queue.read(key) for key in Message.objects.values_list("key", flat=True)}
    return {key: None if each is None else each.payload for key, each in found.items()}


class TestCsv:
    @pytest.mark.long
    def test_line_breaks_in_cells_across_the_cuts_of_spark(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Text in a cell that resembles a record never becomes one."""
        notes = {f"k{n:03}": f"dear {n},\nfalse{n},trap\n\nyours" for n in range(60)}
        for name, keys in (("a", list(notes)[:40]), ("b", list(notes)[40:])):
            with (tmp_path / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\r\n")
                writer.writerow(["key", "note"])
                writer.writerows((key, notes[key]) for key in keys)
        with (tmp_path / "b.csv").open("a") as file:
            file.write("bad\r\n")
        with set_to(spark, files__maxPartitionBytes="600", files__openCostInBytes="600"):
            found = imports.run(spark, options(tmp_path, f"{tmp_path}/*.csv", form="csv"), CONSOLE)
            assert spark.conf.get("spark.sql.files.openCostInBytes") == "600"
        assert (found.created, found.quarantined, found.input) == (60, 1, 61)
        assert payloads() == {key: {"note": note} for key, note in notes.items()}
        assert [each["line"] for each in found.samples] == [1 + 20 * 4 + 1]


class TestFiles:
    def test_of_a_key_in_several_files_the_first_file_wins(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        for name in ("c", "a", "b"):
            records = [
                {"key": key, "payload": name, "schedule_at": "2031-01-01T00:00:00Z"}
                for key in ("same", name)
            ]
            lines(tmp_path / f"{name}.jsonl", records)
        asked = options(tmp_path, f"{tmp_path}/*.jsonl")
        found = imports.run(spark, asked, CONSOLE)
        assert (found.created, found.duplicates) == (4, 2)
        assert payloads() == {"same": "a", "a": "a", "b": "b", "c": "c"}
        again = imports.run(spark, replace(asked, mode="upsert"), CONSOLE)
        assert (again.updated, again.ignored, again.duplicates) == (1, 3, 2)
        assert payloads()["same"] == "c"

    def test_files_that_spark_passes_over_are_refused(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        """Otherwise the import would succeed without a row."""
        seen = lines(tmp_path / "seen.jsonl", [{"key": "a", "payload": 1}])
        hidden = lines(tmp_path / "_hidden.jsonl", [{"key": "b", "payload": 1}])
        (tmp_path / "empty").mkdir()
        for paths in ([seen, hidden], [hidden], [str(tmp_path / "empty")]):
            with pytest.raises(InvalidConfiguration, match=r"no file to read at .*(hidden|empty)"):
                imports.run(spark, options(tmp_path, *paths), CONSOLE)
        assert queue.stats().due == 0


def test_a_database_that_is_away_is_told_before_anything_is_read(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "host=127.0.0.1 port=1 dbname=x password=geheim")
    with pytest.raises(ResourceUnavailable, match=r"'x' at 127\.0\.0\.1:1 cannot be") as told:
        imports.run(spark, options(tmp_path, str(tmp_path / "nothing.jsonl")), CONSOLE)
    assert "geheim" not in str(told.value)
    with pytest.raises(ResourceUnavailable):
        replays.run(spark, replays.ReplayOptions((str(tmp_path),)), CONSOLE)


class TestRepeated:
    """After a crash: as left by a driver that dies before its end."""

    @pytest.mark.long
    def test_what_is_missing_gets_the_times_that_it_would_have_had(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, other: psycopg.Connection[Any]
    ) -> None:
        """Counted from the repetition, seconds would exceed their rate up to twice."""
        records = [{"key": f"k{n}", "queue": f"q{n % 2}", "payload": n} for n in range(100)]
        asked = options(
            tmp_path, lines(tmp_path / "in.jsonl", records), spread=Spread.of(per_second=10)
        )
        imports.run(spark, asked, CONSOLE)
        times = schedules(other)
        # The row of the start is left.
        other.execute('DELETE FROM delayed_queue_offer_ledger WHERE "partition" >= -1')
        other.execute("""DELETE FROM delayed_queue WHERE "pKind" = 'q1|json'""")

        again = imports.run(spark, asked, CONSOLE)

        assert (again.created, again.ignored, again.was_done) == (50, 50, False)
        assert schedules(other) == times
        assert len(set(times)) == 100

    @pytest.mark.long
    def test_a_replay_on_another_cluster_brings_the_same_chunks(
        self, queue: DelayedQueue, spark: Any, lake: str, other: psycopg.Connection[Any]
    ) -> None:
        """Other chunks would offer, and deliver, the messages handled since a second time."""
        letters(200)
        archive(spark, lake, rows_per_file=50)
        spread = Spread.of(per_second=1000)
        asked = replays.ReplayOptions((f"{lake}/delayed_queue_dead_letter",), spread=spread)
        assert replays.run(spark, asked, CONSOLE).created == 200
        other.execute('DELETE FROM delayed_queue_offer_ledger WHERE "partition" = -1')
        other.execute("""DELETE FROM delayed_queue WHERE "pKey" < 'k5'""")
        left = Message.objects.count()

        with set_to(spark, shuffle__partitions="7", files__maxPartitionBytes="1000"):
            again = replays.run(spark, asked, CONSOLE)

        assert (again.created, again.was_done) == (200, False)
        assert Message.objects.count() == left < 200

    @pytest.mark.long
    def test_replays_under_new_keys_do_not_meet(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(3)
        archive(spark, lake)
        asked = replays.ReplayOptions((f"{lake}/delayed_queue_dead_letter",), keys="suffix")
        for job in ("campaign-2026-1", "campaign-2026-2", None):
            given = replace(asked, job=job)
            assert replays.run(spark, given, CONSOLE).created == 3
            assert replays.run(spark, given, CONSOLE).was_done
        assert Message.objects.count() == 9


def test_an_id_is_a_name(tmp_path: Path) -> None:
    """A quarantine replaces the directory of its id."""
    for job in ("", "..", ".", "a/b", "_a", "a b", "x" * 100):
        with pytest.raises(InvalidConfiguration, match="--id"):
            options(tmp_path, "in.csv", job=job)
        with pytest.raises(InvalidConfiguration, match="--id"):
            replays.ReplayOptions(("lake",), job=job)
    assert options(tmp_path, "in.csv", job="spring-2026.v1_x").job is not None
    assert os.listdir(tmp_path) == []  # noqa: PTH208
