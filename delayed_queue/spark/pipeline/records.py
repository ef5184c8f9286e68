"""Records of files as messages that satisfy the rules of an offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import check_kind, codec_named, encode, kind_of
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import storable
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    check_delay,
    check_group,
    check_key,
    check_schedule,
    encode_headers,
)
from delayed_queue.spark.pipeline.values import (
    duration_of,
    instant_of,
    is_deeper,
    parse_json,
    placed,
)
from delayed_queue.spark.source.rules import (
    BOTH_TIMES,
    NO_PAYLOAD,
    Refusals,
    instants,
    plain,
    text_column,
    values_of,
)

FIELDS: Final = ("key", "payload", "schedule_at", "delay", "headers", "group", "queue")
MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class Rules:
    """The mapping of records to messages; travels to the executors."""

    queue: str | None
    codec: str = "json"
    mapping: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH
    # Texts of Parquet and CSV hold JSON; those of JSON lines are values already.
    are_texts_json: bool = False
    # The name of the zone of instants without an offset; None refuses them.
    time_zone: str | None = None

    @property
    def column_of(self) -> dict[str, str | None]:
        """The column of each field: the mapped one, else the one of its name, if that is free."""
        free = {name: None if name in self.mapping else name for name in FIELDS}
        return free | {name: column for column, name in self.mapping.items()}


# Records as dicts, or as the columns of Parquet.
# Any: Arrow has no types.
Records = Any
_Values = Any


@dataclass(frozen=True, slots=True)
class Checked:
    """Messages in columns, and the reasons against the rows that are none."""

    columns: dict[str, pa.Array]
    reasons: dict[int, list[str]]


def parse_mapping(pairs: list[str]) -> dict[str, str]:
    """Return the field by column of ``column=field`` texts."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        column, equals, name = pair.rpartition("=")
        if not equals or not column:
            raise InvalidConfiguration(f"--map {pair!r} is not column=field.")
        if name not in FIELDS:
            raise InvalidConfiguration(
                f"--map {pair!r}: {name!r} is not a field; there are {', '.join(FIELDS)}."
            )
        if column in mapping or name in mapping.values():
            raise InvalidConfiguration(f"--map {pair!r}: the column or the field is mapped twice.")
        mapping[column] = name
    return mapping


