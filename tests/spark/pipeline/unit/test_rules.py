"""Rows of every source follow the offer rules of ``delayed_queue.messages``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayed_queue.codecs import MAX_KIND_LENGTH, check_kind, codec_named, kind_of
from delayed_queue.exceptions import DelayedQueueError, InvalidMessage
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    check_group,
    check_key,
    check_schedule,
    encode_headers,
)
from delayed_queue.spark.pipeline.records import Checker, Rules
from delayed_queue.spark.source.rules import OfferRules, Refusals, offers_of
from tests.spark.records import checked_rows

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LENGTHS: Final = (MAX_GROUP_LENGTH, MAX_KEY_LENGTH, MAX_KIND_LENGTH - len("|bytes"))
TEXTS: Final = st.sampled_from(
    ["", "\x00", "a\x00b", "ß€𝄞", "a", "A-17", None]
    + [letter * (length + more) for letter in "é𝄞k" for length in LENGTHS for more in (0, 1)]
)
PAYLOADS: Final = {
    "bytes": (pa.binary(), st.sampled_from([b"", b"\x00\xff", b"x" * 9, b"x" * 8, None])),
    "text": (pa.string(), st.sampled_from(["", "\x00", "x" * 9, "ä", None])),
    "json": (
        pa.string(),
        st.sampled_from(["1", ' {"a": 1} ', "[[[1]]]", "{", "NaN", '{"a":1,"a":2}', "", None]),
    ),
}
TIMES: Final = st.sampled_from(
    [None, EPOCH, EPOCH - timedelta(microseconds=1), datetime(2026, 11, 22, 9, tzinfo=UTC)]
)
HEADERS: Final = st.sampled_from([None, "{}", '{"a": 1}', "[1]", '{"a": "\\u0000"}', "{"])
OPTIONAL: Final = {
    "group": (pa.string(), TEXTS),
    "queue": (pa.string(), TEXTS),
    "schedule_at": (pa.timestamp("us", "UTC"), TIMES),
    "delay": (pa.int64(), st.sampled_from([None, 0, 5])),
    "headers": (pa.string(), HEADERS),
}


@st.composite
def batches(draw: st.DrawFn, *, keys_may_be_numbers: bool) -> tuple[str, pa.RecordBatch]:
    codec = draw(st.sampled_from(list(PAYLOADS)))
    keys = [(pa.string(), TEXTS)] + [(pa.int64(), st.integers(-9, 9))] * keys_may_be_numbers
    columns: dict[str, tuple[Any, Any]] = {
        "key": draw(st.sampled_from(keys)), "payload": PAYLOADS[codec],
    }  # fmt: skip
    columns |= {name: each for name, each in OPTIONAL.items() if draw(st.booleans())}
    count = draw(st.integers(0, 6))
    values = {
        name: pa.array(draw(st.lists(some, min_size=count, max_size=count)), type_)
        for name, (type_, some) in columns.items()
    }
    return codec, pa.RecordBatch.from_pydict(values)


@given(batches(keys_may_be_numbers=True), st.sampled_from([None, "orders"]))
@example(("bytes", pa.RecordBatch.from_pydict({"key": ["a", ""], "payload": [b"1", b"2"]})), "q")
def test_an_import_judges_columns_as_it_judges_records(
    given: tuple[str, pa.RecordBatch], queue: str | None
) -> None:
    codec, batch = given
    checker = Checker(Rules(queue, codec, max_bytes=8, max_depth=2, are_texts_json=True))
    columns = checked_rows(checker, batch, batch.num_rows)
    assert columns == checked_rows(checker, batch.to_pylist(), batch.num_rows)


def refuses(check: Callable[[Any], Any], value: Any) -> bool:
    try:
        check(value)
    except (DelayedQueueError, ValueError):
        return True
    return False


def refused_fields(record: dict[str, Any], codec: str) -> set[str]:
    """The columns of an offer that the core refuses."""
    checks: dict[str, Callable[[Any], Any]] = {
        "key": check_key,
        "group": check_group,
        "queue": lambda name: check_kind(kind_of(check_kind(name), codec_named(codec))),
        "schedule_at": check_schedule,
        "headers": lambda text: encode_headers(None if text is None else json.loads(text)),
        "delay": lambda delay: None,
        "payload": lambda payload: _payload(payload, codec),
    }
    found = {name for name, value in record.items() if refuses(checks[name], value)}
    both = record.get("schedule_at") is not None and record.get("delay") is not None
    return found | ({"delay"} if both else set())


def _payload(payload: Any, codec: str) -> None:
    if payload is None:
        raise InvalidMessage("none")
    if codec == "json":
        codec_named("json").encode(json.loads(payload))


@given(batches(keys_may_be_numbers=False))
def test_df_write_refuses_what_the_core_refuses(given: tuple[str, pa.RecordBatch]) -> None:
    codec, batch = given
    found = Refusals()
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    offers = OfferRules(codec).offers(columns, found)
    assert offers.num_rows == batch.num_rows
    for row, record in enumerate(batch.to_pylist()):
        fields = {field for field, _ in found.reasons.get(row, ())}
        assert fields == refused_fields(record, codec), (record, found.reasons.get(row))


@pytest.mark.parametrize("name", ["key", "group", "queue"])
def test_texts_that_are_not_utf8(name: str) -> None:
    wrong = pa.array([b"\xff", b"\xed\xa0\x80", b"b"]).view(pa.string())
    columns = {"key": pa.array(["a", "b", "c"]), "payload": pa.array([b"1"] * 3)} | {name: wrong}
    batch = pa.RecordBatch.from_pydict(columns)
    assert Checker(Rules("orders", "bytes")).check(batch)[1].keys() == {0, 1}
    with pytest.raises(InvalidMessage, match=f"The column {name} is refused"):
        offers_of(pa.Table.from_batches([batch]), "bytes")


def test_times_out_of_range() -> None:
    columns = {
        "key": pa.array(["a"]),
        "payload": pa.array([b"1"]),
        "delay": pa.nulls(1, pa.int64()),
        "headers": pa.nulls(1),
        "schedule_at": pa.array([-(2**56)], pa.timestamp("us", "UTC")),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    (reason,) = Checker(Rules("orders", "bytes")).check(batch)[1][0]
    assert "outside the years" in reason
