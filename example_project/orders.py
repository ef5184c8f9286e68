"""Read orders from JSON lines or CSV, one line at a time, and say what is wrong with a line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Protocol

from delayed_queue.exceptions import suggest
from delayed_queue.messages import check_key, check_text

SHOWN_REJECTS: Final = 20
MAX_LINE_BYTES: Final = 65_536
MAX_CUSTOMER_LENGTH: Final = 200
DEFAULT_CLOSE_AFTER: Final = timedelta(minutes=30)
_AMOUNT: Final = re.compile(r"\d{1,10}(\.\d{1,2})?", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,3})?", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)


class InputError(Exception):
    """The file as a whole cannot be read as orders."""


@dataclass(frozen=True, slots=True)
class OrderLine:
    """A valid order and the line it stands on; ``pay_after`` is None if it is never paid."""

    line: int
    order_id: str
    customer: str
    amount: Decimal
    currency: str
    created_at: datetime
    close_after: timedelta = DEFAULT_CLOSE_AFTER
    pay_after: timedelta | None = None

    @property
    def close_at(self) -> datetime:
        return self.created_at + self.close_after

    @property
    def pays_at(self) -> datetime | None:
        return None if self.pay_after is None else self.created_at + self.pay_after

    @property
    def is_paid_in_time(self) -> bool:
        return self.pay_after is not None and self.pay_after < self.close_after


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no order, and why."""

    line: int
    reason: str
    text: str


class LineReader(Protocol):
    """The interface that is needed of a file: its next line, or so many bytes of it."""

    def readline(self, size: int = ..., /) -> bytes: ...


def read_orders(path: Path) -> Iterator[OrderLine | BadLine]:
    """Yield each line of the file as an order or as what is wrong with it.

    Holds one line and the ids seen so far. Raises InputError when the file cannot be orders
    at all: another format, a wrong header, not readable.
    """
    parse = parser_for(path)
    try:
        with path.open("rb") as file:
            yield from parse(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


Parser = Callable[[LineReader], Iterator[OrderLine | BadLine]]


def parser_for(path: Path) -> Parser:
    """Return the parser of the file's format, which its suffix tells."""
    parsers: dict[str, Parser] = {".jsonl": parse_jsonl, ".ndjson": parse_jsonl, ".csv": parse_csv}
    try:
        return parsers[path.suffix.lower()]
    except KeyError:
        raise InputError(
            f"{path} is neither .jsonl nor .csv, so its format is not known."
        ) from None


def parse_jsonl(file: LineReader) -> Iterator[OrderLine | BadLine]:
    """Yield orders from a stream of JSON objects, one a line."""
    return _parse(file, _json_fields)


def parse_csv(file: LineReader) -> Iterator[OrderLine | BadLine]:
    """Yield orders from a stream of comma-separated lines under a header."""
    header: list[str] = []

    def fields(text: str) -> Mapping[str, Any]:
        cells = _csv_cells(text)
        if not header:
            header.extend(_checked_header(cells))
            return {}
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} columns where the header has {len(header)}")
        return dict(zip(header, cells, strict=True))

    return _parse(file, fields, has_header=True)


def _parse(
    file: LineReader, fields: Callable[[str], Mapping[str, Any]], *, has_header: bool = False
) -> Iterator[OrderLine | BadLine]:
    first_seen: dict[str, int] = {}
    for number, raw in _lines(file):
        if not raw.strip():
            continue
        try:
            found = fields(_decoded(raw))
            if has_header:
                has_header = False
                continue
            order = _order(number, found)
            _check_is_new(order, first_seen)
        # RecursionError: JSON nested a thousand deep.
        except (ValueError, RecursionError) as error:
            if has_header:
                raise InputError(f"Line {number} is not a header: {error}.") from error
            yield _bad(number, raw, error)
        else:
            yield order


def _lines(file: LineReader) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines, of which one that is too long is cut, never held whole."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = raw
        while len(raw) > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES)
        yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at {error.start + 1}") from None


def _bad(number: int, raw: bytes, error: Exception) -> BadLine:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return BadLine(number, reason, raw[:1000].decode(errors="backslashreplace").rstrip("\r\n"))


def _check_is_new(order: OrderLine, first_seen: dict[str, int]) -> None:
    first = first_seen.setdefault(order.order_id, order.line)
    if first != order.line:
        raise ValueError(f"order_id {order.order_id!r} is on line {first} already")


