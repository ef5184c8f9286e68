"""The leases of a stream on PostgreSQL, without Spark: who gets what, and who deletes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.spark.leases import Leases
from delayed_queue.spark.options import parse_options
from delayed_queue.spark.schema import read_schema
from delayed_queue.spark.stream_reader import LeasingReader
from tests.processes import wait_until
from tests.spark.support import is_waiting_for, keys_of

pytestmark = pytest.mark.usefixtures("queue")

FIVE = ReadMaxRows(5)


def reader(**options: str) -> LeasingReader:
    given = {"queue": "orders", "leaseConnections": "2", "renew": "false", **options}
    return LeasingReader(parse_options(given), read_schema("orders|json"))


def read(source: LeasingReader, start: Any, end: Any) -> list[str]:
    """Do what the tasks of a batch do."""
    found: list[str] = []
    for partition in source.partitions(start, end):
        for batch in source.read(partition):
            found.extend(batch["key"].to_pylist())
    return sorted(found)


@pytest.fixture
def source() -> Iterator[LeasingReader]:
    made = reader()
    yield made
    made.stop()


def fill(queue: DelayedQueue, count: int) -> list[str]:
    keys = [f"k{each:03}" for each in range(count)]
    queue.offer_batch([ScheduledMessage(key, 1) for key in keys])
    return keys


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
        """Attempts rise, what is leased is nobody else's, and an expired lease is taken over."""
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

    def test_trigger_once_takes_all(self, queue: DelayedQueue, source: LeasingReader):
        keys = fill(queue, 12)
        start = source.initialOffset()
        end = source.latestOffset(start, ReadAllAvailable())
        assert read(source, start, end) == keys

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


