"""Conversion of PostgreSQL's results to Spark's rows: without a database and a JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.messages import MAX_MILLISECONDS, MIN_MILLISECONDS, from_milliseconds
from delayed_queue.spark.source.arrow import converted
from delayed_queue.spark.source.schema import read_schema, source_columns


def schema(*names: str, kind: str | None = None) -> StructType:
    known = read_schema(kind)
    return StructType([StructField(name, known[name].dataType) for name in names])


def answer(given: StructType, columns: dict[str, Any], kind: str | None = None) -> dict[str, Any]:
    [found] = converted([pa.RecordBatch.from_pydict(columns)], given, kind)
    assert found.schema.equals(to_arrow_schema(given, timezone="UTC"))
    return dict(found.to_pydict())


@pytest.mark.parametrize(
    "stored",
    [
        [0, None, 1_700_000_000_123],
        [None],
        [],
        [MIN_MILLISECONDS, MAX_MILLISECONDS],
        [MIN_MILLISECONDS - 1, None, 5],
        [MAX_MILLISECONDS + 1, 5],
        [-(2**63), 2**63 - 1],
    ],
)
def test_times_outside_of_the_years_1_to_9999_are_clamped(stored: list[int | None]):
    found = answer(schema("due_at"), {"due_at": pa.array(stored, pa.int64())})
    assert found == {
        "due_at": [None if each is None else from_milliseconds(each) for each in stored]
    }


def test_whole_milliseconds_are_exact():
    at = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(milliseconds=7)
    stored = pa.array([int(at.timestamp() * 1000)], pa.int64())
    assert answer(schema("created_at"), {"created_at": stored}) == {"created_at": [at]}


class TestKinds:
    def test_the_queue_is_what_is_before_the_last_bar(self):
        kinds = ["orders|json", "a|b|text", "plain", "|odd"]
        found = answer(schema("queue", "kind"), {"kind": kinds})
        assert found == {"queue": ["orders", "a|b", "plain", "|odd"], "kind": kinds}

    @pytest.mark.parametrize("kind", ["orders|json", "plain", "a|b|text"])
    def test_one_that_is_known_is_not_asked_for(self, kind: str):
        given = schema("queue", "id", "kind")
        assert source_columns(given.fieldNames(), is_kind_known=True) == ["id"]
        known = answer(given, {"id": [1, 2]}, kind)
        assert known == answer(given, {"id": [1, 2], "kind": [kind, kind]})

    def test_something_has_to_be_asked_for(self):
        """A read without columns would not even count the rows."""
        given = schema("kind", "queue")
        assert source_columns(given.fieldNames(), is_kind_known=True) == ["kind"]
        found = answer(given, {"kind": ["a|json"]}, "a|json")
        assert found == {"kind": ["a|json"], "queue": ["a"]}


def test_payloads_that_are_no_text():
    given = schema("payload", kind="orders|json")
    assert answer(given, {"payload": [b"\xc3\xa4"]}) == {"payload": ["ä"]}
    with pytest.raises(PayloadNotDecodable, match="not UTF-8"):
        answer(given, {"payload": [b"\xff"]})
