"""The values of a queue, without a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.messages import (
    EPOCH,
    MAX_HEADERS_LENGTH,
    MAX_MILLISECONDS,
    MILLISECOND,
    MIN_MILLISECONDS,
    Envelope,
    QueueStats,
    check_key,
    encode_headers,
    from_milliseconds,
    to_milliseconds,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
instants = st.datetimes(timezones=st.timezones()).filter(
    lambda at: MIN_MILLISECONDS <= to_milliseconds(at) <= MAX_MILLISECONDS
)


class TestMilliseconds:
    @given(at=instants)
    def test_there_and_back_floors(self, at: datetime):
        back = from_milliseconds(to_milliseconds(at))
        assert timedelta(0) <= at - back < MILLISECOND

    @given(milliseconds=st.integers(MIN_MILLISECONDS, MAX_MILLISECONDS))
    @example(MIN_MILLISECONDS)
    @example(MAX_MILLISECONDS)
    @example(-1)
    def test_back_and_there_is_exact(self, milliseconds: int):
        assert to_milliseconds(from_milliseconds(milliseconds)) == milliseconds

    def test_known_instants(self):
        assert to_milliseconds(EPOCH) == 0
        assert to_milliseconds(EPOCH - timedelta(microseconds=1)) == -1
        assert to_milliseconds(EPOCH + timedelta(microseconds=1999)) == 1
        # The seed document's example.
        assert to_milliseconds(datetime(2024, 2, 7, 17, 20, tzinfo=UTC)) == 1707326400000
        assert to_milliseconds(NOW.astimezone(timezone(timedelta(hours=-11)))) == (
            to_milliseconds(NOW)
        )

    @pytest.mark.parametrize("stored", [-(2**63), 2**63 - 1, MAX_MILLISECONDS + 1])
    def test_what_another_service_stored_is_clamped(self, stored: int):
        assert from_milliseconds(stored).year in (1, 9999)


def test_a_long_key_is_not_quoted_whole():
    with pytest.raises(InvalidMessage) as raised:
        check_key("x" * 100_000)
    assert len(str(raised.value)) < 200


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=5,
)


class TestHeaders:
    @given(headers=st.dictionaries(texts, json_values))
    def test_json_is_accepted(self, headers: dict[str, Any]):
        assert json.loads(str(encode_headers(headers))) == headers

    def test_none_is_none(self):
        assert encode_headers(None) is None
        assert encode_headers({}) == "{}"
        assert encode_headers({"ž": [1, {"x": None}]}) == '{"ž": [1, {"x": null}]}'

    def test_headers_are_bounded(self):
        largest = {"h": "ž" * (MAX_HEADERS_LENGTH - len('{"h": ""}'))}
        assert len(str(encode_headers(largest))) == MAX_HEADERS_LENGTH
        with pytest.raises(InvalidMessage, match=f"these have {MAX_HEADERS_LENGTH + 1}"):
            encode_headers({"h": largest["h"] + "x"})

    def test_headers_that_hold_themselves(self):
        headers: dict[str, Any] = {}
        headers["self"] = headers
        with pytest.raises(InvalidMessage, match="header"):
            encode_headers(headers)


def envelope(**changes: Any) -> Envelope:
    values: dict[str, Any] = {
        "key": "a",
        "payload": "secret",
        "queue": "orders",
        "attempt": 1,
        "lease_id": "lease",
        "message_id": 7,
        "scheduled_at_ms": 1000,
        "due_at_ms": 1000,
        "leased_until_ms": 61_000,
        "headers": {},
        "leases": None,
    }
    return Envelope(**{**values, **changes})


class TestEnvelopes:
    def test_a_payload_is_not_printed(self):
        assert repr(envelope()) == "<Envelope orders/a attempt 1>"

    def test_each_delivery_is_its_own(self):
        assert envelope() != envelope()


@pytest.mark.parametrize("count", ["due", "scheduled", "leased", "dead"])
def test_stats_are_capped_when_a_count_is(count: str):
    empty = QueueStats(due=0, scheduled=0, leased=0, dead=0, oldest_due_age=None, cap=10)
    below: dict[str, Any] = {count: 9}
    reached: dict[str, Any] = {count: 10}
    assert not replace(empty, **below).is_capped
    assert replace(empty, **reached).is_capped
