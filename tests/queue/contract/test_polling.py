"""Q15, Q16, Q18 to Q20, Q22 to Q24: leasing due messages."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, DeliveryType, ScheduledMessage
from delayed_queue.conf import MAX_LEASE
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.testing import (
    InMemoryQueue,
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
)
from tests.queue.contract.support import (
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    TIMEOUT,
    MakeQueue,
    in_thread,
    leased,
    polled_keys,
)

V4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class TestDueMessages:
    def test_q15_nothing_due_is_none(self, queue: DelayedQueue):
        assert queue.try_poll() is None
        queue.offer_or_update("a", 1, delay=HOUR)
        assert queue.try_poll() is None
        assert list(queue.try_poll_many(10)) == []

    def test_q15_due_at_exactly_now(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, manual_clock() + MINUTE)
        manual_clock.advance(MINUTE - MILLISECOND)
        assert queue.try_poll() is None
        manual_clock.advance(MILLISECOND)
        assert leased(queue).key == "a"

    def test_q15_ordered_by_schedule(self, queue: DelayedQueue, manual_clock: ManualClock):
        for key, seconds in [("c", 3), ("a", 1), ("d", 4), ("b", 2)]:
            queue.offer_or_update(key, 1, manual_clock() - HOUR + seconds * SECOND)
        assert [leased(queue).key for _ in range(4)] == ["a", "b", "c", "d"]

    def test_q15_equal_schedules_in_the_order_of_the_offers(self, queue: DelayedQueue):
        for key in ("z", "m", "a"):
            queue.offer_or_update(key, 1)
        queue.offer_batch([ScheduledMessage("y", 1), ScheduledMessage("b", 1)])
        assert polled_keys(queue) == ["z", "m", "a", "y", "b"]

    def test_q23_kinds_are_isolated(self, make_queue: MakeQueue, manual_clock: ManualClock):
        orders = make_queue("orders", clock=manual_clock)
        mails = make_queue("mails", clock=manual_clock)
        texts = make_queue("orders", codec="text", clock=manual_clock)
        orders.offer_or_update("a", "order")
        assert mails.offer_or_update("a", "mail") == "created"
        assert texts.offer_or_update("a", "text") == "created"
        assert mails.drop_message("a")
        assert texts.drop_all_messages("Yes, please, I know what I'm doing!") == 1
        assert mails.try_poll() is None
        assert texts.try_poll() is None
        assert leased(orders).payload == "order"

    def test_q23_two_queues_of_one_kind_are_one(self, make_queue: MakeQueue):
        make_queue("orders").offer_or_update("a", 1)
        assert leased(make_queue("renamed", kind="orders|json")).key == "a"


class TestLeases:
    def test_q16_a_claim_sets_the_lease(self, make_queue: MakeQueue, manual_clock: ManualClock):
        queue = make_queue("orders", clock=manual_clock, lease_duration=MINUTE)
        offered_at = manual_clock()
        queue.offer_or_update("a", {"n": 1}, headers={"trace": "x"})
        now = manual_clock.advance(HOUR)
        envelope = leased(queue)

        stored = assert_offered(queue, "a", {"n": 1}, headers={"trace": "x"}, state="leased")
        assert stored.lease_id == envelope.lease_id
        assert V4.fullmatch(envelope.lease_id)
        assert stored.scheduled_at == stored.leased_until == envelope.leased_until == now + MINUTE
        assert stored.attempts == envelope.attempt == 1
        assert stored.scheduled_at_initially == envelope.scheduled_at == offered_at
        assert stored.created_at == offered_at
        assert envelope.due_at == offered_at
        assert (envelope.queue, envelope.payload) == ("orders", {"n": 1})
        assert envelope.headers == {"trace": "x"}

    def test_q17_threads_share_the_messages_between_them(self, make_shared_queue: MakeQueue):
        queue = make_shared_queue("orders")
        queue.offer_batch([ScheduledMessage(f"k{n}", n) for n in range(60)])

        def take_all() -> list[str]:
            taken = []
            while envelope := queue.try_poll():
                taken.append(envelope.key)
                assert envelope.acknowledge()
            return taken

        futures = [in_thread(take_all) for _ in range(4)]
        taken = [key for future in futures for key in future.result(TIMEOUT)]
        assert sorted(taken) == sorted(f"k{n}" for n in range(60))

    def test_q19_an_unacknowledged_message_is_redelivered(self, queue, manual_clock):
        queue.offer_or_update("a", {"n": 1})
        first = leased(queue)
        assert first.delivery_type is DeliveryType.FIRST
        manual_clock.set(first.leased_until - MILLISECOND)
        assert queue.try_poll() is None
        manual_clock.advance(MILLISECOND)
        second = leased(queue)
        assert (second.payload, second.attempt) == ({"n": 1}, 2)
        assert second.delivery_type is DeliveryType.REDELIVERY
        assert second.lease_id != first.lease_id
        assert second.due_at == first.leased_until

    @pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
    @pytest.mark.parametrize(
        "duration",
        [timedelta(0), -SECOND, timedelta(microseconds=999), MAX_LEASE + SECOND, "soon", True],
    )
    def test_q20_a_lease_must_last(self, queue_type: type[DelayedQueue], duration: Any):
        with pytest.raises(InvalidConfiguration, match=r"lease.duration"):
            queue_type("orders", lease_duration=duration)

    @pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
    @pytest.mark.parametrize("limit", [0, -1])
    def test_q20_no_limit_is_an_empty_batch_without_sql(self, queue_type, limit):
        # No database mark: pytest-django would refuse a statement.
        batch = queue_type("orders").try_poll_many(limit)
        assert list(batch) == []
        assert batch.acknowledge() == 0


class TestUndecodablePayloads:
    @pytest.fixture
    def raw(self, queue: DelayedQueue, make_queue: MakeQueue, manual_clock: ManualClock):
        """Store arbitrary bytes in the JSON queue."""
        return make_queue("raw", codec="bytes", kind=queue.kind, clock=manual_clock)

    def test_q22_the_next_message_is_delivered(self, queue: DelayedQueue, raw: DelayedQueue):
        raw.offer_or_update("broken", b"{not json")
        queue.offer_or_update("sound", 1)
        assert leased(queue).key == "sound"
        assert queue.try_poll() is None
        letter = assert_dead(queue, "broken", reason="payload not decodable")
        assert letter.payload == b"{not json"
        assert letter.attempts == 1
        assert "PayloadNotDecodable" in str(letter.last_error)

    def test_q22_a_batch_returns_those_that_decode(self, queue: DelayedQueue, raw: DelayedQueue):
        for number in range(6):
            if number % 2:
                queue.offer_or_update(f"sound-{number}", number)
            else:
                raw.offer_or_update(f"broken-{number}", b"\xff\xfe\xfd")
        assert polled_keys(queue, 4) == ["sound-1", "sound-3"]
        assert queue.stats().dead == 2
        assert polled_keys(queue, 4) == ["sound-5"]


class TestBatches:
    def test_q24_the_earliest_in_schedule_order(self, queue, manual_clock):
        start = manual_clock() - HOUR
        for number in (5, 1, 4, 2, 3):
            queue.offer_or_update(f"k{number}", number, start + number * SECOND)
        batch = queue.try_poll_many(3)
        assert [envelope.payload for envelope in batch] == [1, 2, 3]
        assert {envelope.lease_id for envelope in batch} == {batch.lease_id}
        assert [envelope.key for envelope in batch[1:]] == ["k2", "k3"]

    def test_q24_members_are_acknowledged_one_by_one_or_together(self, queue: DelayedQueue):
        queue.offer_batch([ScheduledMessage(key, 1) for key in "abcd"])
        batch = queue.try_poll_many(4)
        assert batch[1].acknowledge()
        assert_not_offered(queue, "b")
        assert batch.acknowledge() == 3
        assert batch.acknowledge() == 0
        assert not batch[0].acknowledge()
        assert [queue.contains_message(key) for key in "abcd"] == [False] * 4

    def test_q24_a_member_updated_meanwhile_survives(self, queue: DelayedQueue):
        queue.offer_batch([ScheduledMessage(key, 1) for key in "abc"])
        batch = queue.try_poll_many(3)
        queue.offer_or_update("b", 2)
        batch[2].release(HOUR)
        assert batch.acknowledge() == 1
        assert_offered(queue, "b", 2, state="due")
        assert_offered(queue, "c", 1, state="scheduled")
