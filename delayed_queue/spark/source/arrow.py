"""Arrow columns: from rows of PostgreSQL, and as binary COPY."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.messages import MAX_MILLISECONDS, MIN_MILLISECONDS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A scalar stands for a column with the same value in every row.
Columns = Mapping[str, "pa.Array | pa.ChunkedArray | pa.Scalar"]


def converted(
    batches: Iterable[pa.RecordBatch], schema: StructType, kind: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches in exactly the types of the schema.

    ``kind``: the kind of all rows, if it was not read.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    target = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        columns = [_column(batch, field, kind) for field in target]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


def _column(batch: pa.RecordBatch, field: pa.Field, kind: str | None) -> pa.Array:
    if field.name in {"kind", "queue"} and kind is not None:
        name = kind if field.name == "kind" else _queue(kind)
        return pa.repeat(pa.scalar(name, field.type), batch.num_rows)
    if field.name == "queue":
        return _queues(batch.column("kind"))
    column = batch.column(field.name)
    if pa.types.is_timestamp(field.type):
        return _times(column, field.type)
    if field.name == "payload" and not pa.types.is_binary(field.type):
        return _text(column, field.type)
    return column.cast(field.type)


def _queue(kind: str) -> str:
    """Return the name before the last bar; a kind without one is its own name."""
    return kind.rpartition("|")[0] or kind


def _queues(kinds: pa.Array) -> pa.Array:
    encoded = kinds.cast(pa.string()).dictionary_encode()
    names = [_queue(kind) for kind in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def _times(milliseconds: pa.Array, target: Any) -> pa.Array:
    """Return instants, clamped to the years 1 to 9999: other services may store any number."""
    ends = pc.min_max(milliseconds)
    if ends["min"].is_valid and (
        ends["min"].as_py() < MIN_MILLISECONDS or ends["max"].as_py() > MAX_MILLISECONDS
    ):
        milliseconds = _clamped(milliseconds)
    return milliseconds.cast(pa.timestamp("ms", tz=target.tz)).cast(target)


def _clamped(milliseconds: pa.Array) -> pa.Array:
    low = pc.if_else(pc.less(milliseconds, MIN_MILLISECONDS), MIN_MILLISECONDS, milliseconds)
    return pc.if_else(pc.greater(low, MAX_MILLISECONDS), MAX_MILLISECONDS, low)


def _text(column: pa.Array, target: Any) -> pa.Array:
    try:
        return column.cast(pa.binary()).cast(target)
    except pa.ArrowInvalid:
        raise PayloadNotDecodable(
            "The column payload holds bytes that are not UTF-8: read it as binary, with "
            ".schema('key string, payload binary')."
        ) from None


# The signature, no flags, no header extension; and the trailer.
HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
END: Final = b"\xff\xff"


def encode_rows(columns: Columns) -> memoryview:
    """Return the rows between HEADER and END: per row the number of fields, then the fields.

    A field is the length of its value in four bytes, and the value in network byte order. NULL is
    the length -1 without a value. Columns are texts, bytes (also for jsonb) and integers. At least
    one column is not a scalar.
    """
    pieces = [pa.scalar(len(columns).to_bytes(2, "big"))]
    for column in columns.values():
        pieces += _field(column)
    rows = pc.binary_join_element_wise(*pieces, b"")
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def _field(column: Any) -> list[Any]:
    """Return the length and the value, per row or for all rows."""
    if isinstance(column, pa.Scalar):
        value = _bytes(column)
        return [pa.scalar(len(value).to_bytes(4, "big") + value)]
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(values.type):
        width = values.type.bit_width // 8
        numbers = _in_network_order(values.fill_null(0), width)
        if not values.null_count:
            return [pa.scalar(width.to_bytes(4, "big")), numbers]
        values = pc.if_else(values.is_valid(), numbers, None)
    values = values.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1)
    return [_in_network_order(lengths, 4), pc.fill_null(values, b"")]


def _bytes(value: pa.Scalar) -> bytes:
    plain = value.as_py()
    if isinstance(plain, int):
        return plain.to_bytes(value.type.bit_width // 8, "big", signed=True)
    return plain.encode() if isinstance(plain, str) else bytes(plain)


def _in_network_order(numbers: pa.Array, width: int) -> pa.Array:
    swapped = numbers.to_numpy().astype(f">i{width}")
    fixed = pa.Array.from_buffers(pa.binary(width), len(numbers), [None, pa.py_buffer(swapped)])
    return fixed.cast(pa.binary())
