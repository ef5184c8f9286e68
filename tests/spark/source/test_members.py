"""Members of batches that Spark offers and removes, on PostgreSQL, without a JVM (B8, B10)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from django.utils import timezone
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import BatchClosed
from delayed_queue.models import Message, StoredBatch
from delayed_queue.queue.batches import MessageBatch
from delayed_queue.spark.database import Link, steady
from delayed_queue.spark.pipeline.handling import Calls, Handling, Place, Settler
from delayed_queue.spark.settings import VARIABLE
from delayed_queue.spark.source.ledger import JobKey
from delayed_queue.spark.source.offering import Job
from delayed_queue.spark.source.options import parse_options
from delayed_queue.spark.source.stream import LeasingReader
from delayed_queue.spark.source.writer import merge_staged, stage_all
from tests.spark.leasing import read, reader
from tests.spark.offered import close, is_anyone_waiting, letters, triple
from tests.spark.pipelines import TARGETS
from tests.spark.support import NOW, job, keys_of, offer, rows
from tests.support.aiming import COMMIT, Stage
from tests.support.answers import polled
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.processes import wait_until
from tests.support.proxies import proxied

THEN = ScheduledMessage("then", 1)


@pytest.fixture
def reports(queue: DelayedQueue) -> DelayedQueue:
    return DelayedQueue("reports")


@pytest.fixture
def batch(queue: DelayedQueue, reports: DelayedQueue) -> MessageBatch:
    """An open batch."""
    return opened(queue, reports)


def opened(queue: DelayedQueue, reports: DelayedQueue) -> MessageBatch:
    found = queue.batch(THEN, then_queue=reports)
    assert found.id > 0
    return found


def then_counts(reports: DelayedQueue) -> dict[str, int]:
    """Return the counts with which ``then`` was offered, but zeros and the id."""
    stored = reports.read("then")
    assert stored is not None, "then was not offered"
    return {name: number for name, number in stored.headers["batch"].items() if name != "id"}


def counted(**numbers: int) -> dict[str, int]:
    zeros = dict.fromkeys(("done", "dead", "dropped", "expired"), 0)
    return {"total": sum(numbers.values()), **zeros, **numbers}


def members(batch: MessageBatch) -> set[str]:
    return set(Message.objects.filter(batch_id=batch.id).values_list("key", flat=True))


def joining(batch: int, name: str = "job", **options: str) -> Job:
    """A job whose rows become members of the batch."""
    given = {"queue": "orders", "batch": str(batch), **options}
    return Job(JobKey(name), NOW, parse_options(given))


def write(one: Job, batches: list[pa.RecordBatch]) -> None:
    """Do the work of a task, and of the driver if the job is atomic."""
    if not one.options.atomic:
        offer(one, batches)
        return
    staged = [stage_all(one, 0, iter(batches))]
    with closing(Link(one.options)) as link:
        link.once("merge", lambda session: merge_staged(session, one, staged))


class TestOffering:
    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    @pytest.mark.parametrize("first", ["", "a"])
    def test_b8_written_rows_are_members_and_ignored_ones_are_not(
        self, queue: DelayedQueue, batch: MessageBatch, mode: str, first: str
    ):
        """By COPY, and by a merge where a key exists."""
        offer(job("before"), [rows(first)] if first else [])
        one = joining(batch.id, mode=mode)
        offer(one, [rows(letters("abc"))])
        assert members(batch) == {"a", "b", "c"} - set(first)

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_b8_an_atomic_job_joins_as_a_whole(self, batch: MessageBatch, mode: str):
        offer(job("before"), [rows("a")])
        one = joining(batch.id, mode=mode, atomic="true")
        write(one, [rows(letters("abb"))])
        assert members(batch) == {"b"}

    def test_b8_a_job_that_is_written_twice_adds_no_member_twice(
        self, queue: DelayedQueue, reports: DelayedQueue, batch: MessageBatch
    ):
        one = joining(batch.id, chunk="2")
        offer(one, [rows(letters("abcd"))])
        assert queue.try_poll_many(10).acknowledge() == 4
        offer(one, [rows(letters("abcd"))])
        assert members(batch) == set()
        batch.close()
        offer(one, [rows(letters("abcd"))])  # closed meanwhile: nothing is missing
        close(one, 4)
        assert (triple(), then_counts(reports)) == ((4, 0, 0), counted(done=4))

    @pytest.mark.parametrize("atomic", ["false", "true"])
    def test_b13_a_closed_or_unknown_batch_is_named_and_nothing_is_stored(
        self, batch: MessageBatch, atomic: str, other: psycopg.Connection[Any]
    ):
        offer(joining(batch.id, "before"), [rows("a")])
        batch.close()
        for number in (batch.id, batch.id + 1_000):
            one = joining(number, f"job-{number}", mode="upsert", atomic=atomic)
            with pytest.raises(BatchClosed, match=f"The batch {number} is closed or unknown"):
                write(one, [rows(letters("ab"), "2")])
            assert triple(one.key.job) == (0, 0, 0)
        assert keys_of(other) == ["a"]

    @pytest.mark.parametrize("atomic", ["false", "true"])
    def test_b10_an_updated_message_of_another_batch_leaves_it_as_dropped(
        self, queue: DelayedQueue, reports: DelayedQueue, batch: MessageBatch, atomic: str
    ):
        batch.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        batch.close()
        after = opened(queue, DelayedQueue("later"))
        one = joining(after.id, mode="upsert", atomic=atomic)
        batches = [rows(letters("bc"), "1"), rows("a", "2")]
        write(one, batches)
        assert members(after) == {"a", "b", "c"}
        assert then_counts(reports) == counted(dropped=2)

    def test_b9_close_waits_for_a_chunk(
        self, reports: DelayedQueue, batch: MessageBatch, other: psycopg.Connection[Any],
        admin: psycopg.Connection[Any],
    ):  # fmt: skip
        """The chunk holds the batch, and waits for another session that offers its key."""
        insert = (
            'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
            "\"scheduledAtInitially\", \"createdAt\") VALUES ('a', 'orders|json', '1', 0, 0, 0)"
        )
        with ThreadPoolExecutor(1) as pool:
            other.execute("BEGIN")
            other.execute(insert)
            offering = pool.submit(offer, joining(batch.id), [rows("a")])
            wait_until(lambda: is_anyone_waiting(admin))
            with calling(batch.close) as ending:
                wait_until_blocked(admin, ending)
                other.execute("ROLLBACK")
                assert offering.result(30) == 1
                assert ending.answer()
        assert not reports.contains_message("then")
        assert members(batch) == {"a"}

    def test_b7_a_lost_answer_to_the_commit_of_a_chunk_counts_once(
        self, queue: DelayedQueue, reports: DelayedQueue, batch: MessageBatch,
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        with proxied() as proxy, ThreadPoolExecutor(1) as pool:
            monkeypatch.setenv(VARIABLE, proxy.url)
            aim = proxy.aim_at(COMMIT, Stage.COMMITTED, after="^COPY")
            offering = pool.submit(offer, joining(batch.id), [rows(letters("ab"))])
            aim.wait()
            assert queue.try_poll_many(10).acknowledge() == 2
            proxy.cut_aimed()
            offering.result(30)
        batch.close()
        assert then_counts(reports) == counted(done=2)


class TestStreams:
    def leased(self, source: LeasingReader) -> tuple[Any, Any]:
        start = source.initialOffset()
        return start, source.latestOffset(start, ReadMaxRows(100))

    def test_b10_members_are_done_or_expired_when_the_batch_is_acknowledged(
        self, queue: DelayedQueue, reports: DelayedQueue, source: LeasingReader
    ):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_batch([ScheduledMessage(key, 1) for key in "abc"])
        queue.offer_or_update("no member", 1)
        Message.objects.filter(key="c").update(expires_at=timezone.now())
        start, end = self.leased(source)
        assert read(source, start, end) == ["a", "b", "no member"]
        assert not reports.contains_message("then")
        for _ in range(2):
            source.commit(end)
            assert then_counts(reports) == counted(done=2, expired=1)
        assert set(Message.objects.values_list("kind", flat=True)) == {reports.kind}

    def test_b7_the_stream_and_a_worker_finish_the_last_two_members_at_once(
        self, queue: DelayedQueue, reports: DelayedQueue, source: LeasingReader
    ):
        for turn in range(10):
            with queue.batch(THEN, then_queue=reports) as batch:
                batch.offer_batch([ScheduledMessage("a", turn), ScheduledMessage("b", turn)])
            envelope = polled(queue)
            _, end = self.leased(source)
            calls: list[Callable[[], Any]] = [envelope.acknowledge, partial(source.commit, end)]
            together(calls)
            assert then_counts(reports) == counted(done=2)
            assert reports.drop_message("then")

    def test_b7_an_acknowledgement_without_an_answer_counts_once(
        self, queue: DelayedQueue, reports: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        with proxied() as proxy, ThreadPoolExecutor(1) as pool:
            monkeypatch.setenv(VARIABLE, proxy.url)
            source = reader(prefetch="false")
            _, end = self.leased(source)
            aim = proxy.aim_at(COMMIT, Stage.COMMITTED, after="DELETE FROM delayed_queue")
            committing = pool.submit(source.commit, end)
            aim.wait()
            assert reports.drop_message("then")
            proxy.cut_aimed()
            committing.result(30)
            source.stop()
        assert not reports.contains_message("then")
        assert not StoredBatch.objects.exists()


class TestHandlers:
    def handle(self, queue: DelayedQueue, expiring: str = "") -> None:
        """Lease everything, and handle it as a task does."""
        source = reader()
        start = source.initialOffset()
        end = source.latestOffset(start, ReadMaxRows(100))
        ids = list(Message.objects.order_by("id").values_list("id", flat=True))
        source.partitions(start, end)
        Message.objects.filter(key=expiring).update(expires_at=timezone.now())
        handling = Handling(f"{TARGETS}:answering", "orders")
        with steady() as connection, Calls(handling) as calls:
            place = Place(JobKey("query", 3))
            Settler(connection, handling, queue.kind, place, calls).handle(end["lock"], ids)
        source.commit(end)
        source.stop()

    def test_b10_each_outcome_counts_in_the_transaction_that_removes_the_message(
        self, queue: DelayedQueue, reports: DelayedQueue
    ):
        offers = {"done": 1, "bad": "reject", "late": 1}
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_batch([ScheduledMessage(*each) for each in offers.items()])
        queue.offer_or_update("no member", 1)
        self.handle(queue, expiring="late")
        assert then_counts(reports) == counted(done=1, dead=1, expired=1)

    def test_b10_a_message_to_be_retried_stays_a_member(
        self, queue: DelayedQueue, reports: DelayedQueue
    ):
        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_or_update("a", "fail")
            batch.offer_or_update("b", "snooze")
        self.handle(queue)
        assert members(batch) == {"a", "b"}
        assert not reports.contains_message("then")

    def test_b10_envelopes_settle_by_themselves(self, queue: DelayedQueue, reports: DelayedQueue):
        from delayed_queue.spark.pipeline.handling import ExecutorLeases

        with queue.batch(THEN, then_queue=reports) as batch:
            batch.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        with steady() as connection:
            leases = ExecutorLeases(connection)
            first, second = polled(queue), polled(queue)
            assert leases.acknowledge(first)
            assert leases.reject(second, "bad")
            assert not leases.acknowledge(first)
        assert then_counts(reports) == counted(done=1, dead=1)
