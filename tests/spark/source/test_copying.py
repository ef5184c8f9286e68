"""Encoded columns, passed to a real COPY and read back."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import Connection, Link, connect, copy_rows, fetch
from delayed_queue.spark.source.arrow import encode_rows
from delayed_queue.spark.source.options import Options

LONG: Final = st.integers(-(2**63), 2**63 - 1)
SHORT: Final = st.integers(-(2**31), 2**31 - 1)
TEXT: Final = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
ROW: Final = st.tuples(
    st.none() | LONG, SHORT, TEXT, st.binary(), st.none() | TEXT, st.none() | st.binary()
)  # fmt: skip
TABLE: Final = ("pg_temp", "copied")
NAMES: Final = ("long", "short", "word", "bytes", "maybe_word", "maybe_bytes")
TYPES: Final = (pa.int64(), pa.int32(), pa.string(), pa.binary(), pa.string(), pa.binary())


@pytest.fixture
def connection(known: str) -> Any:
    made = connect()
    made.execute(
        "CREATE TEMPORARY TABLE copied (place serial, long int8, short int4, word text, "
        "bytes bytea, maybe_word text, maybe_bytes bytea, same text, many int8)"
    )
    yield made
    made.close()


def columns(rows: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    return {
        name: pa.array(values, kind)
        for name, kind, values in zip(NAMES, TYPES, zip(*rows, strict=True), strict=True)
    }


def copied(connection: Connection, made: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Copy into the empty table and return its rows."""
    connection.execute("TRUNCATE copied")
    copy_rows(connection, TABLE, made, encode_rows(made))
    found = fetch(connection, "SELECT * FROM copied ORDER BY place", {})
    return [row[1 : len(made) + 1] for row in found]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROW, min_size=1, max_size=20))
def test_what_is_copied_is_read_back(connection: Connection, rows: list[tuple[Any, ...]]):
    assert copied(connection, columns(rows)) == rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROW, min_size=3, max_size=20), TEXT, LONG)
def test_slices_and_pieces_and_what_every_row_has(
    connection: Connection, rows: list[tuple[Any, ...]], same: str, many: int
):
    whole = {name: column.slice(1) for name, column in columns(rows).items()}
    pieces = {
        name: pa.chunked_array([column.slice(0, 1), column.slice(1)])
        for name, column in whole.items()
    }
    made = {**pieces, "same": pa.scalar(same), "many": pa.scalar(many, pa.int64())}
    assert copied(connection, made) == [(*row, same, many) for row in rows[1:]]


def test_more_than_the_driver_sends_at_once(connection: Connection):
    rows = [(n, -n, str(n), bytes([n % 256]) * 5000, None, b"") for n in range(2000)]
    assert copied(connection, columns(rows)) == rows


def test_what_the_table_refuses_is_named_without_the_row(known: str):
    made = {"word": pa.array([b"secret\x00"])}

    def work(connection: Connection) -> None:
        connection.execute("CREATE TEMPORARY TABLE copied (word text)")
        copy_rows(connection, TABLE, made, encode_rows(made))

    with pytest.raises(ResourceUnavailable, match="invalid byte sequence") as caught:
        Link(Options()).repeat("The copy", work)
    assert "secret" not in str(caught.value)
