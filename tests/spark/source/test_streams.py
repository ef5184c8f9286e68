"""Draining and filling queues with streams, in a real Spark session (P3, P4)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.spark import acknowledge_checkpoint, counts, drain
from tests.spark.support import keys_of, with_jvm
from tests.support.processes import wait_until, worker
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]


def stream(spark: Any, **options: str) -> Any:
    given = {"queue": "orders", "leaseConnections": "1", "numPartitions": "2", **options}
    return spark.readStream.format("delayed_queue").options(**given).load()


def fill(count: int, name: str = "orders") -> set[str]:
    keys = [f"k{each:04}" for each in range(count)]
    DelayedQueue(name).offer_batch([ScheduledMessage(key, 1) for key in keys])
    return set(keys)


def to_lake(frame: Any, lake: str) -> Any:
    return frame.writeStream.format("parquet").option("path", f"{lake}/rows")


def in_lake(spark: Any, lake: str) -> list[str]:
    return [row.key for row in spark.read.parquet(f"{lake}/rows").select("key").collect()]


class TestDraining:
    @pytest.mark.parametrize("prefetch", sample(["false", "true"], "true"))
    def test_every_message_once_and_the_last_batch_is_acknowledged(
        self, spark: Any, lake: str, prefetch: str
    ):
        keys = fill(25)
        options = {"maxMessagesPerTrigger": "10", "prefetch": prefetch}
        query = drain(to_lake(stream(spark, **options), lake), f"{lake}/checkpoint")
        assert sorted(in_lake(spark, lake)) == sorted(keys)
        assert Message.objects.count() == 0
        assert [each["numInputRows"] for each in query.recentProgress][:3] == [10, 10, 5]

    def test_b8_written_rows_are_members_and_the_last_batch_counts_them(
        self, spark: Any, lake: str, queue: DelayedQueue
    ):
        reports = DelayedQueue("reports")
        frame = spark.range(0, 25, 1, 2).selectExpr("concat('k', id) AS key", "'1' AS payload")
        writer = frame.write.format("delayed_queue").mode("append").option("queue", "orders")
        with queue.batch(ScheduledMessage("then", 1), then_queue=reports) as batch:
            writer.option("batch", batch.id).save()
        with pytest.raises(Exception, match=r"BatchClosed.*closed or unknown"):
            writer.option("batch", batch.id).option("mode", "upsert").save()
        assert Message.objects.filter(batch_id=batch.id).count() == 25
        options = {"maxMessagesPerTrigger": "10"}
        drain(to_lake(stream(spark, **options), lake), f"{lake}/checkpoint")
        stored = reports.read("then")
        assert stored is not None
        assert stored.headers["batch"]["done"] == stored.headers["batch"]["total"] == 25

    def test_expired_messages_are_left_out_and_deleted(self, spark: Any, lake: str):
        """Q37: the database's clock decides when the batch is planned."""
        fill(4)
        now = timezone.now()
        Message.objects.filter(key="k0001").update(expires_at=now)
        Message.objects.filter(key="k0002").update(expires_at=now + timedelta(hours=1))
        drain(to_lake(stream(spark), lake), f"{lake}/checkpoint")
        assert sorted(in_lake(spark, lake)) == ["k0000", "k0002", "k0003"]
        assert Message.objects.count() == 0

    def test_a_stream_that_was_stopped_is_acknowledged_by_its_checkpoint(
        self, spark: Any, lake: str
    ):
        fill(5)
        writer = to_lake(stream(spark), lake).option("checkpointLocation", f"{lake}/checkpoint")
        # So slow that it never reads a second batch.
        query = writer.trigger(processingTime="1 hour").start()
        wait_until(lambda: Path(f"{lake}/checkpoint/commits/0").exists())
        query.stop()
        assert Message.objects.filter(lease_id__isnull=False).count() == 5
        assert acknowledge_checkpoint(spark, f"{lake}/checkpoint") == 1
        assert Message.objects.count() == 0

    def test_what_a_stream_had_leased_ahead_is_given_back(self, spark: Any, lake: str):
        """After a failure, so that no consumer waits for a lease to end."""
        fill(25)

        def break_at_once(frame: Any, batch: int) -> None:
            wait_until(lambda: Message.objects.filter(lease_id__isnull=False).count() == 20)
            raise ValueError("the sink broke")

        frame = stream(spark, maxMessagesPerTrigger="10")
        writer = frame.writeStream.foreachBatch(closing(break_at_once))
        with pytest.raises(Exception, match="the sink broke"):
            drain(writer, f"{lake}/checkpoint")
        # The batch itself is kept for the next start from its checkpoint.
        assert Message.objects.filter(lease_id__isnull=False).count() == 10
        assert Message.objects.filter(lease_id__isnull=True, attempts=0).count() == 15

    def test_a_checkpoint_without_a_finished_batch(self, spark: Any, lake: str):
        assert acknowledge_checkpoint(spark, lake) == 0

    def test_progress_that_is_written_later_is_refused(self, spark: Any, lake: str):
        with pytest.raises(Exception, match="async"):
            to_lake(stream(spark), lake).option("asyncProgressTrackingEnabled", "true").option(
                "checkpointLocation", f"{lake}/checkpoint"
            ).start()
        with pytest.raises(Exception, match="acknowledged before"):
            stream(spark, asyncProgressTrackingEnabled="true")


