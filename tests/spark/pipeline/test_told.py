"""``import`` of Parquet whose types leave little in question: Spark's expressions tell the rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.codecs import MAX_KIND_LENGTH
from delayed_queue.messages import MAX_GROUP_LENGTH, MAX_KEY_LENGTH
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import imports, offers
from delayed_queue.spark.pipeline.inputs import Input, told
from delayed_queue.spark.source.records import Checker, Rules
from tests.spark.pipelines import CONSOLE, options
from tests.spark.support import with_jvm

pytestmark = with_jvm

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
KEYS: Final = [
    "a", "", "\x00", "a\x00b", "é" * MAX_KEY_LENGTH, "k" * (MAX_KEY_LENGTH + 1), "ß€𝄞", None,
]  # fmt: skip
GROUPS: Final = ["g", "", None, "\x00", "𝄞" * MAX_GROUP_LENGTH, "g" * (MAX_GROUP_LENGTH + 1)]
QUEUES: Final = [
    "a", "", None, "a\x00b", "|", "q" * (MAX_KIND_LENGTH - len("|text")), "€" * MAX_KIND_LENGTH,
]  # fmt: skip
TIMES: Final = [
    None, EPOCH, EPOCH - timedelta(microseconds=1), datetime(2026, 11, 22, 9, tzinfo=UTC),
]  # fmt: skip
PAYLOADS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "bytes": (pa.binary(), [b"", b"\x00\xff", b"x" * 8, b"x" * 9, None]),
    "text": (pa.string(), ["", "\x00", "ääää", "äääää", None]),
}


def input_of(path: Path, columns: dict[str, pa.Array], codec: str, **rules: Any) -> Input:
    pq.write_table(pa.table(columns), path / "in.parquet")
    found = Rules(**{"queue": "it's \\ orders", "codec": codec, **rules})
    return Input((str(path),), "parquet", replace(found, are_texts_json=True))


# Whose a record is: its group, its queue; and its delay.
WHOSE: Final = [
    *((group, "a", None) for group in GROUPS), *((None, queue, None) for queue in QUEUES),
    ("g", "a", 5),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "queue"), [("bytes", "it's \\ orders"), ("text", None)])
def test_they_say_the_same_of_each_record(
    spark: Any, tmp_path: Path, codec: str, queue: str | None
) -> None:
    kind, payloads = PAYLOADS[codec]
    values = zip(
        *((*each, *whose) for *each, whose in product(KEYS, payloads, TIMES, WHOSE)), strict=True
    )
    types = (pa.string(), kind, pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.int64())
    names = ("id`s", "payload", "schedule_at", "group", "queue", "delay")
    columns = {
        name: pa.array(column, of)
        for name, column, of in zip(names, values, types, strict=True)
    }  # fmt: skip
    mapping = {"id`s": "key"}
    source = input_of(tmp_path, columns, codec, queue=queue, mapping=mapping, max_bytes=8)
    known = told(spark, source)
    assert known is not None
    checker = Checker(source.rules)
    rows = {row["place"]: row for row in known.rows.collect()}
    fitting = {row["place"]: row for row in known.fitting.collect()}
    for place, record in enumerate(pa.table(columns).to_pylist()):
        found, row = checker.check(record), rows.pop(place)
        # A delay, too, is something to look at.
        fits = not found.reasons and record["delay"] is None
        assert (row["kind"] is not None) == (row["reasons"] is None) == fits, (record, row)
        if fits:
            said = (row["kind"], row["key"], bytes(row["payload"]), row["schedule_ms"])
            assert said == (found.kind, found.key, found.payload, found.schedule_ms)
            assert (row["grouped"], row["delay_ms"], row["headers"]) == (found.group, None, None)
            assert row == fitting[place]
    assert rows == {}


PLAIN: Final = {"key": pa.array(["a", "b"]), "payload": pa.array([b"1", b"2"])}


@pytest.mark.parametrize(
    "columns",
    [
        {"schedule_at": pa.array(["2031-01-01T00:00:00Z", None])},
        {"schedule_at": pa.array([1, 2])},
        {"group": pa.array([1, 2])},
    ],
)
def test_what_types_do_not_tell_is_looked_at(
    spark: Any, tmp_path: Path, columns: dict[str, pa.Array]
) -> None:
    assert told(spark, input_of(tmp_path, PLAIN | columns, "bytes")) is None


def test_texts_that_are_no_utf8_do_not_fit(spark: Any, tmp_path: Path) -> None:
    wrong = pa.array([b"\xff", b"\xed\xa0\x80", b"b"]).view(pa.string())
    for name in ("key", "group"):
        columns = {"key": pa.array(["a", "b", "c"]), "payload": pa.array([b"1"] * 3)}
        found = told(spark, input_of(tmp_path, columns | {name: wrong}, "bytes"))
        assert found is not None
        assert [row["kind"] is not None for row in found.rows.orderBy("place").collect()] == [
            False, False, True,
        ]  # fmt: skip


class TestImport:
    """The same answers, whichever way records are looked at."""

    def asked(self, tmp_path: Path, keys: list[Any], **changes: Any) -> imports.ImportOptions:
        payloads = [str(number).encode() for number in range(len(keys))]
        columns = {"key": pa.array(keys, pa.string()), "payload": pa.array(payloads)}
        # Of several row groups, and so of several tasks.
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
        """Also where more of them come again than are given to each task."""
        monkeypatch.setattr(offers, "MOST_REPEATED", most)
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
        """The types of the first are told by Spark, payloads of the second are looked at."""
        path, queues = str(tmp_path / "in.parquet"), 2_000
        # Of each queue three records, the first two with one key, which all queues have.
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
        assert jobs == [("tenants",)]

    def test_one_that_does_not_fit_has_all_looked_at(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path
    ) -> None:
        asked = self.asked(tmp_path, ["a", None, "b", "a"])
        found = imports.run(spark, asked, CONSOLE)
        assert (found.created, found.quarantined, found.duplicates) == (2, 1, 1)
        assert [(each["line"], each["reasons"]) for each in found.samples] == [
            (2, ["It has no key."])
        ]

    @pytest.mark.parametrize("most", [10**6, 10])
    def test_repeated_after_a_crash_on_another_cluster_it_offers_what_is_missing(
        self, queue: DelayedQueue, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        other: Any, most: int,
    ) -> None:  # fmt: skip
        """Pieces depend on the files alone; also those of a partition that is cut anew."""
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
