"""What columns alone tell to be messages is what looking at each record says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayed_queue.messages import MAX_GROUP_LENGTH, MAX_KEY_LENGTH
from delayed_queue.spark.source.arrow import offers_among
from delayed_queue.spark.source.records import Checked, Checker, Rules

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ODD: Final = ["", "\x00", "a\x00b", "é" * MAX_KEY_LENGTH, "k" * (MAX_KEY_LENGTH + 1), "ß€𝄞", None]
TEXTS: Final = st.sampled_from([*ODD, "g" * (MAX_GROUP_LENGTH + 1), "a", "A-17"])
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

OPTIONAL: Final = {
    "group": (pa.string(), TEXTS),
    "queue": (pa.string(), TEXTS),
    "schedule_at": (pa.timestamp("us", "UTC"), TIMES),
}


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rules, pa.RecordBatch]:
    codec = draw(st.sampled_from(list(PAYLOADS)))
    kind, payloads = PAYLOADS[codec]
    columns: dict[str, tuple[Any, Any]] = {
        "key": draw(st.sampled_from([(pa.string(), TEXTS), (pa.int64(), st.integers(-9, 9))])),
        "payload": (kind, payloads),
    }
    columns |= {name: each for name, each in OPTIONAL.items() if draw(st.booleans())}
    count = draw(st.integers(0, 6))
    values = {
        name: pa.array(draw(st.lists(some, min_size=count, max_size=count)), type_)
        for name, (type_, some) in columns.items()
    }
    rules = Rules(draw(st.sampled_from([None, "orders"])), codec, max_bytes=8, max_depth=2)
    return rules, pa.RecordBatch.from_pydict(values)


@given(batches())
@example(
    (
        Rules("orders", "bytes", {"id": "key"}),
        pa.RecordBatch.from_pydict({"id": ["a", ""], "payload": [b"1", b"2"]}),
    )
)
def test_they_say_the_same_of_each_record(given: tuple[Rules, pa.RecordBatch]) -> None:
    rules, batch = given
    checker = Checker(rules)
    told = offers_among(batch, checker)
    assert told is not None
    for place, record in enumerate(batch.to_pylist()):
        found = checker.check(record)
        assert told[0][place].as_py() == (not found.reasons), (record, found)
        if not found.reasons:
            assert message_at(place, told[1]) == found


def message_at(place: int, columns: Any) -> Checked:
    kind, key, payload, time, group = (
        columns[name][place].as_py()
        for name in ("kind", "key", "payload", "schedule_ms", "grouped")
    )
    return Checked(kind, key, payload, schedule_ms=time, group=group)


YEAR_ZERO: Final = -(2**56)


@pytest.mark.parametrize(
    "columns",
    [
        {"payload": pa.array([b"1"])},
        {"key": pa.array(["a"])},
        {"key": pa.array([1.5]), "payload": pa.array([b"1"])},
        {"key": pa.array(["a"]), "payload": pa.array([{"a": 1}])},
        {"delay": pa.array([5])},
        {"headers": pa.array(["{}"])},
        {"schedule_at": pa.array([1], pa.timestamp("us"))},  # in which zone?
        {"schedule_at": pa.array([1])},  # of what?
        {"queue": pa.array([1])},
        {"key": pa.array([b"\xff"]).view(pa.string()), "payload": pa.array([b"1"])},
    ],
)
def test_what_types_do_not_tell_is_looked_at(columns: dict[str, pa.Array]) -> None:
    others = {} if len(columns) == 2 or "payload" in columns or "key" in columns else OTHERS
    batch = pa.RecordBatch.from_pydict({**others, **columns})
    assert offers_among(batch, Checker(Rules("orders", "bytes"))) is None


OTHERS: Final = {"key": pa.array(["a"]), "payload": pa.array([b"1"])}


def test_columns_of_nulls_and_times_out_of_range() -> None:
    columns = {
        **OTHERS,
        "delay": pa.nulls(1, pa.int64()),
        "headers": pa.nulls(1),
        "schedule_at": pa.array([YEAR_ZERO], pa.timestamp("us", "UTC")),
    }
    told = offers_among(pa.RecordBatch.from_pydict(columns), Checker(Rules("orders", "bytes")))
    assert told is not None
    assert told[0].to_pylist() == [False]