def closing(function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """Close the function's Django connections: Spark calls it in a thread that lives on."""

    def call(frame: Any, batch: int) -> None:
        try:
            function(frame, batch)
        finally:
            connections.close_all()

    return call


def run_batches(frame: Any, lake: str, function: Callable[[Any, int], None], **trigger: Any) -> Any:
    query = (
        frame.writeStream.foreachBatch(closing(function))
        .option("checkpointLocation", f"{lake}/checkpoint")
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    return query


def test_a_lease_shorter_than_the_batch_is_renewed(spark: Any, lake: str, queue: DelayedQueue):
    fill(4)
    start = Message.objects.get(key="k0000").created_at

    def wait_for_the_lease_to_run_out(frame: Any, batch: int) -> None:
        frame.collect()
        if batch == 0:
            beyond = start + timedelta(seconds=4)
            wait_until(lambda: Message.objects.get(key="k0000").scheduled_at > beyond)
            assert queue.try_poll() is None

    run_batches(stream(spark, lease="1s"), lake, wait_for_the_lease_to_run_out)
    assert not Message.objects.exists()


class TestFilling:
    """A stream of files into a queue."""

    def source(self, spark: Any, lake: str) -> Any:
        rows = spark.range(0, 40, 1, 2).selectExpr("concat('k', id) AS key", "'1' AS payload")
        rows.write.mode("append").parquet(f"{lake}/files")
        return spark.readStream.schema(rows.schema).parquet(f"{lake}/files")

    def fill(self, source: Any, lake: str, **options: str) -> Any:
        query = (
            source.writeStream.format("delayed_queue")
            .options(queue="orders", chunk="7", **options)
            .option("checkpointLocation", f"{lake}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def test_a_replayed_batch_changes_nothing_and_counts_once(
        self, spark: Any, lake: str, queue: DelayedQueue
    ):
        source = self.source(spark, lake)
        query = self.fill(source, lake)
        assert queue.try_poll_many(10).acknowledge() == 10
        # As if the driver had died between the sink and its commit log.
        for name in ("0", ".0.crc"):
            Path(f"{lake}/checkpoint/commits/{name}").unlink()
        again = self.fill(source, lake)
        assert again.id == query.id
        assert Message.objects.count() == 30
        found = counts(query.id)
        assert (found.created, found.updated, found.ignored) == (40, 0, 0)
        assert found.is_complete

    def test_a_job_id_is_for_batches(self, spark: Any, lake: str):
        with pytest.raises(Exception, match="counted under the id of its query"):
            self.fill(self.source(spark, lake), lake, job="mine")


@pytest.mark.long
@pytest.mark.slow
def test_django_workers_and_a_stream_share_a_queue(
    spark: Any, lake: str, other: psycopg.Connection[Any]
):
    """Both lease from one queue at the same time: each message goes to one of them."""
    keys = fill(3000, "ledger")
    frame = stream(spark, queue="ledger", maxMessagesPerTrigger="50")
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(drain, to_lake(frame, lake), f"{lake}/checkpoint")
        # The worker starts faster than the stream finishes its batches.
        wait_until(lambda: len(keys_of(other)) < 3000)
        with worker("--queue", "ledger"):
            draining.result(120)
            wait_until(lambda: keys_of(other) == [])
    ours = in_lake(spark, lake)
    theirs = list(Effect.objects.values_list("key", flat=True))
    assert ours
    assert theirs
    assert sorted(ours + theirs) == sorted(keys)
