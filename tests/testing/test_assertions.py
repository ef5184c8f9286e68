"""The assertions for users: accepted states, and their failure messages."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.testing import (
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
    dead_letters,
)
from tests.queue.contract.support import HOUR, MICROSECOND, MILLISECOND, leased


def test_assert_offered_returns_the_message(queue: DelayedQueue, manual_clock: ManualClock):
    at = manual_clock() + HOUR + MICROSECOND
    queue.offer_or_update("a", None, at, headers={"h": 1})
    assert_offered(queue, "a", None, schedule_at=at, headers={"h": 1}, state="scheduled")
    assert assert_offered(queue, "a").key == "a"


@pytest.mark.parametrize(
    "wrong", [{"payload": 2}, {"payload": None}, {"headers": {}}, {"state": "leased"}]
)
def test_assert_offered_says_what_differs(queue: DelayedQueue, wrong: dict[str, Any]):
    queue.offer_or_update("a", 1, headers={"h": 1})
    with pytest.raises(AssertionError, match=f"'a' in .*orders.*, not .*{next(iter(wrong))}"):
        assert_offered(queue, "a", **wrong)


def test_assert_offered_compares_the_schedule_it_was_offered_with(queue, manual_clock):
    at = manual_clock()
    queue.offer_or_update("a", 1, at)
    leased(queue).release(HOUR)
    assert_offered(queue, "a", schedule_at=at)
    with pytest.raises(AssertionError, match="schedule_at"):
        assert_offered(queue, "a", schedule_at=at + MILLISECOND)


def test_assert_offered_without_a_message(queue: DelayedQueue):
    with pytest.raises(AssertionError, match="No message 'a'"):
        assert_offered(queue, "a")


def test_assert_not_offered(queue: DelayedQueue):
    assert_not_offered(queue, "a")
    queue.offer_or_update("a", 1)
    with pytest.raises(AssertionError, match=r"'a' is in .*orders.*, due"):
        assert_not_offered(queue, "a")


def test_assert_dead(queue: DelayedQueue):
    for reason in ("first reason", "second reason"):
        queue.offer_or_update("a", reason)
        leased(queue).reject(reason)
    assert assert_dead(queue, "a").payload == b'"second reason"'
    assert assert_dead(queue, "a", reason="first").payload == b'"first reason"'
    with pytest.raises(AssertionError, match="found: 'first reason', 'second reason'"):
        assert_dead(queue, "a", reason="third")
    with pytest.raises(AssertionError, match="found: none"):
        assert_dead(queue, "b")


def test_dead_letters_come_in_the_order_of_their_deaths(queue: DelayedQueue):
    for key in "ba":
        queue.offer_or_update(key, 1)
        leased(queue).reject("bad")
    assert [letter.key for letter in dead_letters(queue)] == ["b", "a"]
