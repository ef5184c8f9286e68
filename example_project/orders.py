"""Orders from a file of JSON lines, and the reason for each rejected line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from delayed_queue.messages import check_key, check_text

SHOWN_REJECTS: Final = 20
DEFAULT_CLOSE_AFTER: Final = 1800
# Errors of a wrong type or a missing field.
_WRONG: Final = (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError)


class InputError(Exception):
    """The file has no orders."""


@dataclass(frozen=True, slots=True)
class OrderLine:
    """A valid order and its line in the file; ``pay_after`` is None if it is never paid."""

    line: int
    order_id: str
    customer: str
    amount: Decimal
    currency: str
    created_at: datetime
    close_after: timedelta = timedelta(seconds=DEFAULT_CLOSE_AFTER)
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


def read_orders(
    path: Path, limit: int | None = None, warn: Callable[[str], object] = print
) -> tuple[list[OrderLine], int]:
    """Return the first valid orders, and the number of rejected lines, each with a warning."""
    orders: dict[str, OrderLine] = {}
    rejected = 0
    for number, raw in enumerate(_lines(path), 1):
        if len(orders) == limit:
            break
        try:
            order = _order(number, raw)
            if first := orders.get(order.order_id):
                raise ValueError(f"{order.order_id!r} is on line {first.line} already")
        except _WRONG as error:
            rejected += 1
            if rejected <= SHOWN_REJECTS:
                warn(f"{path.name}:{number}: {error}")
        else:
            orders[order.order_id] = order
    if not orders:
        raise InputError(f"{path} has no valid order.")
    return list(orders.values()), rejected


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _order(number: int, raw: bytes) -> OrderLine:
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    for name in ("order_id", "customer", "amount", "currency", "created_at"):
        if not isinstance(found.get(name), str):
            raise TypeError(f"{name} is missing or not a text")
    amount, created_at = Decimal(found["amount"]), datetime.fromisoformat(found["created_at"])
    if not 0 < amount < 10**10 or amount != round(amount, 2):
        raise ValueError(f"amount {found['amount']!r} is not an amount like 19.99")
    if created_at.utcoffset() is None:
        raise ValueError(f"created_at {found['created_at']!r} has no time zone")
    pay_after = found.get("pay_after")
    return OrderLine(
        number, check_key(found["order_id"]), check_text("customer", found["customer"]), amount,
        check_text("currency", found["currency"]), created_at,
        _seconds(found.get("close_after", DEFAULT_CLOSE_AFTER)),
        None if pay_after is None else _seconds(pay_after),
    )  # fmt: skip


def _seconds(value: Any) -> timedelta:
    if not 0 <= value < 10**9:
        raise ValueError(f"{value} is not a number of seconds")
    return timedelta(seconds=value)
