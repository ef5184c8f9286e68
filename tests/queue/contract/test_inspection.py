"""Q31, Q32: reading, dropping and counting."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import ConfirmationRequired, InvalidConfiguration, PayloadNotDecodable
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.messages import MessageState, QueueStats
from delayed_queue.testing import ManualClock, assert_not_offered, assert_offered
from tests.queue.contract.support import HOUR, MINUTE, SECOND, MakeQueue, leased


class TestRead:
    def test_q31_reports_the_state(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, delay=MINUTE)
        assert assert_offered(queue, "a").state is MessageState.SCHEDULED
        manual_clock.advance(MINUTE)
        assert assert_offered(queue, "a").state is MessageState.DUE
        envelope = leased(queue)
        stored = assert_offered(queue, "a")
        assert stored.state is MessageState.LEASED
        assert stored.leased_until == envelope.leased_until
        manual_clock.set(envelope.leased_until)
        expired = assert_offered(queue, "a")
        assert (expired.state, expired.leased_until) == (MessageState.DUE, None)

    def test_q31_leases_nothing(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        assert queue.read("a") == queue.read("a")
        assert queue.contains_message("a") is True
        assert leased(queue).attempt == 1

    def test_q31_an_undecodable_payload_fails_only_when_asked_for(self, queue, make_queue):
        make_queue("raw", codec="bytes", kind=queue.kind).offer_or_update("a", b"\xff")
        stored = queue.read("a")
        assert stored is not None
        assert stored.data == b"\xff"
        with pytest.raises(PayloadNotDecodable, match="json codec"):
            _ = stored.payload

    def test_q31_a_stored_message_does_not_print_its_payload(self, queue: DelayedQueue):
        queue.offer_or_update("a", "secret")
        assert "secret" not in repr(queue.read("a"))


class TestDrop:
    def test_q31_says_whether_there_was_one(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1, delay=HOUR)
        assert queue.drop_message("a") is True
        assert queue.drop_message("a") is False
        assert_not_offered(queue, "a")

    def test_q31_works_on_a_leased_message(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        envelope = leased(queue)
        assert queue.drop_message("a") is True
        assert envelope.acknowledge() is False
        assert envelope.release() is False
        assert queue.stats().dead == 0

    @pytest.mark.parametrize("confirm", ["", "yes", DROP_ALL_CONFIRMATION.lower(), True, None])
    def test_q31_all_only_with_the_exact_confirmation(self, queue: DelayedQueue, confirm: Any):
        queue.offer_or_update("a", 1)
        with pytest.raises(ConfirmationRequired, match="Yes, please, I know what I'm doing!"):
            queue.drop_all_messages(confirm)
        assert_offered(queue, "a")

    def test_q31_all_of_its_own_kind_only(self, make_queue: MakeQueue):
        orders, mails = make_queue("orders"), make_queue("mails")
        for queue in (orders, mails):
            queue.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        leased(orders)
        assert orders.drop_all_messages("Yes, please, I know what I'm doing!") == 2
        assert orders.stats() == QueueStats(0, 0, 0, 0, None, 10_000)
        assert mails.stats().due == 2


class TestStats:
    def test_q32_counts_by_state(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("dead", 1)
        leased(queue).reject("bad")
        queue.offer_or_update("leased", 1)
        leased(queue)
        for number in range(3):
            queue.offer_or_update(f"later-{number}", 1, delay=HOUR)
        queue.offer_or_update("old", 1)
        manual_clock.advance(SECOND)
        queue.offer_or_update("new", 1)
        stats = queue.stats()
        assert stats == QueueStats(
            due=2, scheduled=3, leased=1, dead=1, oldest_due_age=SECOND, cap=10_000
        )
        assert not stats.is_capped

    def test_q32_an_expired_lease_is_due(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1)
        manual_clock.set(leased(queue).leased_until + SECOND)
        stats = queue.stats()
        assert (stats.due, stats.leased, stats.oldest_due_age) == (1, 0, SECOND)

    def test_q32_counts_stop_at_the_cap_and_say_so(self, queue: DelayedQueue):
        queue.offer_batch([ScheduledMessage(f"k{n}", 1) for n in range(6)])
        assert queue.stats(cap=5).due == 5
        assert queue.stats(cap=5).is_capped
        assert queue.stats(cap=7).due == 6
        assert not queue.stats(cap=7).is_capped

    @pytest.mark.parametrize("cap", [0, -1, 1_000_001, 1.5, True])
    def test_q32_a_cap_is_a_reasonable_number(self, queue: DelayedQueue, cap: Any):
        with pytest.raises(InvalidConfiguration, match="cap"):
            queue.stats(cap)
