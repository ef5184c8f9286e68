"""From a record to a message that is held to the rules of an offer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from delayed_queue.codecs import check_kind, codec_named, encode, kind_of
from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import storable
from delayed_queue.messages import (
    MAX_KEY_LENGTH,
    check_delay,
    check_group,
    check_key,
    check_schedule,
    encode_headers,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.retries import parse_duration

FIELDS: Final = ("key", "payload", "schedule_at", "delay", "headers", "group", "queue")
MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
_CLIPPED: Final = 40
# What a number of a schedule counts, in milliseconds.
TIME_UNITS: Final[Mapping[str, int]] = {"s": 1000, "ms": 1}
# Seconds since 1970, taken for milliseconds, are instants before this until the year 22000.
_SUSPECT: Final = to_milliseconds(datetime(1990, 1, 1, tzinfo=UTC))
_UNIT_UNSAID: Final = (
    "schedule_at is a number before 1990 in milliseconds, so it may be in seconds. It was not "
    "offered. Pass --time-unit s, or ms if it is in milliseconds."
)
_NO_ZONE: Final = (
    "schedule_at has no time zone: write it with an offset, as in 2026-11-22T09:00:00+01:00, or "
    "pass --time-zone for all of them, as in Europe/Berlin."
)
_BOTH: Final = "It has both a schedule_at and a delay."


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
    # What numbers of schedules count, of TIME_UNITS; None takes milliseconds and doubts old ones.
    time_unit: str | None = None
    # Of instants without an offset, by its name; None refuses them.
    time_zone: str | None = None
    # Of the cells of CSV that make the payload, of TYPES; others are texts.
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checked:
    """A message as it will be offered, or why it cannot be."""

    kind: str | None = None
    key: str | None = None
    payload: bytes | None = None
    schedule_ms: int | None = None
    delay_ms: int | None = None
    headers: str | None = None
    group: str | None = None
    reasons: tuple[str, ...] = ()


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


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found) or "_" in text:
        raise ValueError(text)
    return found


def _whole(text: str) -> int:
    if "_" in text:
        raise ValueError(text)
    return int(text)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text.strip().lower()]


# By the names of Spark's types; what JSON has no type for is text.
TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "boolean": _boolean,
    **dict.fromkeys(("byte", "short", "integer", "long"), _whole),
    **dict.fromkeys(("float", "double"), _number),
    "decimal": lambda text: str(Decimal(text)),
    "date": lambda text: date.fromisoformat(text).isoformat(),
    "timestamp": lambda text: datetime.fromisoformat(text).isoformat(),
}


class Checker:
    """Turns records into messages; every wrong thing in one is named, not only the first."""

    def __init__(self, rules: Rules, check_row: Callable[[Any], Any] | None = None) -> None:
        self.rules = rules
        self._codec = codec_named(rules.codec)
        self.column_of = {name: column for column, name in rules.mapping.items()}
        for name in FIELDS:
            if name not in rules.mapping:
                self.column_of.setdefault(name, name)
        self._taken = set(self.column_of.values())
        self._kinds: dict[Any, str] = {}
        self._zone = None if rules.time_zone is None else ZoneInfo(rules.time_zone)
        self._check_row = check_row

    def check(self, record: Mapping[str, Any]) -> Checked:
        """Return the message of the record, or the reasons against it."""
        try:
            found = self._message(record)
        except DelayedQueueError:
            return self._refused(record)
        return found if self._check_row is None else self._checked_row(found, self._check_row)

    def key_of(self, record: Mapping[str, Any]) -> str | None:
        """Return what a bad record can be found by, as far as it can be told."""
        key = self._value(record, "key")
        if type(key) not in (str, int):
            return None
        return storable(str(key)[:MAX_KEY_LENGTH])

    def _message(self, record: Mapping[str, Any]) -> Checked:
        times = [self._value(record, name) for name in ("schedule_at", "delay")]
        if all(each not in (None, "") for each in times):
            raise InvalidMessage(_BOTH)
        return Checked(
            self._kind(record), self._key(record), self._payload(record),
            self._schedule(record), self._delay(record), self._headers(record),
            self._group(record),
        )  # fmt: skip

    def _refused(self, record: Mapping[str, Any]) -> Checked:
        """Look again, at one part after the other, for all that is wrong."""
        reasons: list[str] = []
        for part in (
            self._kind, self._key, self._payload, self._schedule, self._delay, self._headers,
            self._group, self._message,
        ):  # fmt: skip
            try:
                part(record)
            except DelayedQueueError as error:
                reasons.append(str(error))
        # The last one repeats the first that was found, unless only the whole is wrong.
        return Checked(reasons=tuple(dict.fromkeys(reasons)))

    def _checked_row(self, found: Checked, check_row: Callable[[Any], Any]) -> Checked:
        row = row_of(
            str(found.kind), str(found.key), found.payload or b"",
            (found.schedule_ms, found.delay_ms), (found.headers, found.group), self.rules.codec,
        )  # fmt: skip
        reasons = tuple(str(each) for each in check_row(row) or ())
        return Checked(reasons=reasons) if reasons else found

    def _value(self, record: Mapping[str, Any], name: str) -> Any:
        return record.get(self.column_of[name])

    def _kind(self, record: Mapping[str, Any]) -> str:
        return self.kind_of(self._value(record, "queue"))

    def kind_of(self, name: Any) -> str:
        """Return the kind of a queue; raises DelayedQueueError for what is none."""
        name = self.rules.queue if name in (None, "") else name
        if name is None:
            raise InvalidMessage("It names no queue, and --queue gives none.")
        if not isinstance(name, str):
            raise InvalidMessage(f"A queue's name is a text, not {type(name).__name__}.")
        if name not in self._kinds:
            self._kinds[name] = check_kind(kind_of(check_kind(name), self._codec))
        return self._kinds[name]

    def _key(self, record: Mapping[str, Any]) -> str:
        key = self._value(record, "key")
        if key is None:
            raise InvalidMessage("It has no key.")
        if type(key) is int:
            key = str(key)
        return check_key(key)

    def _group(self, record: Mapping[str, Any]) -> str | None:
        group = self._value(record, "group")
        if group in (None, ""):
            return None
        return check_group(str(group) if type(group) is int else group)

    def _payload(self, record: Mapping[str, Any]) -> bytes:
        column = self.column_of["payload"]
        if column in record:
            return self.payload_of(record[column])
        if self.rules.codec == "json":
            others = {name: each for name, each in record.items() if name not in self._taken}
            value = {name: self._typed(name, each) for name, each in others.items()}
            return self._encoded(value)
        raise InvalidMessage("It has no payload.")

    def payload_of(self, value: Any) -> bytes:
        """Return the payload of a value as it was read; raises DelayedQueueError for none."""
        return self._encoded(self._decoded(value))

    def _encoded(self, value: Any) -> bytes:
        data = encode(self._codec, value)
        # Without so many brackets it cannot be that deep, and counting them is cheap.
        most = self.rules.max_depth
        is_suspect = self.rules.codec == "json" and data.count(b"[") + data.count(b"{") > most
        if is_suspect and is_deeper(value, most):
            raise InvalidMessage(f"The payload is nested deeper than {most}.")
        if len(data) > self.rules.max_bytes:
            raise InvalidMessage(
                f"The payload has {len(data):,} bytes; at most {self.rules.max_bytes:,} are taken."
            )
        return data

    def _typed(self, name: str, value: Any) -> Any:
        """Return the value as the schema has it; an empty cell is null where it is no text."""
        kind = self.rules.types.get(name, "string")
        if kind == "string" or not isinstance(value, str):
            return plain(value)
        try:
            return TYPES[kind](value) if value else None
        except (ValueError, KeyError, ArithmeticError):
            # Not what it is: the cell is somebody's data.
            raise InvalidMessage(f"The column {name} is no {kind}.") from None

    def _decoded(self, value: Any) -> Any:
        if self.rules.codec != "json":
            return value
        if isinstance(value, bytes) or (self.rules.are_texts_json and isinstance(value, str)):
            return parse_json(value, "The payload")
        if value is None and self.rules.are_texts_json:
            raise InvalidMessage("It has no payload.")
        return plain(value) if self.rules.are_texts_json else value

    def _schedule(self, record: Mapping[str, Any]) -> int | None:
        value = self._value(record, "schedule_at")
        if value is None or value == "":
            return None
        return check_schedule(self._placed(_instant(value, self.rules.time_unit)))

    def _placed(self, instant: datetime) -> datetime:
        """Return the instant with its offset: its own, or that of the zone."""
        if instant.utcoffset() is not None:
            return instant
        if self._zone is None:
            raise InvalidMessage(_NO_ZONE)
        placed = instant.replace(tzinfo=self._zone)
        if placed.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None) != instant:
            raise InvalidMessage(
                f"schedule_at is an hour that {self._zone.key} skips when clocks are put forward."
            )
        return placed

    def _delay(self, record: Mapping[str, Any]) -> int | None:
        value = self._value(record, "delay")
        if value is None or value == "":
            return None
        delay = _duration(value)
        if delay < timedelta(0):
            raise InvalidMessage(f"delay {_clip(value)} is negative.")
        return check_delay(delay, datetime.now(UTC))

    def _headers(self, record: Mapping[str, Any]) -> str | None:
        value = self._value(record, "headers")
        if value is None or value == "":
            return None
        if isinstance(value, str | bytes):
            value = parse_json(value, "headers")
        return encode_headers(plain(value))


def row_of(
    kind: str,
    key: str,
    payload: bytes,
    when: tuple[int | None, int | None],
    more: tuple[str | None, str | None],
    codec: str,
) -> dict[str, Any]:
    """Return the row that a target is given: values, not columns; ``when`` in milliseconds.

    ``more`` is its headers and its group.
    """
    schedule_ms, delay_ms = when
    headers, group = more
    return {
        "queue": kind.rpartition("|")[0],
        "key": key,
        "payload": codec_named(codec).decode(payload),
        "schedule_at": None if schedule_ms is None else from_milliseconds(schedule_ms),
        "delay": None if delay_ms is None else timedelta(milliseconds=delay_ms),
        "headers": None if headers is None else json.loads(headers),
        "group": group,
    }


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the value of the JSON, or refuse what is none; NaN is none.

    An object that has a name twice is refused too: two readers of it may differ.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except _NameTwice:
        raise InvalidMessage(f"{what} has an object with the same name twice.") from None
    except (ValueError, RecursionError) as error:
        # Only where, never what: the text is somebody's data.
        where = f" (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidMessage(f"{what} is not JSON{where}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


class _NameTwice(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NameTwice
    return found


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)


def _instant(value: Any, unit: str | None) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    if type(value) is int or (isinstance(value, str) and value.lstrip("-").isdecimal()):
        return _counted(int(value), unit)
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidMessage(
            f"schedule_at {_clip(value)} is no instant: write ISO 8601 with an offset, or "
            "milliseconds since 1970."
        ) from None


def _counted(number: int, unit: str | None) -> datetime:
    """Return the instant so many units after 1970; without a unit, refuse what is in doubt."""
    found = _from_exact_milliseconds(number * TIME_UNITS[unit or "ms"])
    if unit is None and number < _SUSPECT:
        raise InvalidMessage(_UNIT_UNSAID)
    return found


def _from_exact_milliseconds(milliseconds: int) -> datetime:
    found = from_milliseconds(milliseconds)
    if check_schedule(found) != milliseconds:
        raise InvalidMessage(f"schedule_at {milliseconds} is outside the years 1 to 9999.")
    return found


def _duration(value: Any) -> timedelta:
    try:
        if isinstance(value, timedelta):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str):
            return _parsed_duration(value)
    except (ValueError, OverflowError):
        pass
    raise InvalidMessage(f"delay {_clip(value)} is neither seconds nor a duration such as '15m'.")


def _parsed_duration(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return parse_duration(text)


def _clip(value: Any) -> str:
    return repr(value)[:_CLIPPED]


def plain(value: Any) -> Any:
    """Return the value with what Parquet has and JSON has not, turned into text."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value


def storable_json(value: Any) -> str:
    """Return JSON that PostgreSQL stores as jsonb: NUL and lone surrogates are replaced."""
    return json.dumps(_with_storable_texts(value), default=str)


def _with_storable_texts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {storable(str(name)): _with_storable_texts(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_storable_texts(each) for each in value]
    return storable(value) if isinstance(value, str) else value


def is_deeper(value: Any, most: int) -> bool:
    """Return whether containers are nested deeper than that, without recursion."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _children(each)]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
