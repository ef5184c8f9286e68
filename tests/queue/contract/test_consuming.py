"""Q30: handling and deleting in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from delayed_queue import DelayedQueue, DeliveryType, Reject, RetryPolicy, Snooze
from delayed_queue.testing import ManualClock, assert_dead, assert_not_offered, assert_offered
from tests.queue.contract.support import HOUR, MINUTE, SECOND, TIMEOUT, MakeQueue, in_thread, leased


@pytest.fixture
def audit(make_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    """Another queue of the same database, to which the handlers write."""
    return make_queue("audit", clock=manual_clock)


def consume_and_fail(
    queue: DelayedQueue, error: BaseException, *effects: Callable[[], object]
) -> None:
    with queue.consume():
        for effect in effects:
            effect()
        raise error


def test_q30_nothing_due_is_none(queue: DelayedQueue):
    queue.offer_or_update("a", 1, delay=HOUR)
    with queue.consume() as envelope:
        assert envelope is None
    assert_offered(queue, "a")


def test_q30_the_message_as_it_is_delivered(queue: DelayedQueue, manual_clock: ManualClock):
    due = manual_clock()
    queue.offer_or_update("a", {"n": 1}, headers={"h": 1})
    manual_clock.advance(SECOND)
    with queue.consume() as envelope:
        assert envelope is not None
        assert (envelope.key, envelope.payload, envelope.headers) == ("a", {"n": 1}, {"h": 1})
        assert (envelope.attempt, envelope.delivery_type) == (1, DeliveryType.FIRST)
        assert envelope.scheduled_at == envelope.due_at == due


def test_q30_committed_effects_are_seen_by_others(make_shared_queue: MakeQueue):
    queue, audit = make_shared_queue("orders"), make_shared_queue("audit")
    queue.offer_or_update("a", 1)
    with queue.consume():
        audit.offer_or_update("done", 1)
    found = in_thread(lambda: (queue.read("a"), audit.contains_message("done")))
    assert found.result(TIMEOUT) == (None, True)


def test_q30_a_failing_handler_is_rolled_back_and_counted(queue, audit, manual_clock):
    queue.offer_or_update("a", 1, headers={"h": 1})
    offered_at = manual_clock()
    manual_clock.advance(SECOND)
    effect = partial(audit.offer_or_update, "done", 1)
    with pytest.raises(ValueError, match="it broke"):
        consume_and_fail(queue, ValueError("it broke"), effect)
    assert_not_offered(audit, "done")
    stored = assert_offered(queue, "a", 1, headers={"h": 1}, state="scheduled")
    assert stored.attempts == 1
    assert stored.lease_id is None
    assert stored.scheduled_at > manual_clock()
    assert stored.scheduled_at_initially == stored.created_at == offered_at
    assert stored.last_error.endswith("ValueError: it broke\n")


def test_q30_a_failing_handler_is_retried_by_policy(make_queue, manual_clock):
    policy = RetryPolicy.ladder("1m")
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy)
    queue.offer_or_update("a", 1)
    with pytest.raises(ValueError, match="first"):
        consume_and_fail(queue, ValueError("first"))
    assert assert_offered(queue, "a").scheduled_at == manual_clock() + MINUTE
    with queue.consume() as envelope:
        assert envelope is None
    manual_clock.advance(MINUTE)
    with pytest.raises(ValueError, match="second"):
        consume_and_fail(queue, ValueError("second"))
    assert_not_offered(queue, "a")
    letter = assert_dead(queue, "a", reason="attempts exhausted: ValueError")
    assert letter.attempts == 2
    assert str(letter.first_error).endswith("ValueError: first\n")
    assert str(letter.last_error).endswith("ValueError: second\n")


def test_q30_a_retried_message_can_be_leased_or_consumed(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    consume_and_fail(queue, Snooze(0 * SECOND))
    with queue.consume() as envelope:
        assert envelope is not None
        assert envelope.attempt == 1
    queue.offer_or_update("a", 1)
    leased(queue).release()
    with queue.consume() as envelope:
        assert envelope is not None
        assert (envelope.attempt, envelope.delivery_type) == (2, DeliveryType.REDELIVERY)


def test_q30_a_snooze_rolls_back_without_a_count(queue, audit, manual_clock):
    queue.offer_or_update("a", 1)
    with queue.consume():
        audit.offer_or_update("done", 1)
        raise Snooze(MINUTE)
    assert_not_offered(audit, "done")
    stored = assert_offered(queue, "a", 1, state="scheduled")
    assert stored.scheduled_at == manual_clock() + MINUTE
    assert (stored.attempts, stored.last_error) == (0, "")


def test_q30_a_reject_rolls_back_and_buries(queue: DelayedQueue, audit: DelayedQueue):
    queue.offer_or_update("a", 1)
    with queue.consume():
        audit.offer_or_update("done", 1)
        raise Reject("no such customer")
    assert_not_offered(audit, "done")
    assert_not_offered(queue, "a")
    assert assert_dead(queue, "a", reason="no such customer").attempts == 1


def test_q30_undecodable_messages_stay_buried_when_the_handler_fails(
    queue: DelayedQueue, make_queue: MakeQueue, manual_clock: ManualClock
):
    raw = make_queue("raw", codec="bytes", kind=queue.kind, clock=manual_clock)
    raw.offer_or_update("broken", b"\xff")
    queue.offer_or_update("sound", 1)
    with pytest.raises(ValueError, match="it broke"):
        consume_and_fail(queue, ValueError("it broke"))
    assert_dead(queue, "broken")
    assert assert_offered(queue, "sound").attempts == 1


def test_q30_an_interrupt_leaves_the_message_untouched(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    before = queue.read("a")
    with pytest.raises(KeyboardInterrupt):
        consume_and_fail(queue, KeyboardInterrupt())
    assert queue.read("a") == before


def test_q30_the_envelope_has_no_lease_to_end(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    with queue.consume() as envelope:
        assert envelope is not None
        assert not envelope.acknowledge()
        assert not envelope.release()
    assert_not_offered(queue, "a")


def test_q30_the_handler_may_offer_the_key_anew(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    with queue.consume():
        assert queue.offer_or_update("a", 2, delay=HOUR) == "created"
    assert_offered(queue, "a", 2, state="scheduled")


def test_q30_refused_inside_another(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.offer_or_update("b", 1)
    with pytest.raises(RuntimeError, match="durable"), queue.consume(), queue.consume():
        raise AssertionError("a consume within a consume")
    assert assert_offered(queue, "a").attempts == 1
    assert assert_offered(queue, "b").attempts == 0
