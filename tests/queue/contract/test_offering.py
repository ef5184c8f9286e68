"""Q1 to Q5, Q8, Q10: offering one message."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from django.utils import timezone as django_timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, DeliveryType, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import InvalidMessage, PayloadNotEncodable
from delayed_queue.messages import MAX_HEADERS_LENGTH, MAX_KEY_LENGTH
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
)

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED

keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
storable_keys = keys.filter(lambda key: len(key) <= MAX_KEY_LENGTH)
FIRST_DAY = datetime(1, 1, 2, tzinfo=UTC).replace(tzinfo=None)
LAST_DAY = datetime(9999, 12, 30, tzinfo=UTC).replace(tzinfo=None)
schedules = st.datetimes(FIRST_DAY, LAST_DAY, timezones=st.timezones())


class TestNewKeys:
    def test_q1_an_offer_creates(self, queue: DelayedQueue):
        assert queue.offer_or_update("a", {"n": 1}) is CREATED
        assert queue.offer_if_not_exists("b", {"n": 2}) is CREATED
        assert_offered(queue, "a", {"n": 1}, state="due")
        assert_offered(queue, "b", {"n": 2}, state="due")

    def test_q1_if_not_exists_leaves_the_stored_message_untouched(self, queue, manual_clock):
        at = manual_clock() + HOUR
        queue.offer_or_update("a", 1, at, headers={"from": "first"})
        manual_clock.advance(SECOND)
        assert queue.offer_if_not_exists("a", 2, at + HOUR, headers={}) is IGNORED
        stored = assert_offered(queue, "a", 1, schedule_at=at, headers={"from": "first"})
        assert stored.scheduled_at == at
        assert stored.created_at == manual_clock() - SECOND

    def test_headers_beyond_the_limit_are_refused(self, queue: DelayedQueue):
        headers = {"h": "x" * MAX_HEADERS_LENGTH}
        for offer in (queue.offer_or_update, queue.offer_if_not_exists):
            with pytest.raises(InvalidMessage, match="Headers have at most"):
                offer("a", 1, headers=headers)
        with pytest.raises(InvalidMessage, match="Headers have at most"):
            queue.offer_batch([ScheduledMessage("a", 1, headers=headers)])
        assert_not_offered(queue, "a")


class TestUpdates:
    def test_q2_another_payload_updates(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, headers={"trace": "x"})
        manual_clock.advance(SECOND)
        assert queue.offer_or_update("a", 2) is UPDATED
        stored = assert_offered(queue, "a", 2, headers={})
        assert stored.created_at == manual_clock()

    def test_q2_another_schedule_updates(self, queue: DelayedQueue, manual_clock: ManualClock):
        queue.offer_or_update("a", 1, manual_clock())
        assert queue.offer_or_update("a", 1, manual_clock() + MILLISECOND) is UPDATED
        assert_offered(queue, "a", 1, schedule_at=manual_clock() + MILLISECOND)

    def test_q2_the_same_payload_and_schedule_are_ignored(self, queue, manual_clock):
        at = manual_clock() + HOUR
        queue.offer_or_update("a", {"x": 1, "y": [2]}, at, headers={"kept": True})
        manual_clock.advance(SECOND)
        outcome = queue.offer_or_update("a", {"y": [2], "x": 1}, at, headers={"kept": False})
        assert outcome is IGNORED
        stored = assert_offered(queue, "a", headers={"kept": True})
        assert stored.created_at == manual_clock() - SECOND

    def test_q3_identity_compares_the_bytes(self, make_queue: MakeQueue, manual_clock: ManualClock):
        text = make_queue("raw", codec="bytes", clock=manual_clock)
        at = manual_clock()
        text.offer_or_update("a", b'{"x": 1}', at)
        assert text.offer_or_update("a", b'{"x":1}', at) is UPDATED

    def test_q3_an_identical_offer_while_leased_keeps_the_lease(self, queue, manual_clock):
        at = manual_clock()
        queue.offer_or_update("a", 1, at)
        envelope = leased(queue)
        manual_clock.advance(SECOND)
        assert queue.offer_or_update("a", 1, at) is IGNORED
        assert assert_offered(queue, "a", state="leased").lease_id == envelope.lease_id
        assert envelope.acknowledge()

    def test_q3_an_identical_offer_after_a_retry_is_ignored(self, queue, manual_clock):
        at = manual_clock()
        queue.offer_or_update("a", 1, at)
        leased(queue).release(HOUR)
        assert queue.offer_or_update("a", 1, at) is IGNORED
        assert assert_offered(queue, "a").scheduled_at == at + HOUR

    def test_q4_an_update_ends_the_lease_and_starts_anew(self, queue, manual_clock):
        queue.offer_or_update("a", 1)
        old = leased(queue)
        at = manual_clock.advance(SECOND)
        assert queue.offer_or_update("a", 2, at) is UPDATED
        stored = assert_offered(queue, "a", 2, schedule_at=at, state="due")
        assert (stored.lease_id, stored.attempts, stored.scheduled_at) == (None, 0, at)

        new = leased(queue)
        assert (new.payload, new.attempt, new.delivery_type) == (2, 1, DeliveryType.FIRST)
        assert not old.acknowledge()
        assert new.acknowledge()

    def test_q4_an_update_forgets_the_errors_of_the_old_life(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        leased(queue).release(error="it broke")
        assert assert_offered(queue, "a").last_error == "it broke"
        queue.offer_or_update("a", 2)
        assert assert_offered(queue, "a").last_error == ""
        leased(queue).reject("bad")
        letter = assert_dead(queue, "a")
        assert (letter.attempts, letter.first_error, letter.last_error) == (1, None, None)


class TestConcurrentOffers:
    def test_q6_threads_offering_one_key_create_it_once(self, make_shared_queue: MakeQueue):
        queue = make_shared_queue("orders")
        futures = [in_thread(partial(queue.offer_or_update, "a", n)) for n in range(6)]
        outcomes = Counter(future.result(TIMEOUT) for future in futures)
        assert outcomes == {CREATED: 1, UPDATED: 5}

    def test_q6_the_same_offer_of_many_threads_is_stored_once(self, shared_queue, manual_clock):
        offer = partial(shared_queue.offer_or_update, "a", 1, manual_clock())
        futures = [in_thread(offer) for _ in range(4)]
        outcomes = Counter(future.result(TIMEOUT) for future in futures)
        assert outcomes == {CREATED: 1, IGNORED: 3}

    @pytest.mark.parametrize("can_update", [True, False])
    def test_q7_an_offer_after_the_end_of_its_key_creates(self, queue, can_update):
        offer = queue.offer_or_update if can_update else queue.offer_if_not_exists
        assert offer("a", 1) is CREATED
        assert leased(queue).acknowledge()
        assert offer("a", 1) is CREATED
        assert queue.drop_message("a")
        assert offer("a", 1) is CREATED


class TestTimes:
    def test_q5_times_are_floored_before_1970_too(self, queue: DelayedQueue):
        at = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        queue.offer_or_update("a", 1, at)
        stored = assert_offered(queue, "a")
        assert stored.scheduled_at_initially == at.replace(microsecond=999_000)
        assert queue.offer_or_update("a", 1, at) is IGNORED

    def test_q5_a_clock_between_milliseconds_is_floored(self, make_queue: MakeQueue):
        clock = ManualClock(datetime(2030, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC))
        queue = make_queue("orders", clock=clock)
        queue.offer_or_update("a", 1)
        assert assert_offered(queue, "a").created_at == clock().replace(microsecond=1000)
        assert queue.offer_or_update("a", 1, clock()) is IGNORED

    def test_q10_a_delay_counts_from_the_clock(self, queue, manual_clock):
        queue.offer_or_update("a", 1, delay=MINUTE)
        queue.offer_if_not_exists("b", 1, delay=MINUTE)
        due = manual_clock() + MINUTE
        assert_offered(queue, "a", schedule_at=due, state="scheduled")
        assert_offered(queue, "b", schedule_at=due, state="scheduled")

    def test_q10_without_a_clock_a_delay_counts_from_now(self, make_queue: MakeQueue):
        queue = make_queue("orders")
        before = django_timezone.now() - SECOND
        queue.offer_or_update("a", 1, delay=HOUR)
        at = assert_offered(queue, "a", state="scheduled").scheduled_at
        assert before + HOUR <= at <= django_timezone.now() + SECOND + HOUR

    def test_q10_a_delay_and_a_schedule_are_refused_together(self, queue, manual_clock):
        with pytest.raises(InvalidMessage, match="not both"):
            queue.offer_or_update("a", 1, manual_clock(), delay=SECOND)
        assert_not_offered(queue, "a")

    @pytest.mark.parametrize("delay", [timedelta.max, timedelta.min, 1e15, "1 h"])
    def test_q10_delays_out_of_range_are_refused(self, queue: DelayedQueue, delay: Any):
        with pytest.raises(InvalidMessage, match="delay"):
            queue.offer_or_update("a", 1, delay=delay)

    @pytest.mark.parametrize(
        "at",
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC),
            datetime(2000, 2, 29, tzinfo=timezone(timedelta(hours=14))),
        ],
    )
    def test_q8_a_schedule_in_the_past_is_due(self, queue: DelayedQueue, at: datetime):
        queue.offer_or_update("a", 1, at)
        assert leased(queue).scheduled_at == at

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(key=storable_keys, at=schedules)
    def test_q8_what_is_legal_is_stored(self, queue: DelayedQueue, key: str, at: datetime):
        queue.offer_or_update(key, key, at)
        stored = assert_offered(queue, key, key, schedule_at=at)
        assert timedelta(0) <= at - stored.scheduled_at_initially < MILLISECOND
        assert queue.offer_or_update(key, key, at) is IGNORED
        assert queue.drop_message(key)


@pytest.fixture(params=[DelayedQueue, InMemoryQueue])
def unreachable(request: pytest.FixtureRequest) -> DelayedQueue:
    """A queue in a test without database access: pytest-django would raise."""
    queue: DelayedQueue = request.param("orders")
    return queue


class TestRefusals:
    """Q8: refused before any SQL, which these tests must not run."""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        key=st.one_of(
            st.just(""),
            keys.map(lambda key: (key * 201)[: max(len(key), 201)]),
            st.tuples(keys, keys).map("\0".join),
            st.tuples(keys, st.characters(categories=["Cs"])).map("".join),
            st.none() | st.integers() | st.binary(),
        )
    )
    def test_q8_keys_that_cannot_be_stored(self, unreachable: DelayedQueue, key: Any):
        with pytest.raises(InvalidMessage):
            unreachable.offer_or_update(key, 1)
        with pytest.raises(InvalidMessage):
            unreachable.offer_if_not_exists(key, 1)

    def test_q8_keys_are_measured_in_characters(self, queue: DelayedQueue):
        astral = "\N{PILE OF POO}" * MAX_KEY_LENGTH
        assert queue.offer_or_update(astral, 1) is CREATED
        assert leased(queue).key == astral
        with pytest.raises(InvalidMessage, match="201"):
            queue.offer_or_update(astral + "x", 1)

    @pytest.mark.parametrize(
        "at",
        [
            datetime(2030, 1, 1),  # noqa: DTZ001
            float("nan"),
            1_900_000_000,
            "2030-01-01",
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        ],
    )
    def test_q8_schedules_that_are_no_instant(self, unreachable: DelayedQueue, at: Any):
        with pytest.raises(InvalidMessage, match="schedule_at"):
            unreachable.offer_or_update("a", 1, at)

    @pytest.mark.parametrize(
        "headers",
        [{"x": float("nan")}, {"x": object()}, {1: "x"}, ["x"], {"x": "\0"}, {"\ud800": 1}],
    )
    def test_q8_headers_that_are_no_json(self, unreachable: DelayedQueue, headers: Any):
        with pytest.raises(InvalidMessage, match="header"):
            unreachable.offer_or_update("a", 1, headers=headers)

    @pytest.mark.parametrize("payload", [float("inf"), object(), {1, 2}, "\ud800"])
    def test_q8_payloads_that_do_not_encode(self, unreachable: DelayedQueue, payload: Any):
        with pytest.raises(PayloadNotEncodable, match="json codec"):
            unreachable.offer_or_update("a", payload)

    @pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
    @pytest.mark.parametrize("name", ["", "x" * 96, "a\0b", "\udfff", None, 7])
    def test_q8_kinds_that_cannot_be_stored(self, queue_type: type[DelayedQueue], name: Any):
        with pytest.raises(InvalidMessage):
            queue_type(name)

    @pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
    def test_q8_a_kind_has_up_to_100_characters(self, queue_type: type[DelayedQueue]):
        assert len(queue_type("x" * 95).kind) == 100
        with pytest.raises(InvalidMessage, match="100"):
            queue_type("orders", kind=str(uuid.uuid4()) * 3)

    @pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
    def test_q8_the_other_calls_check_their_keys_too(self, queue_type: type[DelayedQueue]):
        queue = queue_type("orders")
        for call in (queue.read, queue.contains_message, queue.drop_message):
            with pytest.raises(InvalidMessage):
                call("a\0b")
