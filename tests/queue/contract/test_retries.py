"""Q28: the outcome of a failed attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, DeliveryType, Reject, Retry, RetryPolicy, Snooze
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.testing import (
    InMemoryQueue,
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
)
from tests.queue.contract.support import HOUR, MINUTE, SECOND, MakeQueue, leased

BROKEN = ValueError("it broke")


def test_q28_a_ladder_is_climbed_once(make_queue: MakeQueue, manual_clock: ManualClock):
    policy = RetryPolicy.ladder("15s 3m")
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy)
    queue.offer_or_update("a", 1)
    for wait in (15 * SECOND, 3 * MINUTE):
        queue.fail(leased(queue), BROKEN)
        assert assert_offered(queue, "a").scheduled_at == manual_clock() + wait
        manual_clock.advance(wait)
    queue.fail(leased(queue), BROKEN)
    assert_not_offered(queue, "a")
    assert assert_dead(queue, "a", reason="attempts exhausted: ValueError").attempts == 3


def test_q28_the_wait_starts_at_the_end_of_the_attempt(make_queue, manual_clock):
    policy = RetryPolicy.ladder("1m")
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy, lease_duration=HOUR)
    queue.offer_or_update("a", 1)
    envelope = leased(queue)
    ended_at = manual_clock.advance(HOUR / 2)
    queue.fail(envelope, BROKEN)
    assert assert_offered(queue, "a").scheduled_at == ended_at + MINUTE


def test_q28_a_policy_given_with_the_failure_comes_first(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.fail(leased(queue), BROKEN, RetryPolicy.never())
    assert_dead(queue, "a", reason="attempts exhausted")


def test_q28_the_error_is_kept_with_its_traceback(queue: DelayedQueue):
    def break_down() -> None:
        raise BROKEN

    queue.offer_or_update("a", 1)
    with pytest.raises(ValueError, match="it broke") as raised:
        break_down()
    queue.fail(leased(queue), raised.value)
    error = assert_offered(queue, "a").last_error
    assert error.startswith("Traceback (most recent call last)")
    assert "in break_down" in error
    assert error.endswith("ValueError: it broke\n")


def test_q28_any_error_text_can_be_stored(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.fail(leased(queue), ValueError("\0\ud800" + "x" * 20_000 + "end"))
    error = assert_offered(queue, "a").last_error
    assert len(error) == 10_000
    assert error.endswith("end\n")


def test_q28_a_snooze_is_no_failure(make_queue: MakeQueue, manual_clock: ManualClock):
    policy = RetryPolicy.never()
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy)
    queue.offer_or_update("a", 1)
    for _ in range(3):
        envelope = leased(queue)
        assert envelope.attempt == 1
        assert queue.fail(envelope, Snooze(MINUTE))
        stored = assert_offered(queue, "a", state="scheduled")
        assert stored.scheduled_at == manual_clock() + MINUTE
        assert (stored.attempts, stored.last_error) == (0, "")
        manual_clock.advance(MINUTE)
    # The message counts as delivered before.
    assert leased(queue).delivery_type is DeliveryType.REDELIVERY


def test_q28_a_snooze_for_no_time_is_due_at_once(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.fail(leased(queue), Snooze(timedelta(0)))
    assert leased(queue).attempt == 1


def test_q28_a_reject_goes_straight_to_the_dead_letters(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    assert queue.fail(leased(queue), Reject("no such customer"))
    assert_not_offered(queue, "a")
    letter = assert_dead(queue, "a", reason="no such customer")
    assert (letter.attempts, letter.last_error) == (1, None)


def test_q28_a_rejects_error_is_the_letters_last(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    assert queue.fail(leased(queue), Reject("gone for good", "it answered 410"))
    letter = assert_dead(queue, "a", reason="gone for good")
    assert (letter.first_error, letter.last_error) == ("it answered 410", "it answered 410")


def test_q28_a_retry_is_a_failure_with_a_wait_of_its_own(make_queue, manual_clock):
    queue = make_queue("orders", clock=manual_clock, retry_policy=RetryPolicy.ladder("1h 1h"))
    queue.offer_or_update("a", 1)
    for attempt, wait in ((1, 7 * SECOND), (2, MINUTE)):
        envelope = leased(queue)
        assert envelope.attempt == attempt
        ended_at = manual_clock.advance(SECOND)
        assert queue.fail(envelope, Retry(wait, f"answer {attempt}"))
        stored = assert_offered(queue, "a", state="scheduled")
        assert stored.scheduled_at == ended_at + wait
        assert (stored.attempts, stored.last_error) == (attempt, f"answer {attempt}")
        manual_clock.advance(wait)
    queue.fail(leased(queue), Retry(SECOND, "answer 3"))
    letter = assert_dead(queue, "a", reason="attempts exhausted: Retry")
    assert (letter.attempts, letter.first_error, letter.last_error) == (3, "answer 1", "answer 3")


def test_q28_a_retry_without_words_says_when(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.fail(leased(queue), Retry(MINUTE))
    assert assert_offered(queue, "a").last_error == "to be retried in 0:01:00"


@pytest.mark.parametrize("error", [BROKEN, Snooze(MINUTE), Retry(MINUTE), Reject("bad")])
def test_q28_a_stale_failure_changes_nothing(queue: DelayedQueue, error: Exception):
    queue.offer_or_update("a", 1)
    envelope = leased(queue)
    queue.offer_or_update("a", 2)
    before = queue.read("a")
    assert queue.fail(envelope, error) is False
    assert queue.read("a") == before
    assert queue.stats().dead == 0


@pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
@pytest.mark.parametrize("policy", ["15s 3m", 3, RetryPolicy])
def test_q28_a_retry_policy_is_one(queue_type: type[DelayedQueue], policy: Any):
    with pytest.raises(InvalidConfiguration, match="RetryPolicy"):
        queue_type("orders", retry_policy=policy)
