"""Q37 and Q38: messages that expire, and offers that postpone each other."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.testing import ManualClock
from tests.queue.contract.support import HOUR, MILLISECOND, MINUTE, SECOND, leased, polled_keys

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


class TestExpiry:
    def test_q37_a_poll_deletes_what_has_expired(self, queue, manual_clock):
        queue.offer_or_update("short", 1, expires_in=MINUTE)
        queue.offer_or_update("long", 1, expires_at=manual_clock() + HOUR)
        queue.offer_or_update("endless", 1)
        manual_clock.advance(MINUTE)
        assert polled_keys(queue) == ["long", "endless"]
        assert not queue.contains_message("short")

    def test_q37_a_message_is_delivered_until_its_last_millisecond(self, queue, manual_clock):
        queue.offer_or_update("a", 1, expires_in=MINUTE)
        manual_clock.advance(MINUTE - MILLISECOND)
        assert leased(queue).key == "a"

    def test_q37_a_poll_goes_on_behind_what_has_expired(self, queue, manual_clock):
        for number in range(3):
            queue.offer_or_update(f"old-{number}", 1, expires_in=SECOND)
        manual_clock.advance(MINUTE)
        queue.offer_or_update("new", 1)
        assert leased(queue).key == "new"
        assert queue.stats().due == 0

    def test_q37_consume_skips_what_has_expired(self, queue, manual_clock):
        queue.offer_or_update("old", 1, expires_in=SECOND)
        manual_clock.advance(MINUTE)
        queue.offer_or_update("new", 1)
        with queue.consume() as envelope:
            assert envelope is not None
            assert envelope.key == "new"
        with queue.consume() as envelope:
            assert envelope is None
        assert not queue.contains_message("old")

    def test_q37_a_consumed_message_that_fails_keeps_its_expiry(self, queue, manual_clock):
        queue.offer_or_update("a", 1, expires_in=HOUR)
        with pytest.raises(LookupError), queue.consume():
            raise LookupError
        manual_clock.advance(HOUR)
        assert queue.try_poll() is None
        assert not queue.contains_message("a")

    def test_q37_a_retry_expires_too(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, expires_in=MINUTE)
        assert leased(queue).release(2 * MINUTE)
        manual_clock.advance(2 * MINUTE)
        assert queue.try_poll() is None
        assert not queue.contains_message("a")

    def test_q37_another_expiry_is_an_update(self, queue: DelayedQueue, manual_clock: ManualClock):
        at = manual_clock()

        def offer(expires_at: datetime | None) -> OfferOutcome:
            return queue.offer_or_update("a", 1, at, expires_at=expires_at)

        expiries = [at + HOUR, at + HOUR, at + MINUTE, None, None]
        found = [offer(each) for each in expiries]
        assert found == [CREATED, IGNORED, UPDATED, UPDATED, IGNORED]

    def test_q37_the_stored_message_names_its_expiry(self, queue, manual_clock):
        at = manual_clock() + HOUR
        outcomes = queue.offer_batch(
            [ScheduledMessage("a", 1, expires_at=at), ScheduledMessage("b", 1)]
        )
        queue.offer_if_not_exists("c", 1, delay=MINUTE, expires_in=HOUR)
        assert outcomes == [CREATED, CREATED]
        found = [stored.expires_at for key in "abc" if (stored := queue.read(key)) is not None]
        assert found == [at, None, at]

    def test_q37_a_redrive_clears_the_expiry(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, expires_in=MINUTE)
        assert leased(queue).reject("no")
        manual_clock.advance(HOUR)
        assert queue.redrive_all() == {CREATED: 1}
        assert leased(queue).key == "a"

    @pytest.mark.parametrize(
        "times",
        [
            {"expires_in": timedelta(0)},
            {"expires_in": MINUTE, "delay": MINUTE},
            {"expires_in": HOUR, "schedule_at": 2 * HOUR},
            {"expires_at": timedelta(0)},
            {"expires_at": MINUTE, "delay": 2 * MINUTE},
            {"expires_at": HOUR, "schedule_at": HOUR},
            {"expires_at": HOUR, "expires_in": HOUR},
        ],
    )
    def test_q37_an_expiry_that_is_not_after_the_schedule_is_refused(
        self, queue: DelayedQueue, manual_clock: ManualClock, times: dict[str, timedelta]
    ):
        named: dict[str, Any] = {
            name: manual_clock() + each if name.endswith("_at") else each
            for name, each in times.items()
        }
        with pytest.raises(InvalidMessage, match="expire"):
            queue.offer_or_update("a", 1, **named)
        assert not queue.contains_message("a")

    def test_q37_a_batch_with_such_an_expiry_stores_nothing(self, queue, manual_clock):
        bad = ScheduledMessage("b", 1, expires_at=manual_clock())
        with pytest.raises(InvalidMessage, match="would expire"):
            queue.offer_batch([ScheduledMessage("a", 1), bad])
        assert not queue.contains_message("a")


class TestDebounce:
    def test_q38_offers_postpone_the_message_at_most_until_the_latest(self, queue, manual_clock):
        started_at = manual_clock()
        due: list[timedelta] = []
        for _ in range(6):
            queue.offer_or_update("a", len(due), delay=MINUTE, latest=3 * MINUTE)
            stored = queue.read("a")
            assert stored is not None
            due.append(stored.scheduled_at - started_at)
            manual_clock.advance(timedelta(seconds=50))
        seconds = [each.total_seconds() for each in due]
        assert seconds == [60, 110, 160, 180, 180, 180]
        assert leased(queue).payload == 5

    def test_q38_the_same_offer_at_its_upper_bound_is_ignored(self, queue, manual_clock):
        outcomes = []
        for _ in range(3):
            outcomes.append(queue.offer_or_update("a", 1, delay=MINUTE, latest=MINUTE))
            manual_clock.advance(SECOND)
        assert outcomes == [CREATED, IGNORED, IGNORED]

    @pytest.mark.parametrize("is_released", [False, True])
    def test_q38_an_offer_after_a_delivery_opens_a_new_window(
        self, queue: DelayedQueue, manual_clock: ManualClock, is_released: bool
    ):
        queue.offer_or_update("a", 1, delay=MINUTE, latest=MINUTE)
        manual_clock.advance(MINUTE)
        envelope = leased(queue)
        if is_released:
            assert envelope.release(HOUR)
        assert queue.offer_or_update("a", 2, delay=MINUTE, latest=MINUTE) is UPDATED
        assert not envelope.acknowledge()
        stored = queue.read("a")
        assert stored is not None
        assert stored.scheduled_at == manual_clock() + MINUTE

    @pytest.mark.parametrize(
        "times",
        [
            {"latest": MINUTE},
            {"latest": SECOND, "delay": MINUTE},
            {"latest": "60 s", "delay": MINUTE},
        ],
    )
    def test_q38_a_latest_below_the_delay_or_without_one_is_refused(self, queue, times):
        with pytest.raises(InvalidMessage, match="latest"):
            queue.offer_or_update("a", 1, **times)
        assert not queue.contains_message("a")

    def test_q38_a_latest_beside_a_schedule_is_refused(self, queue, manual_clock):
        with pytest.raises(InvalidMessage, match="give delay, not schedule_at"):
            queue.offer_or_update("a", 1, manual_clock(), latest=MINUTE)
