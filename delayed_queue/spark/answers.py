"""From what PostgreSQL answers to what Spark expects, column by column, in Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.messages import MAX_MILLISECONDS, MIN_MILLISECONDS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def converted(batch: pa.RecordBatch, schema: StructType, kind: str | None = None) -> pa.RecordBatch:
    """Return the batch in exactly the types that Spark compares it with.

    ``kind`` is that of all rows, where it was not asked for.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    target = to_arrow_schema(schema, timezone="UTC")
    columns = [_column(batch, field, kind) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


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
    """Return instants; what another service stored outside the years 1 to 9999 is clamped."""
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
