"""Records and files as messages, without a JVM and without a database."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.blocks import Block, Blocks, numbered
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.handling import load
from delayed_queue.spark.pipeline.imports import refusal_of
from delayed_queue.spark.pipeline.inputs import Input, check_columns, format_of
from delayed_queue.spark.pipeline.lines import JsonReader
from delayed_queue.spark.pipeline.offers import Offered, telling
from delayed_queue.spark.pipeline.records import FIELDS, Checker, Rules, parse_mapping
from delayed_queue.spark.pipeline.values import is_deeper
from delayed_queue.spark.source.rules import plain
from tests.spark.records import One, check_one

# Includes text that PostgreSQL, Arrow or UTF-8 refuse: NUL and lone surrogates.
TEXTS = st.text(st.sampled_from("a0é\x00\ud800\U0001f4a9"), max_size=5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
JSON_TEXTS = Rules("orders", are_texts_json=True)


def checked(record: dict[str, Any], rules: Rules = JSON_TEXTS) -> One:
    return check_one(Checker(rules), record)


def reasons(record: dict[str, Any], rules: Rules = JSON_TEXTS) -> str:
    found = checked(record, rules)
    assert found.payload is None
    return " ".join(found.reasons)


class TestRecords:
    def test_a_record_is_a_message_as_a_queue_would_store_it(self) -> None:
        found = checked(
            {"key": "a", "payload": '{"b": 1, "a": 2}', "schedule_at": AT.isoformat(),
             "headers": '{"h": "1"}'}
        )  # fmt: skip
        assert found.kind == "orders|json"
        assert found.payload == b'{"a":2,"b":1}'
        assert found.schedule_at == int(AT.timestamp() * 1000)
        assert json.loads(found.headers or "") == {"h": "1"}
        assert not found.reasons

    @pytest.mark.parametrize(
        ("at", "utc"),
        [
            ("2026-11-22 09:00", "2026-11-22T08:00:00+00:00"),
            (datetime(2026, 7, 1, 9), "2026-07-01T07:00:00+00:00"),  # noqa: DTZ001 - that is it
            (date(2026, 7, 1), "2026-06-30T22:00:00+00:00"),
            ("2026-07-01T09:00:00Z", "2026-07-01T09:00:00+00:00"),
            (1_795_309_838_000, "2026-11-22T01:10:38+00:00"),
            ("631152000000", "1990-01-01T00:00:00+00:00"),
            ("1969-12-31T00:00:00Z", "1969-12-31T00:00:00+00:00"),
            # In a repeated hour it is the first one.
            ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),
        ],
    )
    def test_instants_without_an_offset_are_of_the_zone(self, at: Any, utc: str) -> None:
        record = {"key": "a", "payload": "1", "schedule_at": at}
        found = checked(record, replace(JSON_TEXTS, time_zone="Europe/Berlin"))
        assert found.schedule_at == int(datetime.fromisoformat(utc).timestamp() * 1000)

    def test_an_instant_that_no_clock_shows_is_refused(self) -> None:
        record = {"key": "a", "payload": "1", "schedule_at": "2026-03-29T02:30"}
        rules = replace(JSON_TEXTS, time_zone="Europe/Berlin")
        assert "an hour that Europe/Berlin skips" in reasons(record, rules)
        assert "pass --time-zone for all of them" in reasons(record)

    @pytest.mark.parametrize(("given", "found"), [("g", "g"), (7, "7"), ("", None), (None, None)])
    def test_groups(self, given: Any, found: str | None) -> None:
        assert checked({"key": "a", "payload": "1", "group": given}).group == found
        assert "1 to 100 characters" in reasons({"key": "a", "payload": "1", "group": "g" * 101})

    def test_a_bad_record_is_found_by_its_key(self) -> None:
        checker = Checker(JSON_TEXTS)
        assert checker.key_of({"key": 7}) == "7"
        assert checker.key_of({"key": "a\ud800"}) == "a?"
        assert checker.key_of({"key": "a\x00"}) == "a\ufffd"
        assert checker.key_of({"key": None}) is None

    def test_columns_that_are_mapped_to_nothing_are_the_payload(self) -> None:
        rules = Rules("orders", mapping={"id": "key"})
        found = checked({"id": 7, "amount": Decimal("1.50"), "on": date(2026, 1, 2)}, rules)
        assert found.key == "7"
        assert found.payload == b'{"amount":"1.50","on":"2026-01-02"}'

    @pytest.mark.parametrize(
        ("record", "said"),
        [
            ({}, "It has no key."),
            ({"key": "", "payload": "1"}, "1 to 200 characters; this one has 0"),
            ({"key": "x" * 201, "payload": "1"}, "this one has 201"),
            ({"key": "a\x00", "payload": "1"}, "NUL"),
            ({"key": "\ud800", "payload": "1"}, "not valid Unicode"),
            ({"key": "a", "payload": "{"}, "The payload is not JSON (character 2)."),
            ({"key": "a", "payload": "NaN"}, "not JSON"),
            ({"key": "a", "payload": '{"b": [{"c": 1, "c": 1}]}'}, "same name twice"),
            ({"key": "a", "payload": "1", "headers": '{"h": 1, "h": 2}'}, "headers has an object"),
            ({"key": "a", "payload": "1", "delay": -0.001}, "0s or more, not -0.001"),
            ({"key": "a", "payload": "1", "delay": "-5"}, "'-5' is not a duration"),
            ({"key": "a", "payload": b"\xff"}, "not JSON"),
            ({"key": "a", "payload": "[" * 100_000}, "not JSON"),
            ({"key": "a", "payload": "[" * 33 + "]" * 33}, "nested deeper than 32"),
            ({"key": "a", "payload": '"' + "x" * 262_143 + '"'}, "262,145 bytes"),
            ({"key": "a", "payload": "1", "schedule_at": "soon"}, "'soon' is no instant"),
            ({"key": "a", "payload": "1", "schedule_at": "2026-01-01T00:00"}, "no time zone"),
            ({"key": "a", "payload": "1", "schedule_at": 10**17}, "outside the years"),
            ({"key": "a", "payload": "1", "schedule_at": 1_795_309_838}, "may be in seconds"),
            ({"key": "a", "payload": "1", "schedule_at": "-1"}, "may be in seconds"),
            ({"key": "a", "payload": "1", "schedule_at": 1.5}, "1.5 is no instant"),
            ({"key": 1.5, "payload": "1"}, "must be a str, not float"),
            ({"key": "a", "photo": b"1"}, "bytes is not JSON serializable"),
            ({"key": "a", "payload": "1", "delay": "a while"}, "delay:"),
            ({"key": "a", "payload": "1", "delay": 1e300}, "delay:"),
            ({"key": "a", "payload": "1", "delay": True}, "delay:"),
            ({"key": "a", "payload": "1", "delay": 5, "schedule_at": 5}, "both"),
            *(
                ({"key": "a", "payload": "1", "delay": each}, "delay")
                for each in ("inf", "nan", float("-inf"))
            ),
            *(
                ({"key": "a", "payload": "1", "schedule_at": each}, "is no instant")
                for each in ("infinity", float("inf"))
            ),
            ({"key": "a", "payload": "1", "headers": "[]"}, "headers must map"),
            ({"key": "a", "payload": "1", "headers": "x"}, "headers is not JSON"),
            ({"key": "a", "payload": "1", "headers": {"h": "x" * 65_536}}, "at most 65536"),
            ({"key": "a", "payload": "1", "queue": "q" * 100}, "105 characters"),
            ({"key": "a", "payload": "1", "queue": 7}, "a text, not int"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said(self, record: dict[str, Any], said: str) -> None:
        assert said in reasons(record)

    def test_everything_that_is_wrong_is_said(self) -> None:
        found = checked({"key": "", "payload": "{", "schedule_at": "x"})
        assert len(found.reasons) == 3

    def test_the_payload_is_not_in_the_reason(self) -> None:
        assert "secret" not in reasons({"key": "a", "payload": "{secret"})

    def test_without_a_queue_the_record_must_name_one(self) -> None:
        rules = Rules(None, are_texts_json=True)
        assert checked({"key": "a", "payload": "1", "queue": "b"}, rules).kind == "b|json"
        assert "names no queue" in reasons({"key": "a", "payload": "1"}, rules)

    @pytest.mark.parametrize(
        ("value", "milliseconds"), [("1.5", 1500), (2, 2000), ("15m", 900_000), ("", None)]
    )
    def test_delays(self, value: Any, milliseconds: int | None) -> None:
        found = checked({"key": "a", "payload": "1", "delay": value})
        assert found.delay == milliseconds

    @pytest.mark.parametrize(("codec", "value"), [("text", "words"), ("bytes", b"\x00\xff")])
    def test_other_codecs(self, codec: str, value: Any) -> None:
        found = checked({"key": "a", "payload": value}, Rules("orders", codec))
        data = value.encode() if isinstance(value, str) else value
        assert (found.kind, found.payload) == (f"orders|{codec}", data)

    def test_other_codecs_need_a_payload(self) -> None:
        assert "It has no payload." in reasons({"key": "a"}, Rules("orders", "text"))

    def test_texts_of_json_lines_are_values(self) -> None:
        assert checked({"key": "a", "payload": "1"}, Rules("orders")).payload == b'"1"'
        assert checked({"key": "a", "payload": None}, Rules("orders")).payload == b"null"

    @given(
        st.recursive(
            st.none(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
                st.just("k"), inner
            ), max_leaves=20
        ), st.integers(0, 6),
    )  # fmt: skip
    def test_depth_is_that_of_a_recursive_count(self, value: Any, most: int) -> None:
        def depth(each: Any) -> int:
            inner = each.values() if isinstance(each, dict) else each
            return 0 if each is None else 1 + max((depth(one) for one in inner), default=0)

        assert is_deeper(value, most) == (depth(value) > most)

    @given(
        st.dictionaries(st.sampled_from(FIELDS) | TEXTS, ANYTHING, max_size=8),
        st.sampled_from(["json", "text", "bytes"]),
    )  # fmt: skip
    def test_whatever_a_record_contains_its_row_can_be_stored(
        self, record: dict[str, Any], codec: str
    ) -> None:
        blocks = Blocks(Checker(Rules("orders", codec=codec)), JsonReader())
        line = {"value": [json.dumps(record).encode()], "__file": ["f"], "__block": [0]}
        batches = [*blocks.take(pa.RecordBatch.from_pydict(line)), *blocks.end()]
        row, summary = (row for batch in batches for row in batch.to_pylist())
        assert (summary["good"], summary["bad"]) == ((1, 0) if row["offers"] else (0, 1))
        stored = [row["key"] or "", *(row["reasons"] or ())]
        assert "\x00" not in "".join(stored).encode().decode()

    def test_plain_leaves_json_alone(self) -> None:
        value = {"a": [1, 2.5, None, True, {"b": "c"}]}
        assert plain(value) == value


class TestMapping:
    def test_columns_by_field(self) -> None:
        assert parse_mapping(["id=key", "a=b=payload"]) == {"id": "key", "a=b": "payload"}

    @pytest.mark.parametrize("pair", ["id", "=key", "id=kee", "x=key,x"])
    def test_wrong_pairs(self, pair: str) -> None:
        with pytest.raises(InvalidConfiguration):
            parse_mapping([pair])

    def test_twice(self) -> None:
        with pytest.raises(InvalidConfiguration, match="twice"):
            parse_mapping(["a=key", "b=key"])

    def test_a_missing_column_is_named_with_those_there_are(self) -> None:
        with pytest.raises(InvalidConfiguration, match="no column 'id'; it has a, b"):
            check_columns(["a", "b"], Rules("orders", mapping={"id": "key"}))
        with pytest.raises(InvalidConfiguration, match="no column 'key'"):
            check_columns(["a", "b"], Rules("orders"))


class TestInputs:
    @pytest.mark.parametrize(
        ("paths", "found"),
        [
            (["a.csv", "b.CSV.gz"], "csv"),
            (["x/a.jsonl", "x/part-0000-c000.json.zst"], "jsonl"),
            (["lake/part-0000.snappy.parquet", "lake/part-0001.parquet"], "parquet"),
        ],
    )
    def test_formats_by_name(self, paths: list[str], found: str) -> None:
        assert format_of(paths) == found

    @pytest.mark.parametrize("paths", [["a.csv", "b.jsonl"], ["part-0000"]])
    def test_names_that_do_not_say(self, paths: list[str]) -> None:
        with pytest.raises(InvalidConfiguration, match="--input-format"):
            format_of(paths)
        assert Input(tuple(paths), "csv", Rules("orders")).known(paths).format == "csv"

    @pytest.mark.parametrize(
        ("bad", "most", "is_refused"), [(29, 0.29, False), (30, 0.29, True), (0, 0, False)]
    )
    def test_a_larger_share_of_bad_records_is_refused(
        self, bad: int, most: float, is_refused: bool
    ) -> None:
        said = refusal_of(Offered("job", 100, quarantined=bad), most)
        assert (said is not None) == is_refused
        assert said is None or said.startswith("30 of 100 records are bad, more than")

    def test_how_far_it_is_is_told_now_and_then(self) -> None:
        err, told = io.StringIO(), threading.Event()

        def sentence() -> str:
            told.set()
            return "7 of 9 messages are offered"

        with telling(Console(out=io.StringIO(), err=err), sentence, every=0.01):
            assert told.wait(10)
        assert "7 of 9 messages are offered" in err.getvalue()

    def test_lines_and_ordinals_are_sums_of_the_blocks_before(self) -> None:
        blocks = [
            Block("b", 0, 5, 5, 0), Block("a", 64, 7, 6, 1), Block("a", 0, 10, 10, 0),
        ]  # fmt: skip
        assert [
            (each.file, each.block, each.first_line, each.first_ordinal)
            for each in numbered(blocks)
        ] == [("a", 0, 0, 0), ("a", 64, 10, 10), ("b", 0, 0, 17)]

    def test_what_cannot_be_loaded_is_named(self) -> None:
        assert load("json:JSONEncoder.encode") is json.JSONEncoder.encode
        for path in ("json:nothing", "nowhere.at.all:x", "json"):
            with pytest.raises(InvalidConfiguration, match="cannot be loaded"):
                load(path)
