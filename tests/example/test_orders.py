"""Orders from JSON lines: valid ones, and each kind of bad line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from example_project.demo.orders import FILE
from example_project.orders import InputError, OrderLine, read_orders

GOOD = {
    "order_id": "A-1", "customer": "Zsófia Müller", "amount": "19.99", "currency": "EUR",
    "created_at": "2025-11-28T20:00:00+02:00", "close_after": 300, "pay_after": 48,
}  # fmt: skip
CREATED = datetime(2025, 11, 28, 18, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.jsonl"


def read(path: Path, *lines: dict[str, Any] | bytes) -> tuple[list[OrderLine], list[str]]:
    """Return the orders and the warnings of a file with these lines."""
    raw = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    warnings: list[str] = []
    orders, rejected = read_orders(path, warn=warnings.append)
    assert rejected == len(warnings)
    return orders, warnings


def test_an_order_has_its_times(path: Path):
    [order], warnings = read(path, GOOD)
    assert warnings == []
    assert order == OrderLine(
        1, "A-1", "Zsófia Müller", Decimal("19.99"), "EUR", CREATED, timedelta(seconds=300),
        timedelta(seconds=48),
    )  # fmt: skip
    assert (order.close_at, order.pays_at) == (
        CREATED + timedelta(minutes=5), CREATED + timedelta(seconds=48)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pay_after", "in_time"), [(299.999, True), (300, False), (0, True), (None, False)]
)
def test_paid_in_time_is_before_the_deadline(path: Path, pay_after: Any, in_time: bool):
    [order], _ = read(path, GOOD | {"pay_after": pay_after})
    assert order.is_paid_in_time is in_time


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"amount": "12.5x"}, "ConversionSyntax"),
        ({"amount": "1.999"}, "is not an amount like 19.99"),
        ({"amount": "NaN"}, "InvalidOperation"),
        ({"amount": "0"}, "is not an amount like 19.99"),
        ({"amount": 5}, "amount is missing or not a text"),
        ({"order_id": "x" * 201}, "A key has 1 to 200 characters"),
        ({"customer": "\x00"}, "contains a NUL character"),
        ({"created_at": "yesterday"}, "Invalid isoformat string"),
        ({"created_at": "2025-11-28T18:00:00"}, "has no time zone"),
        ({"close_after": -1}, "-1 is not a number of seconds"),
        ({"close_after": "soon"}, "not supported"),
        ({"order_id": "FIRST"}, "'FIRST' is on line 1 already"),
        (b"{broken", "Expecting property name"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe", "can't decode"),
        (b"[" * 50_000, "recursion depth"),
    ],
)
def test_a_bad_line_costs_only_itself(path: Path, change: Any, reason: str):
    bad = change if isinstance(change, bytes) else GOOD | change
    orders, [warning] = read(path, GOOD | {"order_id": "FIRST"}, bad, GOOD | {"order_id": "LAST"})
    assert [each.order_id for each in orders] == ["FIRST", "LAST"]
    assert warning.startswith("orders.jsonl:2: ")
    assert reason in warning


def test_a_file_without_an_order_is_refused(path: Path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_orders(path)
    with pytest.raises(InputError, match="has no valid order"):
        read(path, b"{}")


def test_the_shipped_orders_are_all_valid_and_of_every_fate():
    orders, rejected = read_orders(FILE)
    assert (len(orders), rejected) == (10_000, 0)
    paid = sum(order.is_paid_in_time for order in orders)
    never = sum(order.pay_after is None for order in orders)
    assert 6000 < paid < 7000
    assert 3000 < never < 4000
    assert paid + never < len(orders)  # the others pay too late
