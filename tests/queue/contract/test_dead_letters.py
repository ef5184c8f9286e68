"""Q29: the content of dead letters, and their redrive."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, DeliveryType, OfferOutcome, RetryPolicy
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import DeadLetter
from delayed_queue.testing import (
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
    dead_letters,
)
from tests.queue.contract.support import DAY, HOUR, MILLISECOND, MINUTE, SECOND, MakeQueue, leased

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def dead_letter(queue: DelayedQueue, key: str, payload: Any = 1, reason: str = "bad") -> DeadLetter:
    """Reject the first due message; return its dead letter."""
    queue.offer_or_update(key, payload, headers={"of": key})
    envelope = leased(queue)
    assert envelope.key == key
    assert envelope.reject(reason)
    return assert_dead(queue, key)


def test_q29_a_dead_letter_keeps_everything(make_queue: MakeQueue, manual_clock: ManualClock):
    policy = RetryPolicy.ladder("1m 1m")
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy)
    created_at = manual_clock()
    queue.offer_or_update("a", {"b": 1, "a": 2}, delay=MINUTE, headers={"trace": "x"})
    for number in range(3):
        died_at = manual_clock.advance(MINUTE)
        queue.fail(leased(queue), ValueError(f"failure {number}"))
    letter = assert_dead(queue, "a", reason="attempts exhausted: ValueError")
    assert (letter.kind, letter.key, letter.attempts) == ("orders|json", "a", 3)
    assert letter.payload == b'{"a":2,"b":1}'
    assert letter.headers == {"trace": "x"}
    assert str(letter.first_error).endswith("ValueError: failure 0\n")
    assert str(letter.last_error).endswith("ValueError: failure 2\n")
    assert letter.created_at == created_at
    assert letter.scheduled_at_initially == created_at + MINUTE
    assert letter.died_at == died_at


class TestRedrive:
    def test_q29_puts_a_letter_back_as_new(self, queue: DelayedQueue, manual_clock: ManualClock):
        letter = dead_letter(queue, "a", {"n": 1})
        now = manual_clock.advance(DAY)
        assert queue.redrive([letter.id]) == {letter.id: CREATED}
        stored = assert_offered(queue, "a", {"n": 1}, schedule_at=now, headers={"of": "a"})
        assert (stored.state, stored.attempts, stored.created_at) == ("due", 0, now)
        assert stored.last_error == ""
        assert dead_letters(queue) == []
        envelope = leased(queue)
        assert (envelope.attempt, envelope.delivery_type) == (1, DeliveryType.FIRST)

    def test_q29_never_overwrites_a_newer_message(self, queue: DelayedQueue):
        letter = dead_letter(queue, "a", "old")
        queue.offer_or_update("a", "new")
        before = queue.read("a")
        assert queue.redrive([letter.id]) == {letter.id: IGNORED}
        assert queue.read("a") == before
        assert_dead(queue, "a")

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("kind", ["orders|callback", "orders#3|json"])
    def test_j5_leaves_a_key_that_lives_in_another_kind_of_the_topic(
        self, queue: DelayedQueue, make_queue: MakeQueue, kind: str, overwrite: bool
    ):
        letter = dead_letter(queue, "a", "old")
        make_queue("orders", kind=kind).offer_or_update("a", "new")
        assert queue.redrive([letter.id], overwrite=overwrite) == {letter.id: IGNORED}
        assert not queue.contains_message("a")

    @pytest.mark.parametrize("kind", ["orders", "orders|text", "orders2|json"])
    def test_j5_a_key_of_another_topic_is_another(self, queue, make_queue, kind):
        letter = dead_letter(queue, "a", "old")
        make_queue("orders", kind=kind).offer_or_update("a", "new")
        assert queue.redrive([letter.id]) == {letter.id: CREATED}

    def test_a_callback_keeps_its_first_schedule(self, make_queue, manual_clock):
        calls = make_queue("orders", kind="orders|callback", clock=manual_clock)
        first = manual_clock()
        letter = dead_letter(calls, "a")
        manual_clock.advance(DAY)
        calls.redrive([letter.id])
        stored = calls.read("a")
        assert stored is not None
        assert (stored.scheduled_at_initially, stored.state) == (first, "due")

    def test_q29_overwrites_when_asked(self, queue: DelayedQueue):
        letter = dead_letter(queue, "a", "old")
        queue.offer_or_update("a", "new")
        envelope = leased(queue)
        assert queue.redrive([letter.id], overwrite=True) == {letter.id: UPDATED}
        assert_offered(queue, "a", "old", state="due")
        assert not envelope.acknowledge()
        assert dead_letters(queue) == []

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_q29_of_several_letters_of_a_key_the_newest_comes_back(self, queue, overwrite):
        old, new = dead_letter(queue, "a", "old"), dead_letter(queue, "a", "new")
        outcomes = queue.redrive([new.id, old.id], overwrite=overwrite)
        assert outcomes == {old.id: IGNORED, new.id: CREATED}
        assert_offered(queue, "a", "new")
        assert [letter.id for letter in dead_letters(queue)] == [old.id]

    def test_q29_reports_each_letter_it_found(self, queue: DelayedQueue):
        first, second = dead_letter(queue, "a"), dead_letter(queue, "b")
        queue.offer_or_update("b", 2)
        outcomes = queue.redrive([first.id, second.id, first.id, 999_999_999])
        assert outcomes == {first.id: CREATED, second.id: IGNORED}
        assert queue.redrive([first.id]) == {}
        assert queue.redrive([]) == {}

    def test_q29_only_of_its_own_kind(self, make_queue: MakeQueue, manual_clock: ManualClock):
        orders = make_queue("orders", clock=manual_clock)
        mails = make_queue("mails", clock=manual_clock)
        letter = dead_letter(orders, "a")
        assert mails.redrive([letter.id]) == {}
        assert mails.redrive_all() == {}
        assert_dead(orders, "a")

    def test_q29_letters_come_back_in_the_order_of_their_keys(self, queue: DelayedQueue):
        letters = [dead_letter(queue, key).id for key in ("b", "a", "C")]
        queue.redrive(letters)
        assert [leased(queue).key for _ in letters] == ["C", "a", "b"]

    def test_q29_all_of_a_reason(self, queue: DelayedQueue):
        dead_letter(queue, "a", reason="attempts exhausted: ValueError")
        dead_letter(queue, "b", reason="attempts exhausted: KeyError")
        dead_letter(queue, "c", reason="no such customer")
        queue.offer_or_update("b", 2)
        outcomes = queue.redrive_all(reason="attempts exhausted")
        assert outcomes == {CREATED: 1, IGNORED: 1}
        assert [letter.key for letter in dead_letters(queue)] == ["b", "c"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_q29_all_take_the_newest_letter_of_each_key(self, queue: DelayedQueue, overwrite: bool):
        old, _, _ = (
            dead_letter(queue, "a", "old"),
            dead_letter(queue, "b", "other"),
            dead_letter(queue, "a", "new"),
        )
        assert queue.redrive_all(overwrite=overwrite) == {CREATED: 2, IGNORED: 1}
        assert_offered(queue, "a", "new")
        assert [letter.id for letter in dead_letters(queue)] == [old.id]

    def test_q29_all_of_a_reason_take_the_newest_that_has_it(self, queue: DelayedQueue):
        dead_letter(queue, "a", "old", reason="late")
        dead_letter(queue, "a", "newer", reason="late again")
        dead_letter(queue, "a", "newest", reason="wrong")
        assert queue.redrive_all(reason="late") == {CREATED: 1, IGNORED: 1}
        assert_offered(queue, "a", "newer")

    def test_q29_a_newer_letter_of_another_queue_counts_for_nothing(self, make_queue, manual_clock):
        orders = make_queue("orders", clock=manual_clock)
        dead_letter(orders, "a", "old")
        dead_letter(make_queue("mails", clock=manual_clock), "a", "new")
        assert orders.redrive_all() == {CREATED: 1}

    def test_q29_a_reason_is_no_pattern(self, queue: DelayedQueue):
        dead_letter(queue, "a", reason="100 percent")
        dead_letter(queue, "b", reason="100% sure")
        assert queue.redrive_all(reason="100%") == {CREATED: 1}
        assert_offered(queue, "b")

    def test_q29_all_and_overwriting(self, queue: DelayedQueue):
        dead_letter(queue, "a", "dead")
        dead_letter(queue, "b", "dead")
        queue.offer_or_update("a", "active")
        assert queue.redrive_all(overwrite=True) == {CREATED: 1, UPDATED: 1}
        assert_offered(queue, "a", "dead")
        assert_offered(queue, "b", "dead")


class TestPrune:
    def test_q29_by_age(self, queue: DelayedQueue, manual_clock: ManualClock):
        for key in "abc":
            dead_letter(queue, key)
            manual_clock.advance(HOUR)
        assert queue.prune_dead_letters(2 * HOUR) == 1
        assert [letter.key for letter in dead_letters(queue)] == ["b", "c"]
        assert queue.prune_dead_letters(timedelta(0)) == 2
        assert queue.prune_dead_letters(timedelta(0)) == 0

    def test_q29_not_what_is_exactly_that_old(self, queue: DelayedQueue, manual_clock: ManualClock):
        dead_letter(queue, "a")
        manual_clock.advance(HOUR)
        assert queue.prune_dead_letters(HOUR) == 0
        manual_clock.advance(MILLISECOND)
        assert queue.prune_dead_letters(HOUR) == 1

    def test_q29_only_its_own_kind_and_no_messages(self, make_queue, manual_clock):
        orders = make_queue("orders", clock=manual_clock)
        mails = make_queue("mails", clock=manual_clock)
        dead_letter(orders, "a")
        mails.offer_or_update("b", 1)
        manual_clock.advance(DAY)
        assert mails.prune_dead_letters(SECOND) == 0
        assert_offered(mails, "b")
        assert_dead(orders, "a")
        assert_not_offered(orders, "a")

    def test_q29_an_age_beyond_all_time_prunes_nothing(self, queue: DelayedQueue):
        dead_letter(queue, "a")
        assert queue.prune_dead_letters(timedelta.max) == 0

    @pytest.mark.parametrize("age", [-SECOND, "7 d", None])
    def test_q29_an_age_is_a_duration(self, queue: DelayedQueue, age: Any):
        with pytest.raises(InvalidConfiguration, match="older_than"):
            queue.prune_dead_letters(age)