def _json_fields(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 # the line is wrong, not our call
    return found


def _csv_cells(text: str) -> list[str]:
    # Line by line, so that a quote left open spoils its own line and not the rest of the file.
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        what = "a quote is not closed" if "end of data" in str(error) else str(error)
        raise ValueError(f"not CSV: {what}") from None


def _checked_header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    _check_columns(names)
    if len(set(names)) < len(names):
        raise ValueError("it names a column twice")
    return names


def _check_columns(names: list[str]) -> None:
    for name in names:
        if name not in _READERS:
            close = suggest(name, _READERS)
            hint = f", did you mean {close!r}" if close else f"; known: {', '.join(_READERS)}"
            raise ValueError(f"unknown column {name!r}{hint}")
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise ValueError(f"no column {missing[0]!r}")


def _order(number: int, found: Mapping[str, Any]) -> OrderLine:
    _check_columns(list(found))
    values = {name: _READERS[name](name, value) for name, value in found.items()}
    if values.get("close_after", DEFAULT_CLOSE_AFTER) is None:
        del values["close_after"]  # empty: the default
    order = OrderLine(number, **values)
    if not order.close_after:
        raise ValueError("close_after must be more than 0")
    return order


# The columns. Each reader takes its column's name and a value of JSON or the text of CSV.


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise ValueError(f"{name} {_shown(value)} is not a text")  # noqa: TRY004
    text = str(value).strip()
    if not text:
        raise ValueError(f"{name} is empty")
    return text


def _order_id(name: str, value: Any) -> str:
    try:
        return check_key(_text(name, value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}".rstrip(".")) from error


def _customer(name: str, value: Any) -> str:
    text = check_text(name, _text(name, value))
    if len(text) > MAX_CUSTOMER_LENGTH:
        raise ValueError(f"{name} has {len(text)} characters, more than {MAX_CUSTOMER_LENGTH}")
    return text


def _amount(name: str, value: Any) -> Decimal:
    if not _AMOUNT.fullmatch(_text(name, value)):
        raise ValueError(f"{name} {_shown(value)} is not an amount like 19.99")
    amount = Decimal(_text(name, value))
    if not amount:
        raise ValueError(f"{name} must be more than 0")
    return amount


def _currency(name: str, value: Any) -> str:
    if not _CURRENCY.fullmatch(_text(name, value)):
        raise ValueError(f"{name} {_shown(value)} is not a code like EUR")
    return _text(name, value)


def _instant(name: str, value: Any) -> datetime:
    at: datetime | None = None
    with suppress(ValueError):
        at = datetime.fromisoformat(_text(name, value))
    if at is None or at.utcoffset() is None:
        raise ValueError(f"{name} {_shown(value)} is not a time like 2025-11-28T18:00:00Z")
    # With the longest close_after this stays far from what a datetime cannot hold.
    if not 1970 <= at.year < 3000:
        raise ValueError(f"{name} {_shown(value)} is not in the years 1970 to 2999")
    return at


def _seconds(name: str, value: Any) -> timedelta | None:
    if value is None or value == "":
        return None
    if not _SECONDS.fullmatch(_text(name, value)):
        raise ValueError(f"{name} {_shown(value)} is not a number of seconds")
    return timedelta(seconds=float(_text(name, value)))


def _shown(value: Any) -> str:
    return repr(str(value) if isinstance(value, Decimal) else value)[:60]


_READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "order_id": _order_id,
    "customer": _customer,
    "amount": _amount,
    "currency": _currency,
    "created_at": _instant,
    "close_after": _seconds,
    "pay_after": _seconds,
}
REQUIRED_COLUMNS: Final = ("order_id", "customer", "amount", "currency", "created_at")


class RejectsFile:
    """Collects bad lines as JSON lines with ``line``, ``reason`` and ``text``.

    Replaces what an earlier run left under the path; without bad lines there is no file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def __enter__(self) -> RejectsFile:
        self.path.unlink(missing_ok=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.count:
            self._file.close()

    def add(self, bad: BadLine) -> None:
        if not self.count:
            self._file = self.path.open("w", encoding="utf-8")
        self.count += 1
        self._file.write(json.dumps(asdict(bad), ensure_ascii=False) + "\n")


def read_valid(
    path: Path, limit: int | None, rejects_path: Path | None, warn: Callable[[str], None]
) -> tuple[list[OrderLine], int]:
    """Return the valid orders and how many lines are none; those are said and written down."""
    orders: list[OrderLine] = []
    rejects_path = rejects_path or path.with_name(f"{path.stem}.rejects.jsonl")
    try:
        with RejectsFile(rejects_path) as rejects:
            for each in read_orders(path):
                if len(orders) == limit:
                    break
                if isinstance(each, OrderLine):
                    orders.append(each)
                    continue
                rejects.add(each)
                if rejects.count <= SHOWN_REJECTS:
                    warn(f"{path.name}:{each.line}: {each.reason}")
    except OSError as error:
        raise InputError(f"{rejects_path} cannot be written: {error.strerror}.") from error
    if rejects.count:
        warn(f"{rejects.count:,} lines are no orders. Rejected lines: {rejects_path}")
    if not orders:
        raise InputError(f"{path} has no valid order.")
    return orders, rejects.count
