"""The rules of an offer, applied to columns.

Arrow finds the values that may break a rule; ``delayed_queue.messages`` judges each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import check_kind, codec_named, decode, encode, kind_of
from delayed_queue.exceptions import DelayedQueueError, InvalidMessage
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    MAX_MILLISECONDS,
    MIN_MILLISECONDS,
    check_group,
    check_key,
    encode_headers,
)

# Every chunk has this schema, so that its digest depends only on the offers.
OFFERS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("schedule_at", pa.int64()),
        ("delay", pa.int64()),
        ("headers", pa.string()),
        ("kind", pa.string()),  # null where the job has one kind for all rows
        ("group", pa.string()),
        ("expires_at", pa.int64()),
    ]
)
NO_PAYLOAD: Final = "It has no payload."
OUT_OF_RANGE: Final = "It leads outside the years 1 to 9999."
BOTH_TIMES: Final = "It has both a schedule_at and a delay."
_JSON: Final = codec_named("json")


class Refusals:
    """The reasons against rows: by row, pairs of the field and the reason."""

    def __init__(self) -> None:
        self.reasons: dict[int, list[tuple[str, str]]] = {}

    def add(self, row: int, field: str, reason: str) -> None:
        self.reasons.setdefault(row, []).append((field, reason))

    def where(self, wrong: pa.Array, field: str, reason: str) -> None:
        """Refuse the rows for which ``wrong`` is true."""
        for row in pc.indices_nonzero(wrong).to_pylist():
            self.add(row, field, reason)

    def each(
        self, field: str, make: Callable[[Any], Any], values: Sequence[Any], kind: pa.DataType
    ) -> pa.Array:
        """Return what ``make`` returns for each value; refuse the rows for which it raises."""
        try:
            return pa.array([make(value) for value in values], kind)
        except DelayedQueueError:
            made = [self._made(field, make, row, value) for row, value in enumerate(values)]
            return pa.array(made, kind)

    def recheck(
        self, field: str, make: Callable[[Any], Any], column: pa.Array, doubtful: pa.Array
    ) -> pa.Array:
        """Return the column; doubtful values are replaced by what ``make`` returns."""
        rows = pc.indices_nonzero(doubtful).to_pylist()
        if not rows:
            return column
        values = values_of(column)
        for row in rows:
            values[row] = self._made(field, make, row, values[row])
        return pa.array(values, column.type)

    def _made(self, field: str, make: Callable[[Any], Any], row: int, value: Any) -> Any:
        try:
            return make(value)
        except DelayedQueueError as error:
            self.add(row, field, str(error))
            return None


def offers_of(rows: pa.Table, codec: str) -> pa.Table:
    """Return the rows as offers, or raise InvalidMessage for the first invalid row."""
    found = Refusals()
    offers = checked_offers(rows, codec, found)
    if found.reasons:
        row = min(found.reasons)
        field, reason = found.reasons[row][0]
        key = str(values_of(one_array(rows["key"].slice(row, 1)))[0])
        raise InvalidMessage(f"The column {field} is refused: {reason} (key {key[:40]!r})")
    return offers


def checked_offers(rows: pa.Table, codec: str, found: Refusals) -> pa.Table:
    """Return the rows as offers, and add the reasons against invalid rows to ``found``."""
    given = {name: one_array(rows[name]) for name in rows.column_names}
    suffix = kind_of("", codec_named(codec))
    makers: dict[str, Callable[[pa.Array], pa.Array]] = {
        "key": lambda keys: text_column(found, "key", check_key, keys, MAX_KEY_LENGTH),
        "payload": lambda column: _payloads(column, codec, found),
        "schedule_at": lambda column: instants(column, "schedule_at", found),
        "expires_at": lambda column: instants(column, "expires_at", found),
        "delay": _delays,
        "headers": lambda column: header_column(found, _headers, column),
        "queue": lambda column: _kinds(found, "queue", column, suffix),
        "kind": lambda column: _kinds(found, "kind", column, ""),
        "group": lambda column: text_column(
            found, "group", check_group, column, MAX_GROUP_LENGTH, may_be_null=True
        ),
    }
    made = {name.replace("queue", "kind"): makers[name](each) for name, each in given.items()}
    offers = {each.name: pa.nulls(rows.num_rows, each.type) for each in OFFERS} | made
    both = pc.and_(pc.is_valid(offers["schedule_at"]), pc.is_valid(offers["delay"]))
    found.where(both, "delay", BOTH_TIMES)
    return pa.table(offers, schema=OFFERS)


def text_column(
    found: Refusals, field: str, check: Callable[[Any], Any], texts: pa.Array, most: int,
    *, may_be_null: bool = False,
) -> pa.Array:  # fmt: skip
    """Return the texts; ``check`` judges those that are not 1 to ``most`` storable characters."""
    doubtful = pc.fill_null(_doubtful(texts.cast(pa.string()), most), not may_be_null)
    return found.recheck(field, check, texts.cast(pa.string()), doubtful)


def _doubtful(texts: pa.Array, most: int) -> pa.Array:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8
        return pa.repeat(pa.scalar(True), len(texts))
    lengths = pc.utf8_length(texts)
    doubtful = pc.or_(pc.equal(lengths, 0), pc.greater(lengths, most))
    data = texts.buffers()[2]
    if data is not None and b"\x00" in data.to_pybytes():  # one scan for all rows
        doubtful = pc.or_(doubtful, pc.match_substring(texts, "\x00"))
    return doubtful


def values_of(column: pa.Array) -> list[Any]:
    """Return the values for Python; texts that are not UTF-8 get lone surrogates."""
    try:
        return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        read = column.cast(pa.binary()).to_pylist()
        return [each and each.decode("utf-8", "surrogateescape") for each in read]


def _kinds(found: Refusals, field: str, names: pa.Array, suffix: str) -> pa.Array:
    """Return the kind of each row; each name is judged once."""
    known: dict[Any, str] = {}

    def make(name: Any) -> str:
        if name not in known:
            known[name] = check_kind(check_kind(name) + suffix)
        return known[name]

    return found.each(field, make, values_of(names), pa.string())


def _payloads(column: pa.Array, codec: str, found: Refusals) -> pa.Array:
    if pa.types.is_nested(column.type):
        make = _json_of if codec == "json" else _refuse_nested
        return found.each("payload", make, values_of(column), pa.binary())
    if codec == "json" and not pa.types.is_binary(column.type):
        return found.each("payload", _canonical, values_of(column), pa.binary())
    found.where(pc.is_null(column), "payload", NO_PAYLOAD)
    return column.cast(pa.binary())


def _refuse_nested(_: Any) -> bytes:
    raise InvalidMessage("It has fields of its own, which only the codec json can encode.")


def _json_of(value: Any) -> bytes:
    """Return a struct, list or map as JSON; instants and dates in it as ISO 8601."""
    if value is None:
        raise InvalidMessage(NO_PAYLOAD)
    try:
        return encode(_JSON, plain(value))
    except InvalidMessage:
        # Without the cause, which quotes the payload.
        raise InvalidMessage("It has a type that JSON cannot hold, such as bytes.") from None


def _canonical(text: str | None) -> bytes:
    """Return canonical JSON, as ``offer`` stores it: repeated offers are compared by bytes."""
    if text is None:
        raise InvalidMessage(NO_PAYLOAD)
    try:
        return encode(_JSON, decode(_JSON, text.encode()))
    except (DelayedQueueError, ValueError):
        # Without the cause, which would quote the payload.
        raise InvalidMessage("It is not JSON, which the codec json requires.") from None


def instants(column: pa.Array, field: str, found: Refusals) -> pa.Array:
    """Return instants as milliseconds, floored."""
    # In UTC: an instant of the hour that clocks repeat cannot be floored in the session's zone.
    times = _floored(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    found.where(is_out_of_range(times), field, OUT_OF_RANGE)
    return times


def _floored(microseconds: pa.Array) -> pa.Array:
    """Return whole milliseconds, floored also before 1970; Arrow floors only timestamps."""
    floored = pc.floor_temporal(microseconds.cast(pa.timestamp("us")), unit="millisecond")
    return floored.cast(pa.timestamp("ms")).cast(pa.int64())


def is_out_of_range(milliseconds: pa.Array) -> pa.Array:
    return pc.or_(
        pc.less(milliseconds, MIN_MILLISECONDS), pc.greater(milliseconds, MAX_MILLISECONDS)
    )


def _delays(column: pa.Array) -> pa.Array:
    whole = column.cast(pa.int64())
    return _floored(whole) if pa.types.is_duration(column.type) else whole


def header_column(found: Refusals, make: Callable[[Any], Any], column: pa.Array) -> pa.Array:
    if column.null_count == len(column):
        # The usual case; checking each value takes a third of a chunk's time.
        return pa.nulls(len(column), pa.string())
    return found.each("headers", make, values_of(column), pa.string())


def _headers(value: Any) -> str | None:
    if not isinstance(value, str):
        return encode_headers(value)
    try:
        headers = json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidMessage("headers is not JSON.") from None
    return encode_headers(headers)


def plain(value: Any) -> Any:
    """Return the value with Parquet's types that JSON lacks turned into texts."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value


def one_array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
