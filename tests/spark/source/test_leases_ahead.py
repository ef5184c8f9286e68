"""Leases that a stream takes ahead of its batches, on PostgreSQL, without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark.source.leases import Leases
from delayed_queue.spark.source.options import parse_options
from delayed_queue.spark.source.stream import LeasingReader
from tests.spark.leasing import FIVE, fill, read, reader, settled, under
from tests.spark.support import is_waiting_for, keys_of
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("queue")


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
        ("count", "options"),
        [
            (4, {}),  # the next message is not due yet, and need not wait in a lease
            (9, {"prefetch": "false"}),
        ],
    )
    def test_nothing_is_taken_ahead(self, queue: DelayedQueue, count: int, options: dict[str, str]):
        fill(queue, count)
        source = reader(**options)
        assert source.latestOffset(source.initialOffset(), FIVE)["next"] == ""
        assert source.held().ahead is None
        source.stop()

    def test_after_a_restart_it_is_the_next_batch(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        """Also for a stream that ends with the messages due at its start."""
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
        """Otherwise it would be acknowledged without being handled."""
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
        """As after an unanswered commit."""
        fill(queue, 10)
        first = source.latestOffset(source.initialOffset(), FIVE)
        settled(source)
        leases = Leases(parse_options({"queue": "orders"}), source.held().owner)
        for _ in range(2):
            found = leases.take_over("ours", [first["next"], "ours"], deliveries=0)
            assert found == 5
        leases.close()

    def test_a_consumer_that_takes_an_expired_one_keeps_it(
        self, queue: DelayedQueue, source: LeasingReader, other: psycopg.Connection[Any]
    ):
        """The take-over waits for the claim that locks the row, and then skips the row."""
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
