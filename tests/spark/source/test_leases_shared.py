"""Streams of two queues that share a checkpoint or a lake, on PostgreSQL, without Spark."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.database import steady
from delayed_queue.spark.pipeline.handling import Calls, Handling, Place, Settler, ended_of
from delayed_queue.spark.source.ledger import JobKey
from delayed_queue.spark.source.stream import LeasingReader
from tests.spark.leasing import FIVE, fill, read, reader, settled, under
from tests.spark.pipelines import TARGETS
from tests.spark.support import keys_of

pytestmark = pytest.mark.usefixtures("queue")


class TestAnotherQueuesCheckpoint:
    def offsets(self, queue: DelayedQueue) -> tuple[Any, Any]:
        """Lease a batch, and one ahead, as a driver before its death."""
        fill(queue, 10)
        source = reader()
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        settled(source)
        source.stop()
        return start, end

    @pytest.mark.parametrize("step", ["partitions", "latestOffset", "commit"])
    def test_is_refused_before_anything_is_leased(self, queue: DelayedQueue, step: str):
        start, end = self.offsets(queue)
        DelayedQueue("beta").offer_or_update("b", 1)
        before = set(Message.objects.values_list("kind", "key", "lease_id", "scheduled_at"))
        theirs = reader(queue="beta")
        steps = {
            "partitions": lambda: theirs.partitions(start, end),
            "latestOffset": lambda: theirs.latestOffset(end, FIVE),
            "commit": lambda: theirs.commit(end),
        }
        with pytest.raises(InvalidConfiguration, match=r"'orders\|json'.*'beta\|json'"):
            steps[step]()
        theirs.stop()
        after = set(Message.objects.values_list("kind", "key", "lease_id", "scheduled_at"))
        assert after == before

    def test_is_refused_when_it_is_of_another_database(
        self, queue: DelayedQueue, after: LeasingReader
    ):
        start, end = self.offsets(queue)
        with pytest.raises(InvalidConfiguration, match=r"database 'shop'.*database 'test_"):
            after.partitions(start, {**end, "database": "shop"})

    def test_an_offset_that_names_no_queue_is_refused(
        self, queue: DelayedQueue, source: LeasingReader
    ):
        fill(queue, 1)
        with pytest.raises(InvalidConfiguration, match="of the queue None"):
            source.latestOffset({"n": 7, "lock": "gone", "next": ""}, FIVE)


class TestAnotherQueuesMessageUnderTheLease:
    """The drain never reads, handles or takes it over."""

    def mixed(self, queue: DelayedQueue) -> str:
        """Return a lease with one message of each of two queues."""
        queue.offer_or_update("ours", 1)
        DelayedQueue("beta").offer_or_update("theirs", 1)
        Message.objects.update(lease_id="lease")
        return "lease"

    def test_is_not_read(self, queue: DelayedQueue, source: LeasingReader):
        start = source.initialOffset()
        end = {**start, "n": 1, "lock": self.mixed(queue)}
        assert read(source, start, end) == ["ours"]

    def test_is_not_taken_over(self, queue: DelayedQueue, source: LeasingReader):
        start = {**source.initialOffset(), "n": 1, "next": self.mixed(queue)}
        end = source.latestOffset(start, FIVE)
        assert under(end["lock"]) == {"ours"}
        assert under("lease") == {"theirs"}

    def test_is_not_handled(self, queue: DelayedQueue, other: psycopg.Connection[Any]):
        lease_id, key = self.mixed(queue), JobKey("query")
        ids = list(Message.objects.values_list("id", flat=True))
        handling = Handling(f"{TARGETS}:answering", "orders")
        with steady() as connection, Calls(handling) as calls:
            Settler(connection, handling, "orders|json", Place(key), calls).handle(lease_id, ids)
        assert (ended_of(key), keys_of(other)) == ({"done": 1}, ["theirs"])
