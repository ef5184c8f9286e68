"""Orders from JSON lines and CSV: every kind of bad line, and one line in memory at a time."""

from __future__ import annotations

import io
import itertools
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_project.data.make_orders import COUNT, DEFAULT_FILE, as_bytes
from example_project.orders import (
    MAX_LINE_BYTES,
    BadLine,
    InputError,
    OrderLine,
    RejectsFile,
    parse_csv,
    parse_jsonl,
    read_orders,
)

GOOD = {
    "order_id": "A-1",
    "customer": "Zsófia Müller",
    "amount": "19.99",
    "currency": "EUR",
    "created_at": "2025-11-28T18:00:00Z",
    "close_after": 300,
    "pay_after": 48,
}
ORDER = OrderLine(
    line=1,
    order_id="A-1",
    customer="Zsófia Müller",
    amount=Decimal("19.99"),
    currency="EUR",
    created_at=datetime(2025, 11, 28, 18, tzinfo=UTC),
    close_after=timedelta(seconds=300),
    pay_after=timedelta(seconds=48),
)
HEADER = b"order_id,customer,amount,currency,created_at,close_after,pay_after\n"
ROW = "A-1,Zsófia Müller,19.99,EUR,2025-11-28T18:00:00Z,300,48\n".encode()


def jsonl(*lines):
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return list(parse_jsonl(io.BytesIO(b"\n".join(raw))))


def csv_of(*lines):
    return list(parse_csv(io.BytesIO(HEADER + b"".join(lines))))


def test_an_order_reads_the_same_from_both_formats():
    assert jsonl(GOOD) == [ORDER]
    [order] = csv_of(ROW)
    assert order.line == 2
    assert (order.order_id, order.amount, order.pay_after) == ("A-1", ORDER.amount, ORDER.pay_after)
    assert order.close_at == datetime(2025, 11, 28, 18, 5, tzinfo=UTC)


@pytest.mark.parametrize("never", [{"pay_after": None}, {"pay_after": ""}, {}])
def test_an_order_without_pay_after_is_never_paid(never):
    line = {name: value for name, value in GOOD.items() if name != "pay_after"} | never
    [order] = jsonl(line)
    assert order.pay_after is None
    assert order.pays_at is None
    assert not order.is_paid_in_time


