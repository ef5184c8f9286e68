"""Q36: the table shared with a JVM service, simulated by its statements."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from delayed_queue import DelayedQueue, DeliveryType, OfferOutcome
from delayed_queue.codecs import jvm_kind
from delayed_queue.messages import from_milliseconds, to_milliseconds
from delayed_queue.testing import ManualClock, assert_dead, assert_not_offered, assert_offered
from tests.queue.contract.support import HOUR, MINUTE, SECOND, leased
from tests.queue.jvm import KIND, JvmService
from tests.support.concurrency import raw_connection

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, 0, 0, 0, 123_999, tzinfo=UTC))


@pytest.fixture
def jvm(clock: ManualClock) -> Iterator[JvmService]:
    with raw_connection() as session:
        yield JvmService(session, clock)


@pytest.fixture
def queue(clock: ManualClock) -> DelayedQueue:
    return DelayedQueue("my-queue", codec="text", kind=jvm_kind("my-queue"), clock=clock)


def test_q36_the_kind_is_the_one_of_the_jvm(queue: DelayedQueue):
    assert jvm_kind("my-queue", "java.lang.String") == queue.kind == KIND


class TestTheirMessages:
    def test_q36_are_polled_and_acknowledged(self, queue: DelayedQueue, jvm: JvmService):
        assert jvm.offer("key-1", "žluťoučký kůň \N{HORSE}") == "Created"
        envelope = leased(queue)
        assert (envelope.key, envelope.payload) == ("key-1", "žluťoučký kůň \N{HORSE}")
        assert (envelope.attempt, envelope.delivery_type) == (1, DeliveryType.FIRST)
        assert envelope.scheduled_at == from_milliseconds(jvm.now)
        assert envelope.headers == {}
        assert jvm.poll(MINUTE) is None
        assert envelope.acknowledge()
        assert_not_offered(queue, "key-1")

    def test_q36_are_read_and_counted(self, queue, jvm, clock):
        jvm.offer("key-1", "text", clock() + HOUR)
        stored = assert_offered(queue, "key-1", "text", schedule_at=clock() + HOUR)
        assert (stored.state, stored.attempts, stored.lease_id) == ("scheduled", 0, None)
        assert queue.stats().scheduled == 1

    def test_q36_are_ignored_or_updated_by_our_offers(self, queue, jvm, clock):
        jvm.offer("key-1", "text", clock())
        assert queue.offer_or_update("key-1", "text", clock()) is OfferOutcome.IGNORED
        assert queue.offer_if_not_exists("key-1", "other") is OfferOutcome.IGNORED
        assert queue.offer_or_update("key-1", "other", clock()) is OfferOutcome.UPDATED
        polled = jvm.poll(MINUTE)
        assert polled is not None
        assert polled.payload == "other"

    def test_q36_die_like_ours(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "text")
        leased(queue).reject("bad")
        letter = assert_dead(queue, "key-1", reason="bad")
        assert letter.payload == b"text"
        assert queue.redrive([letter.id]) == {letter.id: OfferOutcome.CREATED}
        assert jvm.poll(MINUTE) is not None

    def test_q36_are_consumed(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "text")
        with queue.consume() as envelope:
            assert envelope is not None
            assert envelope.payload == "text"
        assert jvm.poll(MINUTE) is None

    def test_q36_an_update_of_theirs_ends_our_lease(self, queue: DelayedQueue, jvm: JvmService):
        queue.offer_or_update("key-1", "text")
        envelope = leased(queue)
        assert jvm.offer("key-1", "other") == "Updated"
        assert not envelope.acknowledge()
        assert leased(queue).payload == "other"

    def test_q36_a_lease_of_theirs_is_respected(self, queue, jvm, clock):
        jvm.offer("key-1", "text")
        polled = jvm.poll(MINUTE)
        assert polled is not None
        assert queue.try_poll() is None
        assert assert_offered(queue, "key-1", state="leased").lease_id == polled.lock
        assert queue.stats().leased == 1
        clock.advance(MINUTE)
        envelope = leased(queue)
        assert envelope.delivery_type is DeliveryType.REDELIVERY
        assert jvm.acknowledge(polled.lock) == 0
        assert envelope.acknowledge()


class TestOurMessages:
    def test_q36_have_the_eight_columns_as_they_expect_them(self, queue, jvm, clock):
        at = clock() + SECOND + timedelta(microseconds=1)
        queue.offer_or_update("key-1", "kůň", at)
        floored = to_milliseconds(at)
        row = jvm.row("key-1")
        assert row[1:3] == ("key-1", KIND)
        assert bytes(row[3]) == "kůň".encode()
        assert row[4:] == (floored, floored, None, jvm.now)
        assert isinstance(row[0], int)

    def test_q36_are_polled_and_acknowledged_by_them(self, queue: DelayedQueue, jvm: JvmService):
        queue.offer_or_update("key-1", "text")
        polled = jvm.poll(MINUTE)
        assert polled is not None
        assert (polled.key, polled.payload) == ("key-1", "text")
        assert queue.try_poll() is None
        assert jvm.acknowledge(polled.lock) == 1
        assert_not_offered(queue, "key-1")

    def test_q36_are_polled_by_them_in_batches(self, queue: DelayedQueue, jvm: JvmService):
        for number in range(4):
            queue.offer_or_update(f"key-{number}", str(number))
        polled = jvm.poll_many(3, MINUTE)
        assert [each.payload for each in polled] == ["0", "1", "2"]
        assert leased(queue).payload == "3"
        assert jvm.acknowledge(polled[0].lock) == 3

    def test_q36_are_ignored_or_updated_by_their_offers(self, queue, jvm, clock):
        queue.offer_or_update("key-1", "text", clock())
        assert jvm.offer("key-1", "text", clock()) == "Ignored"
        assert jvm.offer("key-1", "text", clock() + HOUR) == "Updated"
        assert_offered(queue, "key-1", "text", schedule_at=clock() + HOUR)

    def test_q36_our_leases_look_like_theirs(self, queue, jvm, clock):
        queue.offer_or_update("key-1", "text")
        envelope = leased(queue)
        row = jvm.row("key-1")
        assert row[4] == to_milliseconds(clock() + queue.lease_duration)
        assert row[5] == jvm.now
        assert row[6] == envelope.lease_id == str(uuid.UUID(row[6], version=4))
        clock.advance(queue.lease_duration)
        polled = jvm.poll(MINUTE)
        assert polled is not None
        # They detect a redelivery by scheduledAt after scheduledAtInitially.
        assert polled.scheduled_at_initially < jvm.now
        assert not envelope.acknowledge()
        assert jvm.acknowledge(polled.lock) == 1

    def test_q36_an_update_of_ours_ends_their_lease(self, queue: DelayedQueue, jvm: JvmService):
        jvm.offer("key-1", "text")
        polled = jvm.poll(MINUTE)
        assert polled is not None
        assert queue.offer_or_update("key-1", "other") is OfferOutcome.UPDATED
        assert jvm.acknowledge(polled.lock) == 0
        assert_offered(queue, "key-1", "other", state="due")
