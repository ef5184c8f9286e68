"""B7, B9, B10 and B13: a message that is offered when all members of a batch have finished."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from delayed_queue import DelayedQueue, OfferOutcome, Reject, RetryPolicy, ScheduledMessage
from delayed_queue.exceptions import (
    BatchClosed,
    InvalidConfiguration,
    InvalidMessage,
    PayloadNotEncodable,
)
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.testing import InMemoryQueue, ManualClock, drain
from tests.queue.contract.support import MINUTE, SECOND, MakeQueue, leased

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
THEN = ScheduledMessage("report", {"day": 1})


@pytest.fixture
def reports(make_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    return make_queue("reports", clock=manual_clock)


def counts(queue: DelayedQueue, key: str = "report") -> dict[str, int]:
    """Return the counts of the batch whose ``then`` this is, without its id."""
    stored = queue.read(key)
    assert stored is not None, "then was not offered"
    header = dict(stored.headers["batch"])
    assert header.pop("id") > 0
    return header


def number(done: int = 0, dead: int = 0, dropped: int = 0, expired: int = 0) -> dict[str, int]:
    total = done + dead + dropped + expired
    return {
        "total": total, "done": done, "dead": dead, "dropped": dropped, "expired": expired,
    }  # fmt: skip


def has_then(queue: DelayedQueue) -> bool:
    return queue.contains_message("report")


@async_to_sync
async def run_async_forms(queue: DelayedQueue, reports: DelayedQueue) -> None:
    async with queue.batch(THEN, then_queue=reports) as batch:
        assert await batch.aoffer_or_update("a", 1) is CREATED
        assert await batch.aoffer_if_not_exists("b", 1) is CREATED
        assert await batch.aoffer_batch([ScheduledMessage("c", 1)]) == [CREATED]
    assert not await batch.aclose()
    polled = await queue.atry_poll_many(3)
    assert await polled.aacknowledge() == 3
    assert not await batch.acancel()


class TestThen:
    def test_b7_it_is_offered_with_the_last_acknowledgement(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            assert batch.offer_or_update("a", 1) is CREATED
            assert batch.offer_if_not_exists("b", 2) is CREATED
            assert batch.offer_batch([ScheduledMessage("c", 3)]) == [CREATED]
        for _ in range(2):
            assert leased(queue).acknowledge()
            assert not has_then(reports)
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=3)
        assert leased(reports).payload == {"day": 1}

    def test_b7_it_updates_the_message_of_its_key(self, queue: DelayedQueue, reports: DelayedQueue):
        reports.offer_or_update("report", "old", delay=MINUTE)
        with queue.batch(THEN, then_queue=reports):
            pass
        assert leased(reports).payload == {"day": 1}
        assert reports.stats().scheduled == 0

    def test_b7_it_keeps_its_own_headers_group_and_schedule(self, queue, manual_clock):
        at = manual_clock() + timedelta(hours=1)
        then = ScheduledMessage("report", 1, at, headers={"a": 1}, group="g")
        with queue.batch(then):
            pass
        stored = queue.read("report")
        assert stored is not None
        assert (stored.scheduled_at, stored.headers["a"], stored.group) == (at, 1, "g")

    def test_b9_an_empty_batch_offers_it_at_its_end(self, queue: DelayedQueue):
        batch = queue.batch(THEN)
        assert batch.id > 0
        assert not has_then(queue)
        assert batch.close()
        assert not batch.close()
        assert counts(queue) == number()

    def test_b9_it_is_not_offered_before_the_end(self, queue: DelayedQueue):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1)
            assert leased(queue).acknowledge()
            assert not has_then(queue)
        assert counts(queue) == number(done=1)

    def test_b10_two_batches_may_have_the_same_then(self, queue: DelayedQueue):
        first, second = queue.batch(THEN), queue.batch(THEN)
        first.offer_or_update("a", 1)
        second.offer_or_update("b", 1)
        first.close()
        second.close()
        assert queue.try_poll_many(2).acknowledge() == 2
        assert counts(queue) == number(done=1)

    def test_b9_the_async_forms_do_the_same(self, queue: DelayedQueue, reports: DelayedQueue):
        run_async_forms(queue, reports)
        assert counts(reports) == number(done=3)


def _acknowledged(queue: DelayedQueue) -> None:
    leased(queue).acknowledge()


def _acknowledged_together(queue: DelayedQueue) -> None:
    queue.try_poll_many(10).acknowledge()


def _consumed(queue: DelayedQueue) -> None:
    with queue.consume():
        pass


def _rejected(queue: DelayedQueue) -> None:
    leased(queue).reject("bad")


def _rejected_while_consumed(queue: DelayedQueue) -> None:
    with queue.consume():
        raise Reject("bad")


def _used_up(queue: DelayedQueue) -> None:
    queue.fail(leased(queue), ValueError(), RetryPolicy((), 1))


def _drained(queue: DelayedQueue) -> None:
    drain(queue, lambda _: None)


def _dropped(queue: DelayedQueue) -> None:
    queue.drop_message("a")


def _all_dropped(queue: DelayedQueue) -> None:
    queue.drop_all_messages(DROP_ALL_CONFIRMATION)


WAYS = [
    (_acknowledged, number(done=1)), (_acknowledged_together, number(done=1)),
    (_consumed, number(done=1)), (_drained, number(done=1)), (_rejected, number(dead=1)),
    (_rejected_while_consumed, number(dead=1)), (_used_up, number(dead=1)),
    (_dropped, number(dropped=1)), (_all_dropped, number(dropped=1)),
]  # fmt: skip


class TestEveryWayToFinish:
    @pytest.mark.parametrize(("finish", "expected"), WAYS)
    def test_b10_a_member_counts(self, queue, reports, finish, expected):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        finish(queue)
        assert counts(reports) == expected

    @pytest.mark.parametrize("is_consumed", [False, True])
    def test_b10_an_expired_member_counts(self, queue, manual_clock, is_consumed):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1, expires_in=SECOND)
        manual_clock.advance(MINUTE)
        if is_consumed:
            with queue.consume() as envelope:
                assert envelope is None or envelope.key == "report"
        else:
            assert leased(queue).key == "report"
            assert counts(queue) == number(expired=1)

    def test_b10_a_retry_has_not_finished(self, queue: DelayedQueue, reports: DelayedQueue):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        assert leased(queue).release()
        with pytest.raises(ValueError, match="again"), queue.consume():
            raise ValueError("again")
        assert not has_then(reports)

    def test_b10_a_replacing_message_takes_the_place(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
            batch.offer_or_update("a", 2)
        assert queue.offer_or_update("a", 3) is UPDATED
        assert not has_then(reports)
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=1)

    def test_b10_an_offer_in_another_batch_leaves_the_first(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        with queue.batch(ScheduledMessage("other", 1), then_queue=reports) as other:
            assert other.offer_batch([ScheduledMessage("a", 2), ScheduledMessage("b", 2)]) == [
                UPDATED, CREATED,
            ]  # fmt: skip
        assert counts(reports) == number(dropped=1)
        assert queue.try_poll_many(2).acknowledge() == 2
        assert counts(reports, "other") == number(done=2)

    def test_b10_an_ignored_offer_joins_nothing(self, queue: DelayedQueue, reports: DelayedQueue):
        queue.offer_or_update("a", 1)
        with queue.batch(THEN, then_queue=reports) as batch:
            assert batch.offer_if_not_exists("a", 2) is IGNORED
        assert counts(reports) == number()
        assert leased(queue).acknowledge()

    def test_b10_a_lost_lease_finishes_nothing(self, queue: DelayedQueue, reports: DelayedQueue):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        envelope = leased(queue)
        queue.offer_or_update("a", 2)
        assert not envelope.acknowledge()
        assert not envelope.reject("bad")
        assert not has_then(reports)


class TestDeadLetters:
    def _dead(self, queue: DelayedQueue, reports: DelayedQueue) -> None:
        with queue.batch(THEN, then_queue=reports, on_dead="wait") as batch:
            batch.offer_or_update("a", 1)
        assert leased(queue).reject("bad")
        assert not has_then(reports)

    def test_b10_a_redriven_letter_counts_again(self, queue: DelayedQueue, reports: DelayedQueue):
        self._dead(queue, reports)
        assert queue.redrive_all() == {CREATED: 1}
        assert not has_then(reports)
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=1)

    def test_b10_a_pruned_letter_counts(self, queue, reports, manual_clock):
        self._dead(queue, reports)
        manual_clock.advance(MINUTE)
        assert queue.prune_dead_letters(SECOND) == 1
        assert counts(reports) == number(dead=1)

    def test_b10_without_waiting_a_redriven_letter_is_no_member(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        assert leased(queue).reject("bad")
        assert counts(reports) == number(dead=1)
        assert queue.redrive_all() == {CREATED: 1}
        assert leased(queue).batch is None


class TestMembers:
    def test_b9_a_leased_member_adds_members_after_the_end(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        envelope = leased(queue)
        assert envelope.batch.id == batch.id
        assert envelope.batch.offer_or_update("b", 2) is CREATED
        assert envelope.acknowledge()
        assert not has_then(reports)
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=2)

    def test_b9_a_member_that_is_consumed_adds_members(self, queue, reports):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", 1)
        with queue.consume() as envelope:
            assert envelope is not None
            envelope.batch.offer_or_update("b", 2)
        assert not has_then(reports)
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=2)

    def test_b13_a_member_whose_lease_is_lost_adds_nothing(self, queue: DelayedQueue):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1)
        envelope = leased(queue)
        queue.offer_or_update("a", 2, delay=MINUTE)
        with pytest.raises(BatchClosed):
            envelope.batch.offer_or_update("b", 2)
        assert not queue.contains_message("b")

    def test_b9_another_producer_joins_by_id(self, queue: DelayedQueue, reports: DelayedQueue):
        with queue.batch(THEN, then_queue=reports) as batch:
            assert queue.join_batch(batch.id).offer_or_update("a", 1) is CREATED
        assert leased(queue).acknowledge()
        assert counts(reports) == number(done=1)

    def test_b9_a_delay_and_an_expiry_hold(self, queue: DelayedQueue, manual_clock: ManualClock):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1, delay=SECOND, expires_in=MINUTE, group="g")
        stored = queue.read("a")
        assert stored is not None
        assert stored.scheduled_at == manual_clock() + SECOND
        assert stored.expires_at == manual_clock() + MINUTE
        assert stored.group == "g"


class TestCancelling:
    def test_b9_members_stay_as_ordinary_messages(self, queue: DelayedQueue):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1)
        assert batch.cancel()
        assert not batch.cancel()
        assert leased(queue).acknowledge()
        assert not has_then(queue)

    def test_b9_a_block_that_raises_outside_a_transaction_stays_open(self, make_shared_queue):
        queue = make_shared_queue("orders")
        batch = queue.batch(THEN)
        with pytest.raises(ValueError, match="broken"), batch:
            raise ValueError(f"broken {batch.offer_or_update('a', 1)}")
        assert leased(queue).acknowledge()
        assert not has_then(queue)
        assert batch.close()
        assert has_then(queue)

    def test_b9_a_block_that_raises_in_a_transaction_leaves_nothing(self, queue: DelayedQueue):
        queue.offer_or_update("handled", 1)

        def fail() -> None:
            with queue.batch(THEN) as batch:
                batch.offer_or_update("a", 1)
                raise ValueError("broken")

        with queue.consume():
            with pytest.raises(ValueError, match="broken"):
                fail()
            queue.offer_or_update("b", 1)
        assert not queue.contains_message("a")
        assert queue.contains_message("b")
        assert not has_then(queue)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"then": "report"}, InvalidMessage, "then must be"),
    ({"then": ScheduledMessage("report", object())}, PayloadNotEncodable, "then"),
    ({"then": ScheduledMessage("", 1)}, InvalidMessage, "then"),
    ({"then": ScheduledMessage("report", 1, can_update=False)}, InvalidMessage, "can_update"),
    ({"then": THEN, "on_dead": "retry"}, InvalidConfiguration, "on_dead"),
    ({"then": THEN, "then_queue": "reports"}, InvalidConfiguration, "then_queue"),
    ({"then": THEN, "then_queue": InMemoryQueue("x")}, InvalidConfiguration, "then_queue"),
]  # fmt: skip


class TestBadInput:
    @pytest.mark.parametrize(("options", "error", "named"), BAD)
    def test_b13_it_is_named(self, queue, options, error, named):
        with pytest.raises(error, match=named):
            queue.batch(**options)

    @pytest.mark.parametrize("batch_id", [0, -1, "1", True, None, 2**63])
    def test_b13_an_id_must_be_one(self, queue: DelayedQueue, batch_id: Any):
        with pytest.raises(InvalidMessage, match="batch_id"):
            queue.join_batch(batch_id)

    def test_b13_a_closed_or_unknown_batch_takes_nothing(self, queue: DelayedQueue):
        with queue.batch(THEN) as batch:
            batch.offer_or_update("a", 1)
        for closed in (batch, queue.join_batch(batch.id + 1000)):
            with pytest.raises(BatchClosed):
                closed.offer_batch([ScheduledMessage("b", 1)])
        assert not queue.contains_message("b")

    def test_b13_latest_is_refused(self, queue: DelayedQueue):
        batch = queue.batch(THEN)
        with pytest.raises(InvalidMessage, match="latest"):
            batch.offer_or_update("a", 1, delay=SECOND, latest=MINUTE)
