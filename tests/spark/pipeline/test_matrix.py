"""Imports by format, codec and defect: stored, quarantined and refused rows (P6)."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.pipeline import imports
from tests.spark.pipelines import CONSOLE, options
from tests.spark.support import with_jvm

pytestmark = with_jvm

AT: Final = datetime(2031, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """Files, and their result: a payload by key, part of a reason by line, or a refusal."""

    files: Mapping[str, bytes | pa.Table]
    stored: Mapping[str, bytes] = field(default_factory=dict)
    bad: Mapping[int, str] = field(default_factory=dict)
    refused: str = ""
    codec: str = "json"
    asked: Mapping[str, Any] = field(default_factory=dict)


CASES: Final = {
    "csv": Case(
        {"in.csv": b"\xef\xbb\xbfid,amount,at\na,1.5,2031-01-01T01:00:00\nb,2\n"
                   b'c,"3\n\nd,4,tomorrow\ne\xff,1,\n'},
        {"a": b'{"amount":"1.5"}'},
        {3: "It has 2 columns; the header has 3", 4: "not CSV", 6: "'tomorrow' is no instant",
         7: "not UTF-8"},
        asked={"mapping": {"id": "key", "at": "schedule_at"}, "time_zone": "Europe/Berlin"},
    ),
    "csv of texts": Case(
        {"in.csv": b"key,payload\na,{\nb,\n"}, {"a": b"{", "b": b""}, codec="text"
    ),
    "csv of other headers": Case(
        {"a.csv": b"id,amount\nk1,7\n", "b.csv.gz": gzip.compress(b"amount,id\n8,k2\n")},
        refused=r"b\.csv\.gz has not the header of .*a\.csv: amount, id instead of id, amount",
        asked={"mapping": {"id": "key"}},
    ),
    "csv with a column twice": Case(
        {"in.csv": b"key,amount,amount\na,1,2\n"}, refused="the column 'amount' more than once"
    ),
    "csv with an open header": Case(
        {"in.csv": b'key,"amount\na,1\n'}, refused="The header of .*in.csv is not CSV: unexpected"
    ),
    "csv without a header": Case({"in.csv": b""}, refused="The input is empty"),
    "json lines": Case(
        {"in.jsonl": b'{"key": "a", "payload": {"b": [1]}}\n\n{"key": "b", "key": "c"}\n[1]\n'},
        {"a": b'{"b":[1]}'},
        {3: "the same name twice", 4: "no JSON object"},
    ),
    "parquet": Case(
        # As Spark names its files.
        {"part-0000.snappy.parquet": pa.table({
            "key": ["a", "b", None],
            "payload": [{"n": 1, "of": [{"m": 2}]}, None, {"n": 3}],
            "schedule_at": pa.array([AT] * 3, pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[("h", "1")], None, None], pa.map_(pa.string(), pa.string())),
        })},
        {"a": b'{"n":1,"of":[{"m":2}]}'},
        {2: "It has no payload.", 3: "It has no key."},
    ),
    "parquet of bytes": Case(
        {"in.parquet": pa.table({"key": ["a", None], "payload": [b"\xff", b"1"]})},
        {"a": b"\xff"}, {2: "It has no key."}, codec="bytes",
    ),
    "parquet with a column that JSON lacks": Case(
        {"in.parquet": pa.table({"key": ["a", "b"], "photo": [b"\xff", None]})},
        {"b": b'{"photo":null}'}, {1: "bytes is not JSON serializable"},
    ),
    "parquet of two schemas": Case(
        {"a.parquet": pa.table({"key": ["a"], "old": [1]}),
         "b.parquet": pa.table({"key": ["b"], "new": [2]})},
        {"a": b'{"new":null,"old":1}', "b": b'{"new":2,"old":null}'},
    ),
    "parquet without the mapped column": Case(
        {"in.parquet": pa.table({"a": [1], "b": ["x"]})},
        refused="no column 'order'; it has a, b", asked={"mapping": {"order": "key"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_import(name: str, queue: DelayedQueue, spark: Any, tmp_path: Path) -> None:
    case, directory = CASES[name], tmp_path / "in"
    directory.mkdir()
    for file, content in case.files.items():
        if isinstance(content, bytes):
            (directory / file).write_bytes(content)
        else:
            pq.write_table(content, directory / file)
    asked = options(tmp_path, str(directory), form=None, **case.asked)
    rules = replace(asked.source.rules, codec=case.codec)
    asked = replace(asked, source=replace(asked.source, rules=rules))
    if case.refused:
        with pytest.raises(InvalidConfiguration, match=case.refused):
            imports.run(spark, asked, CONSOLE)
        assert not Message.objects.exists()
        assert not (tmp_path / "quarantine").exists()
        return
    found = imports.run(spark, asked, CONSOLE)
    stored = {each.key: each for each in Message.objects.all()}
    assert {key: bytes(each.payload) for key, each in stored.items()} == case.stored
    assert (found.created, found.quarantined) == (len(case.stored), len(case.bad))
    reasons = {each["line"]: "; ".join(each["reasons"]) for each in found.samples}
    assert reasons.keys() == case.bad.keys()
    assert all(case.bad[line] in text for line, text in reasons.items()), reasons
    if name in {"csv", "parquet"}:
        assert stored["a"].scheduled_at == AT
    if name == "csv":
        assert any("in.csv:6 (key 'd'): schedule_at" in each for each in found.lines())
    if name == "parquet":
        assert stored["a"].headers == {"h": "1"}
