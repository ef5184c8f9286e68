"""A stream's leases on PostgreSQL, without Spark: claims and deletions (P3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.source.stream import LeasingReader
from tests.spark.leasing import FIVE, expire, fill, leased_until, read, reader, settled
from tests.spark.support import keys_of
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("queue")


class TestBatches:
    def test_each_is_acknowledged_when_the_next_is_asked_for(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        keys = fill(queue, 7)
        start = source.initialOffset()
        first = source.latestOffset(start, FIVE)
        assert (read(source, start, first), keys_of(other)) == (keys[:5], keys)
        second = source.latestOffset(first, FIVE)
        assert (read(source, first, second), keys_of(other)) == (keys[5:], keys[5:])
        assert source.latestOffset(second, FIVE) == second
        assert (keys_of(other), source.partitions(second, second)) == ([], [])

    def test_a_repeated_read_agrees(self, queue: DelayedQueue, source: LeasingReader):
        keys = fill(queue, 5)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        queue.offer_if_not_exists("later", 1)
        assert read(source, start, end) == read(source, start, end) == keys

    def test_a_lease_is_that_of_a_claim(self, queue: DelayedQueue, source: LeasingReader):
        """Attempts rise, no other consumer gets it, and the stream takes over an expired lease."""
        fill(queue, 2)
        queue.try_poll_many(1)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        assert read(source, start, end) == ["k001"]
        assert queue.try_poll() is None
        row = Message.objects.get(key="k001")
        assert (row.attempts, row.lease_id, row.due_at) == (1, end["lock"], row.created_at)
        assert row.scheduled_at - row.created_at > timedelta(minutes=9)
        expire("k000")
        last = source.latestOffset(end, FIVE)
        assert read(source, end, last) == ["k000"]
        assert Message.objects.get(key="k000").attempts == 2

    def test_a_paused_queue_hands_out_nothing(self, queue: DelayedQueue, source: LeasingReader):
        fill(queue, 2)
        queue.pause()
        start = source.initialOffset()
        assert source.latestOffset(start, FIVE) == start
        queue.resume()
        assert source.latestOffset(start, FIVE)["n"] == 1

    def test_trigger_once_is_refused(self, queue: DelayedQueue, source: LeasingReader):
        """It leases all messages in one batch, which maxMessagesPerTrigger must bound."""
        fill(queue, 1)
        with pytest.raises(InvalidConfiguration, match="use availableNow=True"):
            source.latestOffset(source.initialOffset(), ReadAllAvailable())
        assert queue.stats().due == 1

    def test_available_now_leaves_what_comes_later(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        fill(queue, 7)
        source.prepareForTriggerAvailableNow()
        other.execute("SELECT pg_sleep(0.002)")  # the clock counts in milliseconds
        queue.offer_if_not_exists("later", 1)
        offset = source.initialOffset()
        while (end := source.latestOffset(offset, FIVE)) != offset:
            offset = end
        assert (offset["n"], keys_of(other)) == (2, ["later"])

    def test_an_update_while_it_is_leased_is_not_acknowledged(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        fill(queue, 2)
        end = source.latestOffset(source.initialOffset(), FIVE)
        queue.offer_or_update("k000", 2)
        source.commit(end)
        assert keys_of(other) == ["k000"]

    def test_many_connections_share_one_lease(self, queue: DelayedQueue):
        keys = fill(queue, 30)
        source = reader(leaseConnections="4", maxMessagesPerTrigger="20000")
        start = source.initialOffset()
        end = source.latestOffset(start, ReadMaxRows(20_000))
        assert read(source, start, end) == keys
        source.stop()


class TestRestarts:
    def test_within_the_lease_the_same_rows_come_again(
        self, queue: DelayedQueue, source: LeasingReader
    ):
        keys = fill(queue, 5)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        after = reader()
        assert read(after, start, end) == keys
        assert after.latestOffset(end, FIVE) == end
        assert Message.objects.count() == 0
        after.stop()

    def test_after_it_what_others_have_taken_is_theirs(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        fill(queue, 5)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        settled(source)  # it polled for more
        expire("k000", "k001")
        theirs = queue.try_poll_many(9)
        after = reader()
        assert read(after, start, end) == ["k002", "k003", "k004"]
        after.commit(end)
        assert keys_of(other) == ["k000", "k001"]
        assert theirs.acknowledge() == 2
        after.stop()

    def test_what_is_left_of_the_lease_is_renewed_at_once(
        self, queue: DelayedQueue, source: LeasingReader
    ):
        fill(queue, 2)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        expire("k000", "k001")
        after = reader()
        assert len(after.partitions(start, end)) == 1
        assert queue.try_poll() is None
        after.stop()

    def test_a_replay_is_one_delivery_more(self, queue: DelayedQueue, source: LeasingReader):
        """A message that kills each of its processes has to use up its attempts."""
        fill(queue, 2)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        for attempts in (2, 3):
            after = reader()
            for _ in range(2):  # Spark calls it more than once
                after.partitions(start, end)
            assert {each.attempts for each in Message.objects.all()} == {attempts}
            after.stop()


class TestRenewal:
    def test_a_slow_batch_keeps_its_messages(self, queue: DelayedQueue):
        fill(queue, 3)
        source = reader(lease="400ms")
        end = source.latestOffset(source.initialOffset(), FIVE)
        first = leased_until()
        # Three renewals, so beyond the first lease: no other consumer had a chance.
        wait_until(lambda: leased_until() > first + timedelta(seconds=0.6))
        assert queue.try_poll() is None
        source.commit(end)
        assert Message.objects.count() == 0
        source.stop()

    def test_threads_stay_on_the_driver(self, queue: DelayedQueue):
        import pickle

        source = reader()
        fill(queue, 3)
        source.latestOffset(source.initialOffset(), FIVE)
        # An executor's copy holds no leases that it could release.
        pickle.loads(pickle.dumps(source)).stop()  # noqa: S301 - our own
        assert queue.try_poll() is None
        source.stop()


def test_what_nobody_has_seen_is_given_back_uncounted(queue: DelayedQueue, source: LeasingReader):
    fill(queue, 5)
    lease_id = source.held().take(3)
    assert lease_id is not None
    source.held().give_back(lease_id)
    assert Message.objects.filter(lease_id__isnull=True, attempts=0).count() == 5