class TestAhead:
    def test_the_next_lease_is_taken_ahead(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        keys = fill(queue, 10)
        first = source.latestOffset(source.initialOffset(), FIVE)
        settled(source)
        assert under(first["lock"]) == set(keys[:5])
        assert under(first["next"]) == set(keys[5:])
        second = source.latestOffset(first, FIVE)
        assert second["lock"] == first["next"]
        assert (read(source, first, second), keys_of(other)) == (keys[5:], keys[5:])
        assert source.latestOffset(second, FIVE) == second

    @pytest.mark.parametrize(
        ("count", "options", "limit"),
        [
            (4, {}, FIVE),  # what comes next is not due yet, and has not to wait in a lease
            (9, {"prefetch": "false"}, FIVE),
            (9, {}, ReadAllAvailable()),  # the only batch of its query
        ],
    )
    def test_nothing_is_taken_ahead(
        self, queue: DelayedQueue, count: int, options: dict[str, str], limit: Any
    ):
        fill(queue, count)
        source = reader(**options)
        assert source.latestOffset(source.initialOffset(), limit)["next"] == ""
        assert source._held()._ahead is None
        source.stop()

    def test_after_a_restart_it_is_the_next_batch(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        """Also of a stream that ends with what was due at its start."""
        keys = fill(queue, 12)
        start = source.initialOffset()
        first = source.latestOffset(start, FIVE)
        settled(source)
        after = reader()
        after.prepareForTriggerAvailableNow()
        assert read(after, start, first) == keys[:5]
        second = after.latestOffset(first, FIVE)
        assert second["lock"] not in {first["lock"], first["next"]}
        assert read(after, first, second) == keys[5:10]
        assert {each.attempts for each in Message.objects.filter(key__in=keys[5:10])} == {1}
        third = after.latestOffset(second, FIVE)
        assert (read(after, second, third), keys_of(other)) == (keys[10:], keys[10:])
        after.stop()

    def test_what_a_dead_process_leases_late_is_no_part_of_the_batch(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        """Else it would be acknowledged, and nobody had handled it."""
        keys = fill(queue, 11)
        first = source.latestOffset(source.initialOffset(), FIVE)
        settled(source)
        after = reader()
        second = after.latestOffset(first, FIVE)
        Message.objects.filter(key=keys[10]).update(lease_id=first["next"])
        assert read(after, first, second) == keys[5:10]
        after.commit(second)
        assert keys_of(other) == [keys[10]]
        after.stop()

    def test_a_repeated_take_over_finds_what_the_first_has_moved(
        self, queue: DelayedQueue, source: LeasingReader
    ):
        """As after a commit that was not answered."""
        fill(queue, 10)
        first = source.latestOffset(source.initialOffset(), FIVE)
        settled(source)
        leases = Leases(parse_options({"queue": "orders", "renew": "false"}))
        for _ in range(2):
            assert leases._take_over("ours", [first["next"], "ours"], deliveries=0) == 5
        leases.close()

    def test_a_consumer_that_takes_an_expired_one_keeps_it(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        """The take-over waits for the claim that holds the row, and then leaves it."""
        keys = fill(queue, 10)
        first = source.latestOffset(source.initialOffset(), FIVE)
        settled(source)
        after = reader()
        with ThreadPoolExecutor(1) as pool:
            with other.transaction():
                claim = """UPDATE delayed_queue SET "lockUuid" = 'theirs' WHERE "pKey" = %s"""
                other.execute(claim, [keys[7]])
                taking = pool.submit(after.latestOffset, first, FIVE)
                wait_until(lambda: is_waiting_for(other))
            second = taking.result(60)
        assert read(after, first, second) == [each for each in keys[5:] if each != keys[7]]
        assert under("theirs") == {keys[7]}
        after.stop()

    def test_an_offset_of_an_earlier_version(self, queue: DelayedQueue, source: LeasingReader):
        keys = fill(queue, 3)
        start = {"n": 7, "lock": "gone"}
        end = source.latestOffset(start, FIVE)
        assert (end["n"], read(source, start, end)) == (8, keys)


def settled(source: LeasingReader) -> None:
    """Wait until what is leased ahead is leased."""
    ahead = source._held()._ahead
    assert ahead is not None
    ahead.result(60)


def under(lease_id: str) -> set[str]:
    return set(Message.objects.filter(lease_id=lease_id).values_list("key", flat=True))


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
        settled(source)  # that looked for more
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
        """A message that kills each process which handles it has to use up its attempts."""
        fill(queue, 2)
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        for attempts in (2, 3):
            after = reader()
            for _ in range(2):  # Spark asks more than once
                after.partitions(start, end)
            assert {each.attempts for each in Message.objects.all()} == {attempts}
            after.stop()


class TestRenewal:
    def test_a_slow_batch_keeps_its_messages(self, queue: DelayedQueue):
        fill(queue, 3)
        source = reader(lease="400ms", renew="true")
        end = source.latestOffset(source.initialOffset(), FIVE)
        first = leased_until()
        # Three renewals, so beyond the first lease: nobody else has had a chance.
        wait_until(lambda: leased_until() > first + timedelta(seconds=0.6))
        assert queue.try_poll() is None
        source.commit(end)
        assert Message.objects.count() == 0
        source.stop()

    def test_without_renewal_others_take_them(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ):
        fill(queue, 3)
        source = reader(lease="100ms")
        end = source.latestOffset(source.initialOffset(), FIVE)
        wait_until(lambda: queue.try_poll() is not None)
        source.commit(end)
        assert keys_of(other) == ["k000"]
        source.stop()

    def test_threads_stay_on_the_driver(self, queue: DelayedQueue):
        import pickle

        source = reader(renew="true")
        source.latestOffset(source.initialOffset(), FIVE)
        assert pickle.loads(pickle.dumps(source))._leases is None  # noqa: S301 - our own
        source.stop()


def leased_until() -> Any:
    return Message.objects.order_by("scheduled_at")[0].scheduled_at


def expire(*keys: str) -> None:
    """Let leases have run out, the first key's first."""
    for number, key in enumerate(keys):
        Message.objects.filter(key=key).update(
            scheduled_at=Message.objects.get(key=key).created_at + timedelta(milliseconds=number)
        )


def test_what_nobody_has_seen_is_given_back_uncounted(queue: DelayedQueue):
    fill(queue, 5)
    leases = Leases(parse_options({"queue": "orders", "renew": "false"}))
    lease_id = leases.take(3)
    assert lease_id is not None
    leases.give_back(lease_id)
    leases.close()
    assert Message.objects.filter(lease_id__isnull=True, attempts=0).count() == 5


class Interleaving(RuleBasedStateMachine):
    """A stream that crashes and starts again, beside a consumer of the queue's own.

    The stream is driven as Spark drives it: an offset is logged before its batch runs, a batch
    is committed after its sink, and only then the next offset is asked for.
    """

    @initialize(count=st.integers(1, 12), prefetch=st.sampled_from(["true", "false"]))
    def begin(self, count: int, prefetch: str) -> None:
        Message.objects.all().delete()
        self.queue = DelayedQueue("orders")
        self.keys = fill(self.queue, count)
        self.delivered: Counter[str] = Counter()
        self.deleted: Counter[str] = Counter()
        self.held: list[Any] = []
        self.prefetch = prefetch
        self.source = reader(numPartitions="3", prefetch=prefetch)
        self.logged = [self.source.initialOffset()]
        self.committed = 0

    def remaining(self) -> set[str]:
        return set(Message.objects.values_list("key", flat=True))

    def count_deletions(self, before: set[str]) -> None:
        self.deleted.update(before - self.remaining())

    @rule(most=st.integers(1, 4))
    def plan(self, most: int) -> None:
        """Log the next offset, if the last batch is done."""
        if self.committed < len(self.logged) - 1:
            return
        before = self.remaining()
        end = self.source.latestOffset(self.logged[-1], ReadMaxRows(most))
        self.count_deletions(before)
        if end != self.logged[-1]:
            self.logged.append(end)
            if end["next"]:
                settled(self.source)

    @rule()
    def lose_the_offset(self) -> None:
        """Crash between the lease and the offset log."""
        if self.committed == len(self.logged) - 1:
            before = self.remaining()
            self.source.latestOffset(self.logged[-1], ReadMaxRows(3))
            self.count_deletions(before)
            self.restart()

    @rule(again=st.booleans())
    def work(self, again: bool) -> None:
        """Run the batch that is logged, and perhaps crash before it is committed."""
        if self.committed == len(self.logged) - 1:
            return
        start, end = self.logged[-2:]
        self.delivered.update(read(self.source, start, end))
        if again:
            self.restart()
        else:
            self.committed = len(self.logged) - 1

    @rule()
    def commit(self) -> None:
        """Spark calls commit() for what is done, also twice."""
        before = self.remaining()
        self.source.commit(self.logged[self.committed])
        self.count_deletions(before)

    @rule()
    def restart(self) -> None:
        self.source.stop()
        self.source = reader(numPartitions="3", prefetch=self.prefetch)

    @rule(most=st.integers(1, 3))
    def poll(self, most: int) -> None:
        batch = self.queue.try_poll_many(most)
        self.delivered.update(each.key for each in batch)
        self.held.append(batch)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        batch = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        before = self.remaining()
        batch.acknowledge()
        self.count_deletions(before)

    @rule(data=st.data())
    def run_out(self, data: st.DataObject) -> None:
        """Let some leases run out: of the stream, of the consumer, of both."""
        leased = sorted(self.remaining())
        if leased:
            expire(*data.draw(st.lists(st.sampled_from(leased), unique=True)))

    def teardown(self) -> None:
        if not hasattr(self, "source"):
            return
        self.finish()
        self.source.stop()
        # Every key was delivered at least once, and deleted exactly once.
        assert set(self.delivered) == set(self.keys)
        assert self.deleted == Counter(self.keys)

    def finish(self) -> None:
        self.held.clear()
        expire(*sorted(self.remaining()))
        while self.remaining():
            self.work(again=False)
            self.commit()
            self.plan(4)
            expire(*sorted(self.remaining() - set(self.leased_by_stream())))

    def leased_by_stream(self) -> list[str]:
        held = [self.logged[-1]["lock"], self.logged[-1]["next"]]
        return list(Message.objects.filter(lease_id__in=held).values_list("key", flat=True))


def test_interleaved_with_another_consumer_each_is_delivered_and_deleted_once():
    run_state_machine_as_test(
        Interleaving,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
