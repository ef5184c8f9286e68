"""The rules of an offer, applied to columns.

Arrow finds the values that may break a rule; ``delayed_queue.messages`` judges each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import cache
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
# A column: an array, or a list of any Python values. Any: Arrow has no types.
Values = Any
_Make = Callable[[Any], Any]


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

    def each(self, field: str, make: _Make, values: Values, kind: pa.DataType) -> pa.Array:
        """Return what ``make`` returns for each value; refuse the rows for which it raises."""
        if isinstance(values, pa.Array) and values.null_count == len(values):
            # Columns that are not there: no call for each row.
            with suppress(DelayedQueueError):
                return pa.repeat(pa.scalar(make(None), kind), len(values))
        listed = values if isinstance(values, list) else values_of(values)
        try:
            return pa.array([make(value) for value in listed], kind)
        except DelayedQueueError:
            made = [self._made(field, make, row, value) for row, value in enumerate(listed)]
            return pa.array(made, kind)

    def texts(
        self, field: str, check: _Make, values: Values, most: int, *, may_be_null: bool = False
    ) -> pa.Array:
        """Return the texts; ``check`` judges those that are not 1 to ``most`` storable characters.

        Whole numbers are texts, too.
        """
        texts = _as_texts(values)
        if texts is None or texts.null_count == len(texts):
            return self.each(field, check, values, pa.string())
        doubtful = pc.fill_null(_doubtful(texts, most), not may_be_null)
        return self.recheck(field, check, texts, doubtful)

    def recheck(self, field: str, make: _Make, column: pa.Array, doubtful: pa.Array) -> pa.Array:
        """Return the column; doubtful values are replaced by what ``make`` returns."""
        rows = pc.indices_nonzero(doubtful).to_pylist()
        if not rows:
            return column
        values = values_of(column)
        for row in rows:
            values[row] = self._made(field, make, row, values[row])
        return pa.array(values, column.type)

    def _made(self, field: str, make: _Make, row: int, value: Any) -> Any:
        try:
            return make(value)
        except DelayedQueueError as error:
            self.add(row, field, str(error))
            return None


class OfferRules:
    """Makes offers of columns, by a method for each field; an import overrides some."""

    def __init__(self, codec: str) -> None:
        self._codec = codec_named(codec)
        # Each name is judged once.
        self._kind_of = cache(lambda name: check_kind(kind_of(check_kind(name), self._codec)))

    def offers(self, given: Mapping[str, Values], found: Refusals) -> pa.Table:
        """Return the columns as offers, and add the reasons against invalid rows to ``found``."""
        made = {
            name.replace("queue", "kind"): getattr(self, name)(values, found)
            for name, values in given.items()
        }
        rows = len(made["key"])
        times = [_is_given(given.get(name, pa.nulls(rows))) for name in ("schedule_at", "delay")]
        found.where(pc.and_(*times), "delay", BOTH_TIMES)
        return pa.table(
            {each.name: pa.nulls(rows, each.type) for each in OFFERS} | made, schema=OFFERS
        )

    def key(self, values: Values, found: Refusals) -> pa.Array:
        return found.texts("key", _key, values, MAX_KEY_LENGTH)

    def group(self, values: Values, found: Refusals) -> pa.Array:
        return found.texts("group", check_group, values, MAX_GROUP_LENGTH, may_be_null=True)

    def kind(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("kind", cache(check_kind), values, pa.string())

    def queue(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("queue", self._kind_of, values, pa.string())

    def headers(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("headers", headers_of, values, pa.string())

    def schedule_at(self, values: Values, found: Refusals) -> pa.Array:
        return instants(values, "schedule_at", found)

    def expires_at(self, values: Values, found: Refusals) -> pa.Array:
        return instants(values, "expires_at", found)

    def delay(self, values: Values, found: Refusals) -> pa.Array:
        whole = values.cast(pa.int64())
        return _floored(whole) if pa.types.is_duration(values.type) else whole

    def payload(self, values: Values, found: Refusals) -> pa.Array:
        is_json = self._codec.name == "json"
        if pa.types.is_nested(values.type):
            make = self._nested if is_json else _refuse_nested
            return found.each("payload", make, values, pa.binary())
        if is_json and not pa.types.is_binary(values.type):
            return found.each("payload", self._canonical, values, pa.binary())
        found.where(pc.is_null(values), "payload", NO_PAYLOAD)
        return values.cast(pa.binary())

    def _nested(self, value: Any) -> bytes:
        """Return a struct, list or map as JSON; instants and dates in it as ISO 8601."""
        if value is None:
            raise InvalidMessage(NO_PAYLOAD)
        try:
            return encode(self._codec, plain(value))
        except InvalidMessage:
            # Without the cause, which quotes the payload.
            raise InvalidMessage("It has a type that JSON cannot hold, such as bytes.") from None

    def _canonical(self, text: str | None) -> bytes:
        """Return canonical JSON, as ``offer`` stores it: repeated offers are compared by bytes."""
        if text is None:
            raise InvalidMessage(NO_PAYLOAD)
        try:
            return encode(self._codec, decode(self._codec, text.encode()))
        except (DelayedQueueError, ValueError):
            # Without the cause, which would quote the payload.
            raise InvalidMessage("It is not JSON, which the codec json requires.") from None


def offers_of(rows: pa.Table, codec: str) -> pa.Table:
    """Return the rows as offers, or raise InvalidMessage for the first invalid row."""
    found = Refusals()
    given = {name: one_array(rows[name]) for name in rows.column_names}
    offers = OfferRules(codec).offers(given, found)
    if found.reasons:
        row = min(found.reasons)
        field, reason = found.reasons[row][0]
        key = str(values_of(given["key"].slice(row, 1))[0])
        raise InvalidMessage(f"The column {field} is refused: {reason} (key {key[:40]!r})")
    return offers


def _as_texts(values: Values) -> pa.Array | None:
    """Return values that are taken as texts; None for a column with another one."""
    try:
        if isinstance(values, list):
            return pa.array(values, pa.string())
        is_text = any(
            each(values.type)
            for each in (pa.types.is_string, pa.types.is_integer, pa.types.is_null)
        )
        return values.cast(pa.string()) if is_text else None
    except (pa.ArrowException, UnicodeError):
        return None  # JSON values of other types, or lone surrogates


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


def _is_given(values: Values) -> pa.Array:
    """Return which values are neither null nor an empty text."""
    if isinstance(values, pa.Array) and not pa.types.is_string(values.type):
        return values.is_valid()
    listed = values if isinstance(values, list) else values_of(values)
    return pa.array([each not in (None, "") for each in listed], pa.bool_())


def _key(key: Any) -> str:
    if key is None:
        raise InvalidMessage("It has no key.")
    return check_key(str(key) if type(key) is int else key)


def headers_of(value: Any) -> str | None:
    """Return a map, or JSON, as the stored text of headers."""
    if isinstance(value, str | bytes):
        value = parse_json(value, "headers")
    return encode_headers(plain(value))


def _refuse_nested(_: Any) -> bytes:
    raise InvalidMessage("It has fields of its own, which only the codec json can encode.")


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


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the value of the JSON, or refuse what is none; NaN is none.

    An object that has a name twice is refused too: two readers of it may differ.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        with_space = _DECODER.decode
        try:
            value, end = _scan(text, 0)
        except StopIteration:
            return with_space(text)
        return value if end == len(text) else with_space(text)
    except _NameTwice:
        raise InvalidMessage(f"{what} has an object with the same name twice.") from None
    except (ValueError, RecursionError) as error:
        # Only the position: the text is user data.
        where = f" (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidMessage(f"{what} is not JSON{where}.") from None


class _NameTwice(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NameTwice
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)
# As in delayed_queue.codecs: faster than decode() for JSON without white space around it.
_scan: Final = _DECODER.scan_once  # type: ignore[attr-defined]


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
