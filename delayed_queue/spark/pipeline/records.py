"""Records of files as messages that satisfy the rules of an offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import encode
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import storable
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    check_delay,
    check_group,
    check_schedule,
)
from delayed_queue.spark.pipeline.values import duration_of, instant_of, is_deeper, placed
from delayed_queue.spark.source.rules import (
    NO_PAYLOAD,
    OfferRules,
    Refusals,
    Values,
    headers_of,
    parse_json,
    plain,
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


# Records: a list of dicts, or columns as of Parquet.
Records = Any


class Checker(OfferRules):
    """Makes offers of records; names everything that is wrong with a record."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules.codec)
        self.rules = rules
        self.column_of = rules.column_of
        self._taken = set(self.column_of.values())
        self._zone = None if rules.time_zone is None else ZoneInfo(rules.time_zone)

    def check(self, records: Records) -> tuple[pa.Table, dict[int, list[str]]]:
        """Return the offers of the records, and the reasons against those that are none."""
        found = Refusals()
        given = {name: self._values(records, name) for name in FIELDS}
        offers = self.offers({**given, "payload": records}, found)
        return offers, {row: [text for _, text in some] for row, some in found.reasons.items()}

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """Return what a bad record can be found by, as far as it is known."""
        column: Any = self.column_of["key"]
        key = record.get(column)
        if type(key) not in (str, int):
            return None
        return storable(str(key)[:MAX_KEY_LENGTH])

    def _values(self, records: Records, name: str) -> Values:
        column: Any = self.column_of[name]
        if not isinstance(records, list):
            has = column in records.schema.names
            return records.column(column) if has else pa.nulls(records.num_rows)
        values = [each.get(column) for each in records]
        # Most columns are not there at all.
        return pa.nulls(len(values)) if values.count(None) == len(values) else values

    def group(self, values: Values, found: Refusals) -> pa.Array:
        return found.texts("group", _group, values, MAX_GROUP_LENGTH, may_be_null=True)

    def queue(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("queue", self._queue, values, pa.string())

    def _queue(self, name: Any) -> str:
        name = self.rules.queue if name in (None, "") else name
        if name is None:
            raise InvalidMessage("It names no queue, and --queue gives none.")
        if not isinstance(name, str):
            raise InvalidMessage(f"A queue's name is a text, not {type(name).__name__}.")
        return self._kind_of(name)

    def headers(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("headers", _headers, values, pa.string())

    def schedule_at(self, values: Values, found: Refusals) -> pa.Array:
        is_instant = isinstance(values, pa.Array) and pa.types.is_timestamp(values.type)
        if is_instant and values.type.tz is not None:
            return super().schedule_at(values, found)
        return found.each("schedule_at", self._schedule, values, pa.int64())

    def _schedule(self, value: Any) -> int | None:
        if value in (None, ""):
            return None
        return check_schedule(placed(instant_of(value), self._zone))

    def delay(self, values: Values, found: Refusals) -> pa.Array:
        return found.each("delay", _delay, values, pa.int64())

    def payload(self, values: Records, found: Refusals) -> pa.Array:
        """Return the payloads of whole records, which may be all of their other columns."""
        made = self._payloads(values, found)
        sizes = pc.binary_length(made)
        is_large = pc.fill_null(pc.greater(sizes, self.rules.max_bytes), False)
        for row in pc.indices_nonzero(is_large).to_pylist():
            most = f"at most {self.rules.max_bytes:,} are taken"
            found.add(row, "payload", f"The payload has {sizes[row].as_py():,} bytes; {most}.")
        return made

    def _payloads(self, records: Records, found: Refusals) -> pa.Array:
        column, kind = self.column_of["payload"], pa.binary()
        if isinstance(records, list):
            return found.each("payload", self._payload_in, records, kind)
        if column not in records.schema.names:
            return found.each("payload", self._payload_in, dicts_of(records), kind)
        values = records.column(column)
        if self._codec.name == "bytes" and pa.types.is_binary(values.type):
            return found.recheck("payload", self._payload_of, values, values.is_null())
        return found.each("payload", self._payload_of, values, kind)

    def _payload_in(self, record: Mapping[str, Any]) -> bytes:
        column: Any = self.column_of["payload"]
        if column in record:
            return self._payload_of(record[column])
        if self._codec.name != "json":
            raise InvalidMessage(NO_PAYLOAD)
        others = {name: each for name, each in record.items() if name not in self._taken}
        return self._encoded(plain(others))

    def _payload_of(self, value: Any) -> bytes:
        return self._encoded(self._decoded(value))

    def _encoded(self, value: Any) -> bytes:
        data, most = encode(self._codec, value), self.rules.max_depth
        # A payload with fewer brackets cannot be too deep, and counting them is cheap.
        is_suspect = data.count(b"[") + data.count(b"{") > most and self._codec.name == "json"
        if is_suspect and is_deeper(value, most):
            raise InvalidMessage(f"The payload is nested deeper than {most}.")
        return data

    def _decoded(self, value: Any) -> Any:
        if self._codec.name != "json":
            return value
        if isinstance(value, bytes) or (self.rules.are_texts_json and isinstance(value, str)):
            return parse_json(value, "The payload")
        if value is None and self.rules.are_texts_json:
            raise InvalidMessage(NO_PAYLOAD)
        return plain(value) if self.rules.are_texts_json else value


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows for Python."""
    names = batch.schema.names
    columns = zip(*map(values_of, batch.columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in columns]


def _group(group: Any) -> str | None:
    if group in (None, ""):
        return None
    return check_group(str(group) if type(group) is int else group)


def _delay(value: Any) -> int | None:
    if value in (None, ""):
        return None
    return check_delay(duration_of(value), datetime.now(UTC))


def _headers(value: Any) -> str | None:
    return None if value == "" else headers_of(value)
