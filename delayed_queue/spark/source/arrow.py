"""Arrow columns: checked as offers, as binary COPY takes them, and from what PostgreSQL answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import MAX_KIND_LENGTH, codec_named, decode, encode, kind_of
from delayed_queue.exceptions import DelayedQueueError, InvalidMessage, PayloadNotDecodable
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_HEADERS_LENGTH,
    MAX_KEY_LENGTH,
    MAX_MILLISECONDS,
    MIN_MILLISECONDS,
    encode_headers,
)
from delayed_queue.spark.source.records import Checker, plain

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


T = TypeVar("T")
# A scalar stands for a column of which every row has the same.
Columns = Mapping[str, "pa.Array | pa.ChunkedArray | pa.Scalar"]


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


# What records are read as, where columns alone tell that they are offers
_ABSENT: Final = ("delay", "headers")
_TEXTS: Final = ("group", "queue")


def offers_among(rows: pa.RecordBatch, checker: Checker) -> tuple[pa.Array, Columns] | None:
    """Return which records are messages as they stand, and the columns of all as those have them.

    Of the others each is to be looked at; of all, where None is returned: types do not tell.
    """
    names = set(rows.schema.names)
    given = {name: rows.column(each) for name, each in checker.column_of.items() if each in names}
    if not _are_told(given):
        return None
    nothing = pa.nulls(rows.num_rows, pa.string())
    keys = given["key"].cast(pa.string())
    groups = given.get("group", nothing).cast(pa.string())
    groups = pc.if_else(pc.equal(groups, ""), None, groups)
    kinds = _kinds_among(given.get("queue", nothing).cast(pa.string()), checker)
    payloads = _payloads_among(given["payload"], checker)
    times = _milliseconds(given.get("schedule_at", nothing.cast(pa.timestamp("us", "UTC"))))
    fit = [
        _fit(keys, MAX_KEY_LENGTH),
        pc.or_kleene(pc.is_null(groups), _fit(groups, MAX_GROUP_LENGTH)),
        pc.is_valid(kinds),
        pc.is_valid(payloads),
        pc.or_kleene(pc.is_null(times), pc.invert(_out_of_range(times))),
    ]
    columns = {
        "kind": kinds, "key": keys, "payload": payloads, "schedule_ms": times, "grouped": groups
    }  # fmt: skip
    return pc.fill_null(reduce(pc.and_kleene, fit), False), columns


def _are_told(given: Mapping[str, pa.Array]) -> bool:
    """Return whether the types of the columns leave only values in question."""
    is_text = pa.types.is_string
    key, payload, times = (given.get(name) for name in ("key", "payload", "schedule_at"))
    if key is None or not (is_text(key.type) or pa.types.is_integer(key.type)):
        return False
    if payload is None or not (is_text(payload.type) or pa.types.is_binary(payload.type)):
        return False
    if times is not None and not (pa.types.is_timestamp(times.type) and times.type.tz):
        return False
    others = [given[name] for name in _ABSENT if name in given]
    texts = [given[name] for name in _TEXTS if name in given]
    return all(each.null_count == len(each) for each in others) and all(
        is_text(each.type) and _is_utf8(each) for each in (*texts, *([key] * is_text(key.type)))
    )


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _fit(texts: pa.Array, most: int) -> pa.Array:
    lengths = pc.utf8_length(texts)
    fits = pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, most))
    if _may_have_nul(texts):
        fits = pc.and_(fits, pc.invert(pc.match_substring(texts, "\x00")))
    return fits


def _kinds_among(queues: pa.Array, checker: Checker) -> pa.Array:
    """Return the kinds; null where there is none."""
    encoded = pc.fill_null(queues, "").dictionary_encode()
    made = [_or_none(checker.kind_of, name) for name in encoded.dictionary.to_pylist()]
    return pa.array(made, pa.string()).take(encoded.indices)


def _payloads_among(column: pa.Array, checker: Checker) -> pa.Array:
    """Return the payloads; null where there is none. What is to be decoded is, one by one."""
    if checker.rules.codec == "bytes" and pa.types.is_binary(column.type):
        is_small = pc.less_equal(pc.binary_length(column), checker.rules.max_bytes)
        return pc.if_else(is_small, column, None)
    made = [_or_none(checker.payload_of, each) for each in column.to_pylist()]
    return pa.array(made, pa.binary())


def _or_none(make: Callable[[Any], T], value: Any) -> T | None:
    try:
        return make(value)
    except DelayedQueueError:
        return None


# The signature, no flags, no extension of the header; and what ends the rows.
HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
END: Final = b"\xff\xff"


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


# What every chunk has: one form, so that its digest depends on what is offered alone.
OFFERS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("schedule_at", pa.int64()),
        ("delay", pa.int64()),
        ("headers", pa.string()),
        ("kind", pa.string()),  # null where the job has one for all
        ("group", pa.string()),
    ]
)


def offers_of(rows: pa.Table, codec: str) -> pa.Table:
    """Return the rows as offers, or raise InvalidMessage naming column and reason."""
    keys = _texts(rows.column("key").combine_chunks(), "key", MAX_KEY_LENGTH)
    _refuse(pc.is_null(keys), keys, "key", "is null")
    makers: dict[str, Callable[[pa.Array], pa.Array]] = {
        "key": lambda _: keys,
        "payload": lambda column: _payloads(column, keys, codec),
        "schedule_at": _schedules,
        "delay": _delays,
        "headers": _headers,
        "queue": lambda column: _kinds(column, keys, "queue", codec),
        "kind": lambda column: _kinds(column, keys, "kind", None),
        "group": lambda column: _texts(column, "group", MAX_GROUP_LENGTH, keys),
    }
    made = {
        name.replace("queue", "kind"): one_array(makers[name](rows.column(name).combine_chunks()))
        for name in rows.column_names
    }
    nothing = {field.name: pa.nulls(rows.num_rows, field.type) for field in OFFERS}
    offers = pa.table(nothing | made, schema=OFFERS)
    _refuse(
        pc.and_(pc.is_valid(offers["schedule_at"]), pc.is_valid(offers["delay"])),
        offers["key"],
        "delay",
        "is given beside a schedule_at; give one of them",
    )
    return offers


def one_array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse(wrong: Any, keys: Any, column: str, reason: str) -> None:
    """Raise for the first row that is wrong; the key names it, and never the payload."""
    if pc.any(wrong).as_py():
        key = keys[pc.index(wrong, True).as_py()].as_py()
        raise InvalidMessage(f"The column {column} {reason} (key {str(key)[:40]!r}).")


def _texts(column: pa.Array, name: str, most: int, keys: pa.Array | None = None) -> pa.Array:
    """Return the column as it can be stored: keys, or what is named by these keys."""
    texts = column.cast(pa.string())
    keys = texts if keys is None else keys
    lengths = pc.utf8_length(texts)
    _refuse(pc.equal(lengths, 0), keys, name, "is empty")
    _refuse(pc.greater(lengths, most), keys, name, f"has more than {most} characters")
    if _may_have_nul(texts):
        _refuse(pc.match_substring(texts, "\x00"), keys, name, "contains a NUL character")
    return texts


def _kinds(column: pa.Array, keys: pa.Array, name: str, codec: str | None) -> pa.Array:
    """Return the kind of each row: the column's, or the queue's under the codec."""
    _refuse(pc.is_null(column), keys, name, "is null")
    suffix = "" if codec is None else kind_of("", codec_named(codec))
    names = _texts(column, name, MAX_KIND_LENGTH - len(suffix), keys)
    return pc.binary_join_element_wise(names, suffix, "")


def _may_have_nul(texts: pa.Array) -> bool:
    """Look through the bytes of all at once; they may be others' too, of which this is a slice."""
    data = texts.buffers()[2]
    return data is not None and b"\x00" in data.to_pybytes()