@pytest.mark.parametrize("value", [None, "", " "])
def test_without_close_after_there_is_half_an_hour(value):
    if value == " ":
        [order] = csv_of(b"A-1,Ann,1.00,EUR,2025-11-28T18:00:00Z,,\n")
    else:
        [order] = jsonl(GOOD | {"close_after": value})
    assert order.close_after == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("pay_after", "in_time"), [(299.999, True), (300, False), (301, False), (0, True)]
)
def test_paid_in_time_is_before_the_deadline(pay_after, in_time):
    [order] = jsonl(GOOD | {"pay_after": pay_after})
    assert order.is_paid_in_time is in_time


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"amount": 19.99}, {"amount": Decimal("19.99")}),
        ({"amount": 20}, {"amount": Decimal(20)}),
        ({"order_id": 4711}, {"order_id": "4711"}),
        ({"order_id": " A-1 "}, {"order_id": "A-1"}),
        ({"order_id": "ß" * 200}, {"order_id": "ß" * 200}),
        ({"close_after": "0.5"}, {"close_after": timedelta(seconds=0.5)}),
        ({"created_at": "2025-11-28T20:00:00+02:00"}, {"created_at": ORDER.created_at}),
    ],
)
def test_what_is_meant_is_understood(change, expected):
    [order] = jsonl(GOOD | change)
    assert {name: getattr(order, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"amount": "abc"}, "amount 'abc' is not an amount like 19.99"),
        ({"amount": "1.999"}, "amount '1.999' is not an amount like 19.99"),
        ({"amount": "-1"}, "amount '-1' is not an amount like 19.99"),
        ({"amount": "1e3"}, "amount '1e3' is not an amount like 19.99"),
        ({"amount": "٣"}, "amount '٣' is not an amount like 19.99"),
        ({"amount": "12345678901"}, "amount '12345678901' is not an amount like 19.99"),
        ({"amount": 0}, "amount must be more than 0"),
        ({"amount": True}, "amount True is not a text"),
        ({"amount": None}, "amount None is not a text"),
        ({"amount": [1]}, "amount [1] is not a text"),
        ({"amount": ""}, "amount is empty"),
        ({"order_id": "x" * 201}, "order_id: A key has 1 to 200 characters; this one has 201"),
        ({"order_id": "a\x00b"}, "order_id: The key 'a\\x00b' contains a NUL character"),
        ({"order_id": "\ud800"}, "order_id: The key '\\ud800' is not valid Unicode text"),
        ({"order_id": "  "}, "order_id: order_id is empty"),
        ({"customer": "x" * 201}, "customer has 201 characters, more than 200"),
        ({"customer": "\x00"}, "The customer '\\x00' contains a NUL character."),
        ({"currency": "eur"}, "currency 'eur' is not a code like EUR"),
        ({"created_at": "yesterday"}, "created_at 'yesterday' is not a time like"),
        ({"created_at": "2025-11-28T18:00:00"}, "created_at '2025-11-28T18:00:00' is not a time"),
        ({"created_at": "9999-12-31T23:59:59Z"}, "is not in the years 1970 to 2999"),
        ({"close_after": "soon"}, "close_after 'soon' is not a number of seconds"),
        ({"close_after": 0}, "close_after must be more than 0"),
        ({"pay_after": -1}, "pay_after -1 is not a number of seconds"),
        ({"pay_aftr": 1}, "unknown column 'pay_aftr', did you mean 'pay_after'"),
        ({"zzz": 1}, "unknown column 'zzz'; known: order_id, customer,"),
    ],
)
def test_a_bad_value_is_named_with_its_line(change, reason):
    good, bad, also_good = jsonl(GOOD | {"order_id": "1"}, GOOD | change, GOOD | {"order_id": "3"})
    assert isinstance(bad, BadLine)
    assert bad.line == 2
    assert reason in bad.reason
    assert (good.line, also_good.line) == (1, 3)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"order_id": ', "not JSON: Expecting value at column 14"),
        (b"[1, 2]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"order_id": "\xe9"}', "not UTF-8: byte 0xe9 at 15"),
        (b"[" * 50_000, "nested too deeply"),
        (b'{"amount": NaN}', "no column 'order_id'"),
        (b'{"amount": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"x": "' + b"y" * MAX_LINE_BYTES, f"longer than {MAX_LINE_BYTES} bytes"),
        (b"\xff\xfe{\x00", "not UTF-8: byte 0xff at 1"),
    ],
)
def test_a_line_that_is_no_object_costs_only_itself(line, reason):
    bad, good = jsonl(line, GOOD)
    assert isinstance(bad, BadLine)
    assert bad.line == 1
    assert reason in bad.reason
    assert good == OrderLine(
        **{name: getattr(ORDER, name) for name in ORDER.__slots__} | {"line": 2}
    )


@pytest.mark.parametrize("column", ["order_id", "customer", "amount", "currency", "created_at"])
def test_a_missing_column_is_named(column):
    [bad] = jsonl({name: value for name, value in GOOD.items() if name != column})
    assert bad.reason == f"no column '{column}'"


def test_the_second_of_two_equal_ids_is_refused_and_names_the_first():
    first, _, second = jsonl(GOOD, GOOD | {"order_id": "B"}, GOOD)
    assert first == ORDER
    assert second.reason == "order_id 'A-1' is on line 1 already"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"A-2,Ann,1.00,EUR,2025-11-28T18:00:00Z,300\n", "6 columns where the header has 7"),
        (b"A-2,Ann,1.00,EUR,2025-11-28T18:00:00Z,300,,x\n", "8 columns where the header has 7"),
        (b'A-2,"Ann,1.00,EUR,2025-11-28T18:00:00Z,300,\n', "not CSV: a quote is not closed"),
        (b'A-2,"A"nn,1.00,EUR,2025-11-28T18:00:00Z,300,\n', "not CSV: ',' expected after"),
        (b"A-2,Am\xe9lie,1.00,EUR,2025-11-28T18:00:00Z,300,\n", "not UTF-8: byte 0xe9 at 7"),
    ],
)
def test_a_bad_csv_row_costs_only_itself(row, reason):
    bad, good = csv_of(row, ROW)
    assert isinstance(bad, BadLine)
    assert bad.line == 2
    assert reason in bad.reason
    assert good.line == 3


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"order_id;customer;amount\n", "unknown column 'order_id;customer;amount'"),
        (b"order_id,customer,amount,currency\n", "no column 'created_at'"),
        (b"order_id,order_id,customer,amount,currency,created_at\n", "names a column twice"),
        (b"\xff\xfeo\x00r\x00d\x00\n", "not UTF-8"),
        (ROW, "unknown column 'A-1'"),
    ],
)
def test_a_csv_without_its_header_is_refused_as_a_whole(header, reason):
    with pytest.raises(InputError, match="Line 1 is not a header") as caught:
        list(parse_csv(io.BytesIO(header + ROW)))
    assert reason in str(caught.value)


