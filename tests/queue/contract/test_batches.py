"""Q11, Q12, Q14: offering many messages at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.queue.offering import CHUNK
from delayed_queue.testing import InMemoryQueue, ManualClock, assert_not_offered, assert_offered
from tests.queue.contract.support import HOUR, SECOND, leased, polled_keys

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def test_q11_outcomes_come_in_input_order(queue: DelayedQueue):
    queue.offer_or_update("b", 1)
    messages = [
        ScheduledMessage("c", 1),
        ScheduledMessage("b", 2),
        ScheduledMessage("a", 1),
        ScheduledMessage("b", 3, can_update=False),
    ]
    assert queue.offer_batch(messages) == [CREATED, UPDATED, CREATED, IGNORED]


@pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
@pytest.mark.parametrize("nothing", [[], (), iter(())])
def test_q11_an_empty_batch_runs_no_sql(queue_type: type[DelayedQueue], nothing: Any):
    # No database mark: pytest-django would refuse a statement.
    assert queue_type("orders").offer_batch(nothing) == []


def test_q11_any_iterable_is_streamed_in_chunks(queue: DelayedQueue):
    stored_when_read: list[int] = []

    def messages() -> Iterator[ScheduledMessage]:
        for number in range(2 * CHUNK + 1):
            if number % CHUNK == 0:
                stored_when_read.append(queue.stats().due)
            yield ScheduledMessage(f"k{number}", number)

    assert queue.offer_batch(messages()) == [CREATED] * (2 * CHUNK + 1)
    assert stored_when_read == [0, CHUNK, 2 * CHUNK]


def test_q11_an_endless_iterable_is_not_read_ahead(queue: DelayedQueue):
    numbers = itertools.count()
    messages = (ScheduledMessage(f"k{n}", 1) if n < CHUNK else "not one" for n in numbers)
    with pytest.raises(InvalidMessage, match="ScheduledMessage"):
        queue.offer_batch(messages)  # type: ignore[arg-type]
    assert queue.stats().due == CHUNK
    assert next(numbers) <= 2 * CHUNK


def test_q11_a_sequence_is_checked_as_a_whole_first(queue: DelayedQueue):
    messages = [ScheduledMessage(f"k{n}", 1) for n in range(CHUNK + 1)]
    messages[-1] = ScheduledMessage("", 1)
    with pytest.raises(InvalidMessage):
        queue.offer_batch(messages)
    assert_not_offered(queue, "k0")


def test_q12_new_and_known_keys_that_must_not_update(queue, manual_clock):
    queue.offer_or_update("known", "old", headers={"kept": 1})
    messages = [ScheduledMessage(key, "new", None, False) for key in ("x", "known", "y")]
    assert queue.offer_batch(messages) == [CREATED, IGNORED, CREATED]
    assert_offered(queue, "known", "old", schedule_at=manual_clock(), headers={"kept": 1})
    assert_offered(queue, "y", "new")


def test_q12_new_and_known_keys_that_may_update(queue: DelayedQueue, manual_clock: ManualClock):
    at = manual_clock() + HOUR
    queue.offer_or_update("same", 1, at)
    queue.offer_or_update("payload", 1, at)
    queue.offer_or_update("schedule", 1, at)
    messages = [
        ScheduledMessage("new", 1, at),
        ScheduledMessage("same", 1, at),
        ScheduledMessage("payload", 2, at),
        ScheduledMessage("schedule", 1, at + SECOND, headers={"h": [1]}),
    ]
    assert queue.offer_batch(messages) == [CREATED, IGNORED, UPDATED, UPDATED]
    assert_offered(queue, "payload", 2, schedule_at=at)
    assert_offered(queue, "schedule", 1, schedule_at=at + SECOND, headers={"h": [1]})


def test_q12_an_update_in_a_batch_ends_the_lease(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    envelope = leased(queue)
    assert queue.offer_batch([ScheduledMessage("a", 2)]) == [UPDATED]
    assert not envelope.acknowledge()
    assert leased(queue).attempt == 1


def test_q12_a_repeated_key_meets_what_came_before_it(queue: DelayedQueue):
    messages = [
        ScheduledMessage("a", 1),
        ScheduledMessage("a", 2),
        ScheduledMessage("a", 2),
        ScheduledMessage("a", 3, can_update=False),
        ScheduledMessage("a", 4),
        ScheduledMessage("b", 1, can_update=False),
        ScheduledMessage("b", 2, can_update=False),
    ]
    expected = [CREATED, UPDATED, IGNORED, IGNORED, UPDATED, CREATED, IGNORED]
    assert queue.offer_batch(messages) == expected
    assert_offered(queue, "a", 4)
    assert_offered(queue, "b", 1)


offers = st.builds(
    ScheduledMessage,
    key=st.sampled_from("abcd"),
    payload=st.integers(0, 1),
    schedule_at=st.sampled_from([None, ManualClock()(), ManualClock()() + HOUR]),
    can_update=st.booleans(),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(known=st.lists(offers, max_size=3), messages=st.lists(offers, max_size=12))
def test_q12_a_batch_equals_its_messages_one_by_one(make_queue, manual_clock, known, messages):
    batched = make_queue("batched", clock=manual_clock)
    single = make_queue("single", clock=manual_clock)
    for queue in (batched, single):
        queue.drop_all_messages("Yes, please, I know what I'm doing!")
        for message in known:
            _offer(queue, message)
    assert batched.offer_batch(messages) == [_offer(single, each) for each in messages]
    for key in "abcd":
        assert _content(batched, key) == _content(single, key)


def _offer(queue: DelayedQueue, message: ScheduledMessage) -> OfferOutcome:
    offer = queue.offer_or_update if message.can_update else queue.offer_if_not_exists
    return offer(message.key, message.payload, message.schedule_at)


def _content(queue: DelayedQueue, key: str) -> tuple[Any, ...] | None:
    stored = queue.read(key)
    if stored is None:
        return None
    return stored.payload, stored.scheduled_at, stored.scheduled_at_initially


@pytest.mark.django_db
def test_q14_seventy_thousand_messages_in_one_call(manual_clock: ManualClock):
    queue, at = DelayedQueue("orders", clock=manual_clock), manual_clock()
    many = [ScheduledMessage(f"key-{number}", number, at) for number in range(70_000)]
    assert queue.offer_batch(many) == [CREATED] * 70_000
    assert_offered(queue, "key-69999", 69_999)
    # Equal schedules are delivered in the order of the offer, across chunks.
    assert polled_keys(queue, 1500) == [message.key for message in many[:1500]]
