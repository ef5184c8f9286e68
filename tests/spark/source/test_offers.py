"""From rows to offers, and filters to SQL: without a database and a JVM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    VariantType,
)

from delayed_queue.codecs import codec_named
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import from_milliseconds, to_milliseconds
from delayed_queue.spark.source.filters import Condition
from delayed_queue.spark.source.offering import (
    chunks,
    digest_of,
    due_times,
    in_key_order,
    staged_rows,
)
from delayed_queue.spark.source.reader import ranges, selected
from delayed_queue.spark.source.rules import offers_of
from delayed_queue.spark.source.schema import check_read, check_written
from delayed_queue.spark.store.streaming import CutsRow
from tests.spark.support import NOW, rows

UTC_TIME = pa.timestamp("us", tz="UTC")


def table(**columns: Any) -> pa.Table:
    return pa.table({"key": ["a"], "payload": ["1"], **columns})


def offers(codec: str = "json", **columns: Any) -> pa.Table:
    return offers_of(table(**columns), codec)


class TestChecks:
    @pytest.mark.parametrize(
        ("columns", "said"),
        [
            ({"key": [None]}, "column key is refused: It has no key."),
            ({"key": [""]}, "column key is refused: A key has 1 to 200 characters; this one has 0"),
            ({"key": ["x" * 201]}, "this one has 201"),
            ({"key": ["a\x00"]}, "contains a NUL"),
            (
                {"payload": pa.array([None], pa.string())},
                "column payload is refused: It has no payload.",
            ),
            ({"payload": ["{secret"]}, "column payload is refused: It is not JSON"),
            ({"headers": ["[1]"]}, "column headers is refused: headers must map"),
            ({"headers": ["{"]}, "headers is not JSON"),
            ({"headers": ['{"h": "' + "x" * 65_536 + '"}']}, "at most 65536 characters"),
            ({"headers": ['{"a": "\\u0000"}']}, "column headers"),
            ({"queue": [""]}, "column queue is refused: A queue needs a name"),
            ({"group": [""]}, "column group is refused"),
        ],
    )
    def test_the_column_is_named_and_the_payload_is_not_shown(
        self, columns: dict[str, Any], said: str
    ):
        with pytest.raises(InvalidMessage) as caught:
            offers(**columns)
        assert said in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_keys_are_measured_in_characters(self):
        assert offers(key=["é" * 200])["key"].to_pylist() == ["é" * 200]

    def test_not_both_a_schedule_and_a_delay(self):
        at = pa.array([datetime(2030, 1, 1, tzinfo=UTC)], UTC_TIME)
        with pytest.raises(InvalidMessage, match=r"column delay .*\(key 'a'\)"):
            offers(schedule_at=at, delay=pa.array([1], pa.int64()))

    def test_a_delay_that_leads_out_of_the_calendar(self):
        far = offers(delay=pa.array([10**15], pa.int64()))
        with pytest.raises(InvalidMessage, match="column delay is refused: It leads outside"):
            due_times(far, NOW)

    @pytest.mark.parametrize("later", [0, -1])
    def test_an_expiry_must_be_after_the_due_time(self, later: int):
        at = from_milliseconds(NOW + 1000)
        expiry = pa.array([at + timedelta(milliseconds=later)], UTC_TIME)
        made = offers(schedule_at=pa.array([at], UTC_TIME), expires_at=expiry)
        with pytest.raises(InvalidMessage, match="column expires_at is refused: it is not after"):
            due_times(made, NOW)


class TestTimes:
    @given(st.datetimes(timezones=st.just(UTC)))
    def test_a_schedule_is_floored_as_by_django(self, at: datetime):
        made = offers(schedule_at=pa.array([at], UTC_TIME))
        assert due_times(made, NOW).to_pylist() == [to_milliseconds(at)]

    @given(st.timedeltas(timedelta(days=-900), timedelta(days=900)))
    def test_a_delay_is_floored_as_by_django(self, delay: timedelta):
        made = offers(delay=pa.array([delay], pa.duration("us")))
        assert due_times(made, NOW).to_pylist() == [NOW + delay // timedelta(milliseconds=1)]

    def test_without_either_it_is_due_when_the_job_began(self):
        assert due_times(offers(), NOW).to_pylist() == [NOW]


class TestPayloads:
    def test_text_becomes_the_bytes_that_django_stores(self):
        stored = codec_named("json").encode({"b": 1, "a": "é"})
        made = offers(payload=['{"b": 1,  "a": "\\u00e9"}'])
        assert made["payload"].to_pylist() == [stored]

    def test_bytes_and_other_codecs_stay_as_they_are(self):
        assert offers(payload=[b"\xff{"])["payload"].to_pylist() == [b"\xff{"]
        assert offers("text", payload=["{ "])["payload"].to_pylist() == [b"{ "]

    def test_headers_come_as_a_map_or_as_json(self):
        mapped = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
        assert offers(headers=mapped)["headers"].to_pylist() == ['{"a": "1"}']
        assert offers(headers=['{"a":[1]}'])["headers"].to_pylist() == ['{"a": [1]}']


class TestChunks:
    @given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 40))
    def test_every_row_comes_once_and_no_chunk_is_too_large(self, sizes: list[int], most: int):
        batches = [rows([f"{n}-{each}" for each in range(size)]) for n, size in enumerate(sizes)]
        cut = list(chunks(batches, most, 10**9))
        assert all(1 <= each.num_rows <= most for each in cut)
        wanted = [key for batch in batches for key in batch["key"].to_pylist()]
        assert [key for each in cut for key in each["key"].to_pylist()] == wanted

    def test_large_payloads_make_small_chunks(self):
        batch = rows([str(each) for each in range(64)], "x" * 1000)
        cut = list(chunks([batch], 1000, 10_000))
        assert max(each.nbytes for each in cut) <= 10_000
        assert sum(each.num_rows for each in cut) == 64

    def test_one_row_that_is_too_large_is_a_chunk(self):
        assert [each.num_rows for each in chunks([rows(["a", "b"], "x" * 999)], 9, 100)] == [1, 1]


class TestDigests:
    def test_it_is_of_the_content_not_of_how_it_came(self):
        whole = offers_of(pa.Table.from_batches([rows(["a", "b", "c"])]), "json")
        sliced = pa.Table.from_batches([rows(["x", "a", "b"]).slice(1), rows(["c"])])
        assert digest_of(offers_of(sliced, "json"), "k") == digest_of(whole, "k")

    def test_it_tells_contents_and_contexts_apart(self):
        one = offers_of(pa.Table.from_batches([rows(["a", "bc"])]), "json")
        two = offers_of(pa.Table.from_batches([rows(["ab", "c"])]), "json")
        found = {digest_of(one, "k"), digest_of(two, "k"), digest_of(one, "l")}
        assert len(found | {digest_of(one, "k", "l"), digest_of(one, "kl")}) == 5


class TestOrder:
    @given(st.lists(st.sampled_from(["a", "b", "é", "\N{PILE OF POO}", "Z"]), min_size=1))
    def test_keys_are_sorted_by_bytes_and_repetitions_take_turns(self, keys: list[str]):
        places = [str(place) for place in range(len(keys))]
        made = offers_of(pa.table({"key": keys, "payload": places}), "json")
        ordered = in_key_order(made)
        staged = staged_rows(ordered, due_times(ordered, NOW)).to_pylist()
        assert [each["key"] for each in staged] == sorted(keys, key=str.encode)
        for each in staged:
            place = int(each["payload"])
            assert (each["turn"], each["key"]) == (keys[:place].count(keys[place]), keys[place])


class TestRanges:
    @given(st.integers(1, 10**6), st.integers(0, 10**5), st.lists(st.integers(-9, 10**6 + 9)))
    def test_they_cover_every_id_once(self, first: int, span: int, cuts: list[int]):
        """For each cut: messages come and go between sample and read."""
        cut = ranges(CutsRow(first, first + span, cuts, NOW))
        assert (cut[0][0], cut[-1][1]) == (first, first + span + 1)
        assert all(one[1] == two[0] for one, two in pairwise(cut))
        assert all(low < high for low, high in cut)
        inside = {each for each in cuts if first <= each < first + span}
        assert {high for _, high in cut[:-1]} == {each + 1 for each in inside}

    def test_an_empty_table_is_one_empty_range(self):
        assert ranges(CutsRow(None, None, [5], NOW)) == [(0, 0)]


class TestConditions:
    def test_values_cannot_become_sql(self):
        evil = "x' OR true; DROP TABLE delayed_queue; --\\"
        query = selected("SELECT 1 AS key", ["key"], [Condition("key", "=", evil)])
        assert query.endswith(" E'x'' OR true; DROP TABLE delayed_queue; --\\\\'")

    def test_a_column_is_an_identifier(self):
        assert selected("SELECT 1", ['a"b'], []).startswith('SELECT "a""b" FROM')


TEXT = StringType()
SCHEMAS: list[tuple[Any, dict[str, DataType], str]] = [
    (check_written, {"kei": TEXT, "payload": TEXT}, "no column 'kei': did you mean 'key'"),
    (check_written, {"key": TEXT}, "needs the column 'payload'"),
    (check_written, {"key": IntegerType()}, "'key' is int; it must be string: CAST(key AS STRING)"),
    (
        check_written,
        {"delay": TEXT},
        "'delay' is string; it must be daytimeinterval or long or "
        "integer: CAST(delay AS INTERVAL DAY TO SECOND)",
    ),
    (
        check_written,
        {"payload": VariantType()},
        "'payload' is variant; it must be string or binary "
        "or struct or array or map: to_json(payload)",
    ),
    (check_written, {"schedule_at": LongType()}, "timestamp_millis(schedule_at)"),
    (check_written, {"headers": MapType(TEXT, IntegerType())}, "'headers' is map<string,int>"),
    (
        check_written,
        {"key": TEXT, "queue": TEXT, "kind": TEXT},
        "Name the queue of the rows only once: there are the column 'queue' and the column 'kind'",
    ),
    (check_read, {"keys": TEXT}, "no column 'keys': did you mean 'key'"),
    (check_read, {"attempts": TEXT}, "'attempts' is string; it must be int"),
]


@pytest.mark.parametrize("kind", [TimestampNTZType(), DateType(), TEXT])
def test_a_schedule_without_a_zone_is_refused_with_its_cast(kind: DataType):
    said = (
        rf"'schedule_at' is {kind.simpleString()}; it must be timestamp: "
        r"CAST\(schedule_at AS TIMESTAMP\), which reads it in the session's time zone"
    )
    with pytest.raises(InvalidConfiguration, match=said):
        check_written(StructType([StructField("schedule_at", kind)]))


@pytest.mark.parametrize(("check", "columns", "said"), SCHEMAS)
def test_a_wrong_column_is_named(check: Any, columns: dict[str, DataType], said: str):
    schema = StructType([StructField(name, each) for name, each in columns.items()])
    with pytest.raises(InvalidConfiguration) as caught:
        check(schema)
    assert said in str(caught.value)