def test_byte_order_mark_blank_lines_and_windows_line_ends_are_no_obstacle():
    raw = b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n") + b"\r\n" + ROW.replace(b"\n", b"\r\n")
    [order] = parse_csv(io.BytesIO(raw))
    assert isinstance(order, OrderLine)
    assert (order.line, order.order_id) == (3, "A-1")


class EndlessFile:
    """A file that goes on for ever, and knows how much of it was read."""

    def __init__(self):
        self._numbers = itertools.count()
        self.lines = 0

    def readline(self, size=-1):
        self.lines += 1
        return json.dumps(GOOD | {"order_id": str(next(self._numbers))}).encode() + b"\n"


def test_lines_are_read_as_they_are_asked_for():
    file = EndlessFile()
    assert [each.line for each in itertools.islice(parse_jsonl(file), 5)] == [1, 2, 3, 4, 5]
    assert file.lines == 5


class OneEndlessLine:
    """A hundred megabytes without a line end, of which a reader may hold little at once."""

    left = 100_000_000

    def readline(self, size=-1):
        assert 0 < size <= MAX_LINE_BYTES + 1
        taken = min(size, self.left)
        self.left -= taken
        return b"x" * taken


def test_an_endless_line_is_never_held_whole():
    [bad] = parse_jsonl(OneEndlessLine())
    assert isinstance(bad, BadLine)
    assert bad.reason == f"longer than {MAX_LINE_BYTES} bytes"
    assert len(bad.text) == 1000


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(raw):
    for each in parse_jsonl(io.BytesIO(raw)):
        assert isinstance(each, OrderLine | BadLine)
    for each in parse_csv(io.BytesIO(HEADER + raw)):
        assert isinstance(each, OrderLine | BadLine)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("orders.xlsx", "neither .jsonl nor .csv"),
        ("absent.csv", "No such file"),
        ("d.csv", "direc"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_to(tmp_path, name, reason):
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match=reason):
        list(read_orders(tmp_path / name))


def test_rejects_are_json_lines_with_the_text_as_it_was(tmp_path):
    path = tmp_path / "rejects.jsonl"
    path.write_text("of an earlier run")
    with RejectsFile(path) as rejects:
        rejects.add(BadLine(3, "not UTF-8", "Am\\xe9lie"))
        rejects.add(BadLine(7, "no column 'amount'", "{}"))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [
        {"line": 3, "reason": "not UTF-8", "text": "Am\\xe9lie"},
        {"line": 7, "reason": "no column 'amount'", "text": "{}"},
    ]


def test_without_bad_lines_there_is_no_rejects_file(tmp_path):
    path = tmp_path / "rejects.jsonl"
    path.write_text("of an earlier run")
    with RejectsFile(path) as rejects:
        assert rejects.count == 0
    assert not path.exists()


def test_the_shipped_orders_are_those_the_script_makes():
    assert DEFAULT_FILE.read_bytes() == as_bytes()


def test_the_shipped_orders_are_all_valid_and_of_every_fate():
    orders = [each for each in read_orders(DEFAULT_FILE) if isinstance(each, OrderLine)]
    assert len(orders) == COUNT == DEFAULT_FILE.read_bytes().count(b"\n")
    paid = sum(order.is_paid_in_time for order in orders)
    never = sum(order.pay_after is None for order in orders)
    assert 6000 < paid < 7000
    assert 3000 < never < 4000
    assert paid + never < COUNT  # the others pay too late
    assert DEFAULT_FILE.stat().st_size < 2_000_000
