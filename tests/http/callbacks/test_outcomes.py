"""Parsing of a response: its Retry-After, and its excerpt."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import settings as running
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.callbacks.calls import CallbackRequest, excerpt_of, retry_after_of

NOW = "Sun, 01 Mar 2026 12:00:00 GMT"
HOUR = timedelta(hours=1)
DAY = timedelta(hours=24)


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        ("0", timedelta(0)),
        (" 7 ", timedelta(seconds=7)),
        ("007", timedelta(seconds=7)),
        ("86401", DAY),
        ("9" * 8000, DAY),
        ("Sun, 01 Mar 2026 13:00:00 GMT", HOUR),
        ("Sunday, 01-Mar-26 13:00:00 GMT", HOUR),
        ("Sun Mar  1 13:00:00 2026", HOUR),
        ("Sun, 01 Mar 2026 14:00:00 +0100", HOUR),
        ("Sun, 01 Mar 2026 11:00:00 GMT", timedelta(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
    ],
)
def test_waits(asked: str, wait: timedelta | None) -> None:
    assert retry_after_of({"Retry-After": asked, "Date": NOW}, DAY) == wait


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "soon",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "0x10",
        "\u0661\u0662",
        "1 2",
        "nan",
        "99:99",
        ",,,,",
        "Sun",
    ],
)
def test_what_asks_for_nothing(asked: str) -> None:
    assert retry_after_of({"Retry-After": asked, "Date": NOW}, DAY) is None


def test_a_date_is_read_by_the_clock_of_the_receiver() -> None:
    headers = {
        "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
        "Retry-After": "Thu, 01 Jan 1970 01:00:00 GMT",
    }
    assert retry_after_of(headers, DAY) == HOUR


@pytest.mark.parametrize("date", [{}, {"Date": "nonsense"}])
def test_a_date_counts_by_no_clock_of_this_host(date: dict[str, str]) -> None:
    assert retry_after_of({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT", **date}, DAY) is None


@given(st.text(), st.text())
@running(deadline=None)
def test_any_header_gives_a_wait_within_the_limit(asked: str, date: str) -> None:
    wait = retry_after_of({"Retry-After": asked, "Date": date}, DAY)
    assert wait is None or timedelta(0) <= wait <= DAY


@given(st.binary(max_size=3000))
@running(deadline=None)
def test_any_body_gives_an_excerpt_that_can_be_stored(body: bytes) -> None:
    excerpt = excerpt_of(body)
    assert len(excerpt.encode()) <= 1024
    assert all(sign.isprintable() or sign in "\n\t" for sign in excerpt)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "a b", "", "x:", "\u00e9"]
)
def test_headers_that_a_callback_cannot_have(name: str) -> None:
    with pytest.raises(InvalidMessage, match="cannot have the header"):
        CallbackRequest("http://example.com", b"", {name: "1"})


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\n", "\0", "\x7f"])
def test_values_that_cannot_be_sent(value: str) -> None:
    with pytest.raises(InvalidMessage, match="cannot be sent") as caught:
        CallbackRequest("http://example.com", b"", {"X-Name": value})
    assert value not in str(caught.value)


def test_a_request_shows_nothing_of_itself() -> None:
    assert repr(CallbackRequest("http://a/?secret", b"body", {"A": "b"})) == "CallbackRequest()"