def _payloads(column: pa.Array, keys: pa.Array, codec: str) -> pa.Array:
    _refuse(pc.is_null(column), keys, "payload", "is null")
    if pa.types.is_nested(column.type):
        return _encoded(column, keys, codec)
    if codec == "json" and not pa.types.is_binary(column.type):
        return pa.array(map(_canonical, column.to_pylist(), keys.to_pylist()), pa.binary())
    return column.cast(pa.binary())


def _encoded(column: pa.Array, keys: pa.Array, codec: str) -> pa.Array:
    """Return structs, lists and maps as JSON; instants and dates in them as ISO 8601."""
    if codec != "json":
        raise InvalidMessage(f"The column payload has columns of its own, and no codec {codec!r}.")
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array(map(_json_of, values, keys.to_pylist()), pa.binary())


def _json_of(value: Any, key: str) -> bytes:
    try:
        return encode(_JSON, plain(value))
    except InvalidMessage:
        # Without the cause, which would quote the payload.
        raise InvalidMessage(
            f"The column payload holds what JSON has no form for, as bytes (key {key[:40]!r})."
        ) from None


_JSON: Final = codec_named("json")


def _canonical(text: str, key: str) -> bytes:
    """Return the bytes that Django's side would store: a repetition is identified by its bytes."""
    try:
        return encode(_JSON, decode(_JSON, text.encode()))
    except (PayloadNotDecodable, InvalidMessage):
        # Without the cause, which would quote the payload.
        raise InvalidMessage(
            f"The column payload is not JSON, which the codec asks for (key {key[:40]!r})."
        ) from None


def _schedules(column: pa.Array) -> pa.Array:
    return in_range(_milliseconds(column), "schedule_at")


def _milliseconds(instants: pa.Array) -> pa.Array:
    # In UTC: an instant of the hour that clocks repeat cannot be floored in the session's zone.
    return _floored(instants.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))


def _floored(microseconds: pa.Array) -> pa.Array:
    """Return whole milliseconds, floored also before 1970; Arrow floors only timestamps."""
    floored = pc.floor_temporal(microseconds.cast(pa.timestamp("us")), unit="millisecond")
    return floored.cast(pa.timestamp("ms")).cast(pa.int64())


def in_range(milliseconds: pa.Array, column: str) -> pa.Array:
    if pc.any(_out_of_range(milliseconds)).as_py():
        raise InvalidMessage(f"The column {column} leads outside the years 1 to 9999.")
    return milliseconds


def _out_of_range(milliseconds: pa.Array) -> pa.Array:
    return pc.or_(
        pc.less(milliseconds, MIN_MILLISECONDS), pc.greater(milliseconds, MAX_MILLISECONDS)
    )


def _delays(column: pa.Array) -> pa.Array:
    whole = column.cast(pa.int64())
    return _floored(whole) if pa.types.is_duration(column.type) else whole


def _headers(column: pa.Array) -> pa.Array:
    if column.null_count == len(column):
        # As mostly: a look at each took a third of the time of a chunk.
        return pa.nulls(len(column), pa.string())
    return pa.array(map(_header_text, column.to_pylist()), pa.string())


def _header_text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return encode_headers(json.loads(value) if isinstance(value, str) else dict(value))
    except ValueError:
        raise InvalidMessage(
            "The column headers is not a JSON object of at most "
            f"{MAX_HEADERS_LENGTH} characters, or no text in it."
        ) from None
