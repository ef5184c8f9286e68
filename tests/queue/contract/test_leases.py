"""Q25, Q26: acknowledging, releasing, extending and rejecting, under the lease only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, DeliveryType, Envelope
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.testing import (
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
    dead_letters,
)
from tests.queue.contract.support import HOUR, MILLISECOND, MINUTE, SECOND, leased

Change = Callable[[Envelope], bool]
changes = pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda envelope: envelope.acknowledge(), id="acknowledge"),
        pytest.param(lambda envelope: envelope.release(), id="release"),
        pytest.param(lambda envelope: envelope.extend(HOUR), id="extend"),
        pytest.param(lambda envelope: envelope.reject("bad"), id="reject"),
    ],
)


@pytest.fixture
def envelope(queue: DelayedQueue) -> Envelope:
    """The queue's only message, leased."""
    queue.offer_or_update("a", 1)
    return leased(queue)


class TestAcknowledge:
    def test_q25_it_deletes_and_says_so(self, queue: DelayedQueue, envelope: Envelope):
        assert envelope.acknowledge() is True
        assert_not_offered(queue, "a")

    def test_q25_twice_is_safe(self, queue: DelayedQueue, envelope: Envelope):
        assert envelope.acknowledge()
        queue.offer_or_update("a", 2)
        assert envelope.acknowledge() is False
        assert_offered(queue, "a", 2)

    def test_q25_late_but_not_leased_again_still_counts(self, queue, envelope, manual_clock):
        manual_clock.advance(HOUR)
        assert envelope.acknowledge() is True
        assert_not_offered(queue, "a")


class TestCancelled:
    def test_it_is_found_when_the_lease_is_to_be_prolonged(self, queue, envelope):
        assert envelope.extend()
        assert not envelope.is_cancelled
        queue.offer_or_update("a", 2)
        assert not envelope.extend()
        assert envelope.is_cancelled


class TestLostLeases:
    @changes
    def test_q25_after_an_update(self, queue: DelayedQueue, envelope: Envelope, change: Change):
        queue.offer_or_update("a", 2)
        before = queue.read("a")
        assert change(envelope) is False
        assert queue.read("a") == before

    @changes
    def test_q25_after_another_lease(self, queue, envelope, change, manual_clock):
        manual_clock.set(envelope.leased_until)
        other = leased(queue)
        before = queue.read("a")
        assert change(envelope) is False
        assert queue.read("a") == before
        assert other.acknowledge()

    @changes
    def test_q25_after_a_drop_or_a_reject(self, queue, envelope, change):
        assert envelope.reject("bad")
        assert change(envelope) is False
        assert_not_offered(queue, "a")
        assert len(dead_letters(queue)) == 1


class TestRelease:
    def test_q26_gives_back_now(self, queue, envelope, manual_clock):
        now = manual_clock.advance(SECOND)
        assert envelope.release() is True
        stored = assert_offered(queue, "a", 1, state="due")
        assert (stored.lease_id, stored.scheduled_at, stored.attempts) == (None, now, 1)
        again = leased(queue)
        assert (again.attempt, again.delivery_type) == (2, DeliveryType.REDELIVERY)

    def test_q26_gives_back_after_a_delay(self, queue, envelope, manual_clock):
        assert envelope.release(MINUTE, error="busy")
        stored = assert_offered(queue, "a", state="scheduled")
        assert stored.scheduled_at == manual_clock() + MINUTE
        assert stored.last_error == "busy"
        manual_clock.advance(MINUTE - MILLISECOND)
        assert queue.try_poll() is None
        manual_clock.advance(MILLISECOND)
        assert leased(queue).key == "a"

    @pytest.mark.parametrize("delay", [timedelta.max, "3 s"])
    def test_q26_refuses_a_delay_out_of_range(self, envelope: Envelope, delay: Any):
        with pytest.raises(InvalidMessage, match="delay"):
            envelope.release(delay)
        assert envelope.acknowledge()

    def test_q26_a_release_refunds_attempts_that_no_handler_saw(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        envelope = leased(queue)
        ids = [envelope.message_id]
        assert queue._release_unacknowledged(envelope.lease_id, ids, refund=1) == 1
        assert leased(queue).attempt == 1
        assert queue._release_unacknowledged(envelope.lease_id, ids) == 0

    @pytest.mark.parametrize(("refund", "first"), [(1, "a"), (0, "b")])
    def test_q26_what_no_handler_saw_has_its_place_in_the_queue_again(
        self, queue: DelayedQueue, manual_clock: ManualClock, refund: int, first: str
    ):
        queue.offer_or_update("a", 1)
        manual_clock.advance(SECOND)
        queue.offer_or_update("b", 1)
        manual_clock.advance(SECOND)
        envelope = leased(queue)
        queue._release_unacknowledged(envelope.lease_id, [envelope.message_id], refund=refund)
        assert envelope.key == "a"
        assert leased(queue).key == first


class TestExtend:
    def test_q26_prolongs_a_lease(self, queue, envelope, manual_clock):
        assert envelope.extend(HOUR) is True
        assert envelope.leased_until == manual_clock() + HOUR
        manual_clock.advance(HOUR - MILLISECOND)
        assert queue.try_poll() is None
        manual_clock.advance(MILLISECOND)
        assert leased(queue).attempt == 2

    def test_q26_never_shortens_one(self, envelope: Envelope):
        until = envelope.leased_until
        assert envelope.extend(SECOND)
        assert envelope.leased_until == until

    def test_q26_defaults_to_the_lease_of_the_queue(self, make_queue, manual_clock):
        queue = make_queue("orders", clock=manual_clock, lease_duration=MINUTE)
        queue.offer_or_update("a", 1)
        envelope = leased(queue)
        now = manual_clock.advance(30 * SECOND)
        assert envelope.extend()
        assert envelope.leased_until == now + MINUTE
        assert assert_offered(queue, "a").leased_until == now + MINUTE

    def test_q26_revives_one_that_expired_unnoticed(self, queue, envelope, manual_clock):
        manual_clock.advance(HOUR)
        assert envelope.extend(MINUTE)
        assert queue.try_poll() is None
        assert envelope.acknowledge()

    @pytest.mark.parametrize("duration", [timedelta(0), -SECOND, "1 min"])
    def test_q26_refuses_what_is_no_lease(self, envelope: Envelope, duration: Any):
        with pytest.raises(InvalidConfiguration, match="lease duration"):
            envelope.extend(duration)


class TestReject:
    def test_q26_moves_to_the_dead_letters(self, queue, envelope, manual_clock):
        envelope.release(error="first try")
        again = leased(queue)
        now = manual_clock.advance(SECOND)
        assert again.reject("no such customer") is True
        assert_not_offered(queue, "a")
        letter = assert_dead(queue, "a", reason="no such customer")
        assert (letter.attempts, letter.died_at) == (2, now)
        assert letter.last_error == "first try"

    def test_q26_always_has_a_reason(self, queue: DelayedQueue, envelope: Envelope):
        assert envelope.reject("")
        assert assert_dead(queue, "a").reason == "rejected"

    def test_q26_stores_any_reason(self, queue: DelayedQueue, envelope: Envelope):
        assert envelope.reject("a\0b\ud800c")
        assert assert_dead(queue, "a").reason == "a\ufffdb?c"
