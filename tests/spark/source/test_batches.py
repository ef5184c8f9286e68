"""Reading and writing queues with a real Spark session (P1, P2)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.spark import consistent_snapshot, counts
from tests.spark.support import keys_of, wait_in_task, with_jvm
from tests.support.processes import wait_until
from tests.support.sampling import sample
from tests.support.servers import crash, private_server

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]


BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def messages(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('k', id) AS key", "concat('{\"n\": ', id, '}') AS payload"
    )


def bulky(spark: Any, count: int) -> Any:
    """Rows so large that Spark passes on a few of them without waiting for more."""
    return messages(spark, count).selectExpr("key", "repeat('x', 5000) AS payload")


def activate(spark: Any) -> None:
    """Make the session that of this thread: elsewhere Spark finds no Python source."""
    spark.createDataFrame([(1,)], "number int")


TEXT = {"codec": "text"}


@contextmanager
def small_batches(spark: Any) -> Iterator[None]:
    before = spark.conf.get(BATCH_ROWS)
    spark.conf.set(BATCH_ROWS, "30")
    yield
    spark.conf.set(BATCH_ROWS, before)


def write(frame: Any, **options: str) -> None:
    given = {"queue": "orders", **options}
    frame.write.format("delayed_queue").options(**given).mode("append").save()


def read(spark: Any, **options: str) -> Any:
    given = {"queue": "orders", **options}
    return spark.read.format("delayed_queue").options(**given).load()


def triple(job: str) -> tuple[int, int, int, bool]:
    found = counts(job)
    return found.created, found.updated, found.ignored, found.is_complete


class TestWriting:
    def test_counts(self, spark: Any, queue: DelayedQueue):
        queue.offer_or_update("k1", {"n": 1}, datetime(2030, 1, 1, tzinfo=UTC))
        frame = messages(spark, 100).selectExpr("*", "timestamp'2030-01-01' AS schedule_at")
        write(frame, job="one")
        assert triple("one") == (99, 0, 1, True)
        write(frame, job="two")
        assert triple("two") == (0, 0, 100, True)
        changed = frame.withColumn("payload", frame.key.substr(2, 1))
        write(changed, job="three", mode="upsert")
        assert triple("three") == (0, 100, 0, True)

    def test_what_django_reads(self, spark: Any, queue: DelayedQueue):
        frame = spark.createDataFrame(
            [("a", '{"b": 1}', timedelta(seconds=-1), {"trace": "x"}), ("z", "1", None, None)],
            "key string, payload string, delay interval day to second, headers map<string,string>",
        )
        write(frame)
        envelope = queue.try_poll()
        assert envelope is not None
        assert (envelope.key, envelope.payload, envelope.headers) == ("a", {"b": 1}, {"trace": "x"})

    @pytest.mark.long
    def test_a_job_that_is_done_is_not_done_again_in_silence(self, spark: Any):
        frame = messages(spark, 4)
        write(frame, job="nightly")
        with pytest.raises(Exception, match=r"JobFinished.*The job 'nightly' is done"):
            write(frame, job="nightly")
        write(frame, job="nightly", onFinishedJob="skip")
        assert triple("nightly") == (4, 0, 0, True)

    @pytest.mark.parametrize("atomic", sample(["false", "true"], "false"))
    def test_tasks_that_die_and_are_repeated(
        self, spark: Any, other: psycopg.Connection[Any], atomic: str
    ):
        """Each partition's first attempt dies after some of the job's chunks were committed."""

        def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            attempt = context.attemptNumber() if context is not None else 0
            for number, batch in enumerate(batches):  # of 30 rows
                if number == 3 and attempt == 0:
                    wait_in_task(lambda: atomic == "true" or counts("j").created >= 50)
                    raise OSError("killed")
                yield batch

        frame = bulky(spark, 200)
        with small_batches(spark):
            write(
                frame.mapInArrow(die_once, frame.schema), job="j", chunk="50", atomic=atomic, **TEXT
            )
        assert triple("j") == (200, 0, 0, True)
        assert len(keys_of(other)) == 200

    @pytest.mark.long
    def test_an_atomic_job_that_fails_offers_nothing(
        self, spark: Any, other: psycopg.Connection[Any]
    ):
        frame = messages(spark, 200).selectExpr(
            "CASE WHEN key = 'k199' THEN '' ELSE key END AS key", "payload"
        )
        with pytest.raises(Exception, match="column key is refused"):
            write(frame, job="j", chunk="10", atomic="true")
        assert keys_of(other) == []
        # Not atomic: chunks before the bad one stay, and the same job id continues from there.
        with pytest.raises(Exception, match="column key is refused"):
            write(frame, job="j", chunk="10")
        before = len(keys_of(other))
        assert 0 < before < 200
        write(messages(spark, 200), job="j", chunk="10")
        assert triple("j") == (200, 0, 0, True)

    @pytest.mark.parametrize(
        ("columns", "options", "said"),
        sample(
            [
                ("key AS kei, payload", {}, "no column 'kei': did you mean 'key'"),
                ("key", {}, "needs the column 'payload'"),
                ("key, 1 AS payload", {}, "'payload' is int; it must be string or binary"),
                ("key, payload", {"queue": ""}, "A queue needs a name"),
                ("key, payload", {"chunks": "1"}, "did you mean 'chunk'"),
                ("key, payload", {"connections": "9999"}, "TooManyConnections.*9999 tasks"),
                ("key, payload", {"dsn": "host=127.0.0.1 port=1"}, "Unreachable.*cannot be r"),
                ("key, payload", {"dsn": "dbname=x password=s"}, "must not hold password"),
            ],
            ("key AS kei, payload", {}, "no column 'kei': did you mean 'key'"),
            ("key, payload", {"connections": "9999"}, "TooManyConnections.*9999 tasks"),
        ),
    )
    def test_what_is_wrong_is_named_before_a_row_is_written(
        self,
        spark: Any,
        other: psycopg.Connection[Any],
        columns: str,
        options: dict[str, str],
        said: str,
    ):
        frame = messages(spark, 4).selectExpr(*columns.split(", "))
        with pytest.raises(Exception, match=f"(?s){said}"):
            write(frame, **options)
        assert keys_of(other) == []

    def test_a_queue_is_not_overwritten(self, spark: Any, queue: DelayedQueue):
        queue.offer_or_update("kept", 1)
        with pytest.raises(Exception, match="would drop the queue"):
            messages(spark, 4).write.format("delayed_queue").option("queue", "orders").mode(
                "overwrite"
            ).save()
        assert queue.contains_message("kept")

    @pytest.mark.long
    def test_tables_that_are_missing(self, spark: Any, dsn: str):
        with pytest.raises(Exception, match=r"SchemaMismatch.*run manage.py migrate"):
            write(messages(spark, 1), dsn=f"{dsn} options='-c search_path=pg_catalog'")

    @pytest.mark.long
    @pytest.mark.slow
    def test_the_database_restarts_in_between(self, spark: Any, tmp_path: Path):
        go = tmp_path / "go"

        def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches):  # of 30 rows
                if number == 3:
                    wait_in_task(go.exists)
                yield batch

        frame = bulky(spark, 200)
        with private_server() as server, small_batches(spark), ThreadPoolExecutor(1) as pool:
            given = {"dsn": server.socket_url, "job": "j", "chunk": "50", **TEXT}
            paused = frame.mapInArrow(pause, frame.schema)
            pool.submit(activate, spark)  # the one thread of the pool
            writing = pool.submit(write, paused, **given)
            wait_until(lambda: writing.done() or counts("j", server.socket_url).created >= 50)
            assert not writing.done(), str(writing.exception())
            crash(server)
            server.start()
            go.touch()
            writing.result(120)
            found = counts("j", server.socket_url)
            assert (found.created, found.ignored, found.is_complete) == (200, 0, True)
            with psycopg.connect(server.socket_url) as connection:
                assert len(keys_of(connection)) == 200


class TestReading:
    @pytest.mark.parametrize("driver", sample(["adbc", "psycopg"], "adbc"))
    def test_all_columns(self, spark: Any, queue: DelayedQueue, driver: str):
        queue.offer_or_update("later", {"a": 1}, datetime(2030, 1, 1, tzinfo=UTC), headers={"h": 1})
        queue.offer_or_update("leased", 2)
        queue.try_poll()
        queue.offer_or_update("due", 3)
        DelayedQueue("other").offer_or_update("x", 4)
        found = {row.key: row for row in read(spark, driver=driver).collect()}
        assert {key: row.state for key, row in found.items()} == {
            "later": "scheduled", "leased": "leased", "due": "due"
        }  # fmt: skip
        row, stored = found["later"], Message.objects.get(key="later")
        assert (row.kind, row.queue, row.payload) == ("orders|json", "orders", '{"a":1}')
        assert row.scheduled_at.astimezone(UTC) == stored.scheduled_at
        assert (row.headers, row.id) == ('{"h": 1}', stored.pk)
        leased = Message.objects.get(key="leased")
        assert (found["leased"].attempts, found["leased"].lock_uuid) == (1, leased.lease_id)
        due = queue.try_poll()  # a read leases no message
        assert due is not None
        assert due.key == "due"

    def test_only_the_columns_of_the_schema(self, spark: Any, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        found = (
            spark.read.format("delayed_queue")
            .schema("queue string, payload binary")
            .option("allQueues", "true")
            .load()
        )
        assert [tuple(row) for row in found.collect()] == [("orders", bytearray(b"1"))]

    @pytest.mark.long
    def test_payloads_that_are_no_text_are_told_of(
        self, spark: Any, other: psycopg.Connection[Any]
    ):
        write(messages(spark, 3))
        other.execute("UPDATE delayed_queue SET payload = '\\xff' WHERE \"pKey\" = 'k1'")
        with pytest.raises(Exception, match="column payload holds bytes that are not UTF-8"):
            read(spark).collect()

    def test_partitions_cover_the_table(self, spark: Any):
        write(messages(spark, 200))
        for partitions in ("1", "7"):
            assert read(spark, numPartitions=partitions).select("key").distinct().count() == 200

    def test_one_snapshot_for_all_tasks(self, spark: Any, other: psycopg.Connection[Any]):
        write(messages(spark, 10))
        with consistent_snapshot() as name:
            other.execute("DELETE FROM delayed_queue")
            for driver in ("adbc", "psycopg"):
                assert read(spark, snapshot=name, driver=driver).count() == 10
            assert read(spark).count() == 0
        with pytest.raises(Exception, match="Is it still held"):
            read(spark, snapshot=name).count()
