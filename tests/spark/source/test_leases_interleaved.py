"""A stream's leases beside another consumer, in any order, on PostgreSQL, without Spark (P3)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

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
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from tests.spark.leasing import expire, fill, read, reader, settled

pytestmark = pytest.mark.usefixtures("queue")

# `make chaos` raises it.
ROUNDS: Final = int(os.environ.get("CHAOS_ROUNDS", "1"))


class Interleaving(RuleBasedStateMachine):
    """A stream that crashes and starts again, beside a consumer of the queue's own.

    The test drives the stream as Spark does: it logs an offset before its batch runs, and commits a
    batch after its sink. Only then it requests the next offset.
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
        """Log the next offset, if the last batch has been committed."""
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
        """Run the logged batch, and perhaps crash before its commit."""
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
        """Spark calls commit() for finished batches, even twice."""
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
        """Expire some leases: of the stream, of the consumer, of both."""
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
            max_examples=15 * ROUNDS,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