class Checker:
    """Makes messages of records; names everything that is wrong with a record."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._codec = codec_named(rules.codec)
        self.column_of = rules.column_of
        self._taken = set(self.column_of.values())
        self._kinds: dict[str, str] = {}
        self._zone = None if rules.time_zone is None else ZoneInfo(rules.time_zone)

    def check(self, records: Records) -> Checked:
        """Return the messages of the records, and the reasons against those that are none."""
        found = Refusals()
        given = {name: self._values(records, name) for name in FIELDS}
        columns = {
            "kind": found.each("queue", self._kind, _listed(given["queue"]), pa.string()),
            "key": _texts(found, "key", _key, given["key"], MAX_KEY_LENGTH),
            "payload": self._payloads(records, found),
            "schedule_ms": self._schedules(given["schedule_at"], found),
            "delay_ms": _each(found, "delay", _delay, given["delay"], pa.int64()),
            "headers": _each(found, "headers", _headers, given["headers"], pa.string()),
            "grouped": _texts(found, "group", _group, given["group"], MAX_GROUP_LENGTH),
        }
        both = pc.and_(_is_given(given["schedule_at"]), _is_given(given["delay"]))
        found.where(both, "delay", BOTH_TIMES)
        reasons = {row: [text for _, text in some] for row, some in found.reasons.items()}
        return Checked(columns, reasons)

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """Return what a bad record can be found by, as far as it is known."""
        column: Any = self.column_of["key"]
        key = record.get(column)
        if type(key) not in (str, int):
            return None
        return storable(str(key)[:MAX_KEY_LENGTH])

    def _values(self, records: Records, name: str) -> _Values:
        column: Any = self.column_of[name]
        if isinstance(records, list):
            return [each.get(column) for each in records]
        has = column in records.schema.names
        return records.column(column) if has else pa.nulls(records.num_rows)

    def _kind(self, name: Any) -> str:
        name = self.rules.queue if name in (None, "") else name
        if name is None:
            raise InvalidMessage("It names no queue, and --queue gives none.")
        if not isinstance(name, str):
            raise InvalidMessage(f"A queue's name is a text, not {type(name).__name__}.")
        if name not in self._kinds:
            self._kinds[name] = check_kind(kind_of(check_kind(name), self._codec))
        return self._kinds[name]

    def _payloads(self, records: Records, found: Refusals) -> pa.Array:
        column, kind = self.column_of["payload"], pa.binary()
        if isinstance(records, list):
            return found.each("payload", self._payload_in, records, kind)
        if column not in records.schema.names:
            return found.each("payload", self._payload_in, dicts_of(records), kind)
        values = records.column(column)
        if self.rules.codec == "bytes" and pa.types.is_binary(values.type):
            is_large = pc.greater(pc.binary_length(values), self.rules.max_bytes)
            return found.recheck("payload", self._payload_of, values, pc.fill_null(is_large, True))
        return found.each("payload", self._payload_of, values_of(values), kind)

    def _payload_in(self, record: Mapping[str, Any]) -> bytes:
        column: Any = self.column_of["payload"]
        if column in record:
            return self._payload_of(record[column])
        if self.rules.codec != "json":
            raise InvalidMessage(NO_PAYLOAD)
        others = {name: each for name, each in record.items() if name not in self._taken}
        return self._encoded(plain(others))

    def _payload_of(self, value: Any) -> bytes:
        return self._encoded(self._decoded(value))

    def _encoded(self, value: Any) -> bytes:
        data = encode(self._codec, value)
        # A payload with fewer brackets cannot be too deep, and counting them is cheap.
        most = self.rules.max_depth
        is_suspect = self.rules.codec == "json" and data.count(b"[") + data.count(b"{") > most
        if is_suspect and is_deeper(value, most):
            raise InvalidMessage(f"The payload is nested deeper than {most}.")
        if len(data) > self.rules.max_bytes:
            raise InvalidMessage(
                f"The payload has {len(data):,} bytes; at most {self.rules.max_bytes:,} are taken."
            )
        return data

    def _decoded(self, value: Any) -> Any:
        if self.rules.codec != "json":
            return value
        if isinstance(value, bytes) or (self.rules.are_texts_json and isinstance(value, str)):
            return parse_json(value, "The payload")
        if value is None and self.rules.are_texts_json:
            raise InvalidMessage(NO_PAYLOAD)
        return plain(value) if self.rules.are_texts_json else value

    def _schedules(self, values: _Values, found: Refusals) -> pa.Array:
        is_instant = isinstance(values, pa.Array) and pa.types.is_timestamp(values.type)
        if is_instant and values.type.tz is not None:
            return instants(values, "schedule_at", found)
        return _each(found, "schedule_at", self._schedule, values, pa.int64())

    def _schedule(self, value: Any) -> int | None:
        if value in (None, ""):
            return None
        return check_schedule(placed(instant_of(value), self._zone))


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows for Python."""
    names = batch.schema.names
    columns = zip(*map(values_of, batch.columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in columns]


def _listed(values: _Values) -> list[Any]:
    return values if isinstance(values, list) else values_of(values)


def _is_given(values: _Values) -> pa.Array:
    """Return which values are neither null nor an empty text."""
    if isinstance(values, pa.Array) and not pa.types.is_string(values.type):
        return values.is_valid()
    return pa.array([each not in (None, "") for each in _listed(values)], pa.bool_())


def _each(
    found: Refusals, field: str, make: Callable[[Any], Any], values: _Values, kind: pa.DataType
) -> pa.Array:
    if isinstance(values, pa.Array) and values.null_count == len(values):
        return pa.nulls(len(values), kind)
    return found.each(field, make, _listed(values), kind)


def _texts(
    found: Refusals, field: str, check: Callable[[Any], Any], values: _Values, most: int
) -> pa.Array:
    is_list = isinstance(values, list)
    if not is_list and not _holds_texts(values.type):
        return found.each(field, check, values_of(values), pa.string())
    try:
        texts = pa.array(values, pa.string()) if is_list else values.cast(pa.string())
    except (pa.ArrowException, UnicodeError):
        # JSON values of other types, or lone surrogates.
        return found.each(field, check, _listed(values), pa.string())
    return text_column(found, field, check, texts, most, may_be_null=field == "group")


def _holds_texts(kind: pa.DataType) -> bool:
    """Return whether values are taken as texts: whole numbers are, bytes and fractions are not."""
    return any(each(kind) for each in (pa.types.is_string, pa.types.is_integer, pa.types.is_null))


def _key(key: Any) -> str:
    if key is None:
        raise InvalidMessage("It has no key.")
    return check_key(str(key) if type(key) is int else key)


def _group(group: Any) -> str | None:
    if group in (None, ""):
        return None
    return check_group(str(group) if type(group) is int else group)


def _delay(value: Any) -> int | None:
    if value in (None, ""):
        return None
    return check_delay(duration_of(value), datetime.now(UTC))


def _headers(value: Any) -> str | None:
    if value in (None, ""):
        return None
    if isinstance(value, str | bytes):
        value = parse_json(value, "headers")
    return encode_headers(plain(value))
