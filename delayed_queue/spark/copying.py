"""Arrow columns as PostgreSQL's binary COPY takes them, without an object for each value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

# The signature, no flags, no extension of the header; and what ends the rows.
HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
END: Final = b"\xff\xff"

# A scalar stands for a column of which every row has the same.
Columns = Mapping[str, "pa.Array | pa.ChunkedArray | pa.Scalar"]


def encode_rows(columns: Columns) -> memoryview:
    """Return the rows between HEADER and END: of each the number of fields, then the fields.

    A field is the length of its value in four bytes and the value in network byte order; NULL is
    the length -1 and nothing. Columns are texts, bytes and integers, of which none is null; jsonb
    is bytes to Arrow. At least one column is no scalar.
    """
    pieces = [pa.scalar(len(columns).to_bytes(2, "big"))]
    for column in columns.values():
        pieces += _field(column)
    rows = pc.binary_join_element_wise(*pieces, b"")
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def _field(column: Any) -> list[Any]:
    """Return the length and the value, of each row or of all."""
    if isinstance(column, pa.Scalar):
        value = _bytes(column)
        return [pa.scalar(len(value).to_bytes(4, "big") + value)]
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(values.type):
        width = values.type.bit_width // 8
        return [pa.scalar(width.to_bytes(4, "big")), _in_network_order(values, width)]
    values = values.cast(pa.binary())
    lengths = pc.fill_null(pc.binary_length(values), -1)
    return [_in_network_order(lengths, 4), pc.fill_null(values, b"")]


def _bytes(value: pa.Scalar) -> bytes:
    plain = value.as_py()
    if isinstance(plain, int):
        return plain.to_bytes(value.type.bit_width // 8, "big", signed=True)
    return plain.encode() if isinstance(plain, str) else bytes(plain)


def _in_network_order(numbers: pa.Array, width: int) -> pa.Array:
    # Raises where one is null: it would not be a number any more.
    swapped = numbers.to_numpy().astype(f">i{width}")
    fixed = pa.Array.from_buffers(pa.binary(width), len(numbers), [None, pa.py_buffer(swapped)])
    return fixed.cast(pa.binary())
