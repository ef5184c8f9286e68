"""From the rows of a DataFrame to offers: checked, in one form, in chunks of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import codec_named, decode, encode
from delayed_queue.exceptions import InvalidMessage, PayloadNotDecodable
from delayed_queue.messages import (
    MAX_KEY_LENGTH,
    MAX_MILLISECONDS,
    MIN_MILLISECONDS,
    encode_headers,
)

# What every chunk has: one form, so that its digest depends on what is offered alone.
OFFERS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("schedule_at", pa.int64()),
        ("delay", pa.int64()),
        ("headers", pa.string()),
    ]
)


def chunks(batches: Iterable[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.Table]:
    """Cut into tables of so many rows, or fewer where they would exceed so many bytes."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        for piece in _pieces(batch, rows, size):
            if waiting and (
                sum(each.num_rows for each in waiting) + piece.num_rows > rows
                or held + piece.nbytes > size
            ):
                yield pa.Table.from_batches(waiting)
                waiting, held = [], 0
            waiting.append(piece)
            held += piece.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _pieces(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Halve until it fits; one row that exceeds the size alone is a piece."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > rows or (batch.nbytes > size and batch.num_rows > 1):
        middle = min(rows, max(batch.num_rows // 2, 1))
        yield from _pieces(batch.slice(0, middle), rows, size)
        yield from _pieces(batch.slice(middle), rows, size)
        return
    yield batch


def offers_of(rows: pa.Table, codec: str) -> pa.Table:
    """Return the rows as offers, or raise InvalidMessage naming column and reason."""
    count = rows.num_rows
    makers: dict[str, Callable[[pa.Array], pa.Array]] = {
        "key": _keys,
        "payload": lambda column: _payloads(column, codec),
        "schedule_at": _schedules,
        "delay": _delays,
        "headers": _headers,
    }
    columns = [
        makers[field.name](rows.column(field.name).combine_chunks())
        if field.name in rows.column_names
        else pa.nulls(count, field.type)
        for field in OFFERS
    ]
    offers = pa.table([_one(column) for column in columns], schema=OFFERS)
    _refuse(
        pc.and_(pc.is_valid(offers["schedule_at"]), pc.is_valid(offers["delay"])),
        offers["key"],
        "delay",
        "is given beside a schedule_at; give one of them",
    )
    return offers


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse(wrong: Any, keys: Any, column: str, reason: str) -> None:
    """Raise for the first row that is wrong; the key names it, and never the payload."""
    if pc.any(wrong).as_py():
        key = keys[pc.index(wrong, True).as_py()].as_py()
        raise InvalidMessage(f"The column {column} {reason} (key {str(key)[:40]!r}).")


def _keys(column: pa.Array) -> pa.Array:
    keys = column.cast(pa.string())
    _refuse(pc.is_null(keys), keys, "key", "is null")
    lengths = pc.utf8_length(keys)
    _refuse(pc.equal(lengths, 0), keys, "key", "is empty")
    too_long = pc.greater(lengths, MAX_KEY_LENGTH)
    _refuse(too_long, keys, "key", f"has more than {MAX_KEY_LENGTH} characters")
    if _may_have_nul(keys):
        _refuse(pc.match_substring(keys, "\x00"), keys, "key", "contains a NUL character")
    return keys


def _may_have_nul(texts: pa.Array) -> bool:
    """Look through the bytes of all at once; they may be others' too, of which this is a slice."""
    data = texts.buffers()[2]
    return data is not None and b"\x00" in data.to_pybytes()


def _payloads(column: pa.Array, codec: str) -> pa.Array:
    if column.null_count:
        raise InvalidMessage("The column payload is null.")
    if codec == "json" and not pa.types.is_binary(column.type):
        return pa.array(map(_canonical, column.to_pylist()), pa.binary())
    return column.cast(pa.binary())


_JSON: Final = codec_named("json")


def _canonical(text: str) -> bytes:
    """Return the bytes that Django's side would store: a repetition is told by its bytes."""
    try:
        return encode(_JSON, decode(_JSON, text.encode()))
    except (PayloadNotDecodable, InvalidMessage):
        # Without the cause, which would quote the payload.
        raise InvalidMessage("The column payload is not JSON, which the codec asks for.") from None


def _schedules(column: pa.Array) -> pa.Array:
    # Floored, also before 1970, as everywhere.
    floored = pc.floor_temporal(column, unit="millisecond")
    milliseconds = floored.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
    return _in_range(milliseconds, "schedule_at")


def _in_range(milliseconds: pa.Array, column: str) -> pa.Array:
    wrong = pc.or_(
        pc.less(milliseconds, MIN_MILLISECONDS), pc.greater(milliseconds, MAX_MILLISECONDS)
    )
    if pc.any(wrong).as_py():
        raise InvalidMessage(f"The column {column} leads outside the years 1 to 9999.")
    return milliseconds


def _delays(column: pa.Array) -> pa.Array:
    if pa.types.is_duration(column.type):
        # Floored like a timestamp, which has the function for it.
        as_times = column.cast(pa.int64()).cast(pa.timestamp("us"))
        return (
            pc.floor_temporal(as_times, unit="millisecond")
            .cast(pa.timestamp("ms"))
            .cast(pa.int64())
        )
    return column.cast(pa.int64())


def _headers(column: pa.Array) -> pa.Array:
    return pa.array(map(_header_text, column.to_pylist()), pa.string())


def _header_text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return encode_headers(json.loads(value) if isinstance(value, str) else dict(value))
    except ValueError:
        raise InvalidMessage("The column headers is not a JSON object, or no text in it.") from None


def digest_of(offers: pa.Table, *context: str) -> str:
    """Return what tells one chunk from another: what is offered, to what kind, and how."""
    # By instructions of the processor, so twice as fast as what is made for software.
    digest = sha256("\x00".join(context).encode())
    for batch in offers.combine_chunks().to_batches():
        digest.update(batch.serialize())
    return digest.hexdigest()


def due_times(offers: pa.Table, now: int) -> pa.Array:
    """Return when each is due: its schedule, or its delay from the job's own instant."""
    delayed = pc.add(pc.fill_null(offers["delay"], 0), now)
    return _in_range(_one(pc.coalesce(offers["schedule_at"], delayed)), "delay")
