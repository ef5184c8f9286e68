"""Spark tasks that repeat, die after their commit or run twice, without Spark (P2)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from delayed_queue import DelayedQueue
from delayed_queue.exceptions import InvalidConfiguration, JobFinished
from delayed_queue.models import Message
from delayed_queue.spark import counts
from delayed_queue.spark.database import Link, connect, fetch
from delayed_queue.spark.models import OfferLedger
from delayed_queue.spark.settings import VARIABLE
from delayed_queue.spark.source.ledger import OPENED, prune_ledger
from delayed_queue.spark.source.offering import Job, PartitionOffers
from delayed_queue.spark.source.options import Options, parse_options
from delayed_queue.spark.source.writer import OfferWriter
from delayed_queue.spark.store.offering import CLAIM_CHUNK
from tests.spark.offered import at, close, is_anyone_waiting, letters, triple
from tests.spark.support import NOW, failing_after, job, keys_of, offer, rows, stored
from tests.support.aiming import COMMIT, Stage
from tests.support.processes import wait_until
from tests.support.proxies import proxied

pytestmark = pytest.mark.usefixtures("queue")


class TestRepetitions:
    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_a_task_that_died_after_a_commit_is_repeated(
        self, other: psycopg.Connection[Any], mode: str
    ):
        one = job(chunk="2", mode=mode)
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        assert offer(one, [rows(letters("abcdef"))]) == 6
        close(one, 6)
        assert (triple(), keys_of(other)) == ((6, 0, 0), letters("abcdef"))

    def test_what_was_consumed_meanwhile_is_not_offered_again(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ):
        """The reason for the ledger: with the key alone a repetition would deliver it twice."""
        one = job(chunk="2")
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        assert queue.try_poll_many(9).acknowledge() == 2
        offer(one, [rows(letters("abcd"))])
        close(one, 4)
        assert (triple(), keys_of(other)) == ((4, 0, 0), letters("cd"))

    def test_what_was_consumed_before_the_answer_to_a_commit_was_lost_is_not_offered_again(
        self, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
    ):
        """The ledger's claim commits with the rows, or waits for a lost commit to end."""
        with proxied() as proxy, ThreadPoolExecutor(1) as pool:
            monkeypatch.setenv(VARIABLE, proxy.url)
            aim = proxy.aim_at(COMMIT, Stage.COMMITTED, after="^COPY")
            offering = pool.submit(offer, job(), [rows(letters("ab"))])
            aim.wait()
            other.execute("DELETE FROM delayed_queue")
            proxy.cut_aimed()
            assert offering.result(20) == 2
            close(job(), 2)
            assert (triple(), keys_of(other)) == ((2, 0, 0), [])

    def test_write_is_called_twice_for_one_partition(self, other: psycopg.Connection[Any]):
        """A speculative twin that ends later."""
        one = job(chunk="2", mode="upsert")
        for _ in range(2):
            offer(one, [rows(letters("abcab"))])
        close(one, 5)
        # Three of five rows were new; the second "a" and the second "b" changed nothing.
        assert (triple(), keys_of(other)) == ((3, 0, 2), letters("abc"))

    def test_an_attempt_that_brings_other_rows_loses_none(self, other: psycopg.Connection[Any]):
        """A ledger that compared numbers alone would take them for the old ones."""
        one = job(chunk="2")
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        offer(one, [rows(letters("abxy"))])
        offer(one, [rows(letters("uvxy"))])
        assert set(keys_of(other)) >= set("abuvxy")
        # Six messages of four rows: the counts do not exceed the input.
        assert (len(keys_of(other)), counts("job").offered) == (6, 4)

    def test_partitions_with_the_same_rows_are_told_apart(self):
        one = job()
        for partition in range(3):
            offer(one, [rows(letters("ab"))], partition)
        close(one, 6)
        assert triple() == (2, 0, 4)

    def test_a_closed_job_takes_no_more(self, other: psycopg.Connection[Any]):
        """An abandoned Spark task survives, and writes after the job has closed."""
        one = job()
        offer(one, [rows(["a"])])
        close(one, 1)
        assert offer(one, [rows(["late"])], 7) == 1
        assert (triple(), keys_of(other)) == ((1, 0, 0), ["a"])

    def test_a_job_that_is_closed_meanwhile_takes_no_more(self, other: psycopg.Connection[Any]):
        one = job(chunk="1")

        def closing() -> Iterator[pa.RecordBatch]:
            yield rows(["a"])
            yield rows(["b"])
            # The first chunk is still being written, and closing must not come before it.
            wait_until(lambda: keys_of(other) == ["a"])
            close(one, 2)
            yield rows(["late"])

        offer(one, closing())
        # The last chunk is offered when the next one arrives, or at the end.
        assert keys_of(other) == ["a"]

    def test_until_it_is_closed_the_counts_are_of_what_was_offered(self):
        offer(job(chunk="2"), [rows(letters("aab"))])
        assert counts("job").is_complete is False
        assert triple() == (2, 0, 1)
        assert counts("unknown").offered == 0

    def test_batches_of_a_stream_add_up(self):
        for batch in range(2):
            offer(job(batch=batch), [rows(letters("ab"))])
            close(job(batch=batch), 2)
        assert triple() == (2, 0, 2)


class TestTwinsAtTheSameTime:
    def test_the_second_waits_for_the_first_and_then_does_nothing(
        self, other: psycopg.Connection[Any]
    ):
        self.hold_and_release(other, commit=True)
        assert keys_of(other) == []  # the holder only claimed it
        assert OfferLedger.objects.count() == 1

    def test_the_second_does_it_when_the_first_fails(self, other: psycopg.Connection[Any]):
        self.hold_and_release(other, commit=False)
        assert keys_of(other) == ["a"]

    def hold_and_release(self, other: psycopg.Connection[Any], *, commit: bool) -> None:
        one = job()
        claim = a_claim(one)
        holder = connect(one.options)
        fetch(holder, CLAIM_CHUNK, claim)
        with ThreadPoolExecutor(1) as pool:
            twin = pool.submit(offer, one, [rows(["a"])])
            wait_until(lambda: is_anyone_waiting(other))
            holder.commit() if commit else holder.rollback()
            assert twin.result(20) == 1
        holder.close()


class TestJobsThatGoOn:
    """P2: the same ``job`` again, after a run that has failed half-way."""

    def writer(self, **options: str) -> OfferWriter:
        given = parse_options({"queue": "orders", "job": "job", "chunk": "2", **options})
        schema = StructType().add("key", "string").add("payload", "string")
        return OfferWriter(given, schema, overwrite=False)

    def failed(self, keys: str, **options: str) -> None:
        with pytest.raises(OSError, match="killed"):
            self.writer(**options).write(failing_after([rows(letters(keys))]))

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_in_another_order_counts_are_of_distinct_rows(
        self, other: psycopg.Connection[Any], mode: str
    ):
        """A schedule that is left out is the job's first start, so no row differs."""
        self.failed("abcd", mode=mode)
        OfferLedger.objects.filter(partition=OPENED).update(recorded_at=at(NOW))
        Message.objects.update(scheduled_at=at(NOW), scheduled_at_initially=at(NOW))
        again = self.writer(mode=mode)
        again.commit([again.write(iter([rows(letters("fdbeca"))]))])
        assert triple() == (6, 0, 0)
        assert set(keys_of(other)) == set("abcdef")
        assert {each.scheduled_at for each in Message.objects.all()} == {at(NOW)}

    def test_a_chunk_in_another_order_is_the_same_chunk(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ):
        """Messages handled since are therefore not offered again."""
        self.failed("abcd")
        assert queue.try_poll_many(9).acknowledge() == 2
        again = self.writer()
        again.commit([again.write(iter([rows(letters("badc"))]))])
        assert (triple(), keys_of(other)) == ((4, 0, 0), letters("cd"))

    def test_rows_that_differ_each_time_fail_the_job_and_are_not_counted(self):
        """As with keys by uuid() in a repeated task."""
        self.failed("abcd")
        again = self.writer()
        written = again.write(iter([rows(letters("uvwx"))]))
        with pytest.raises(InvalidConfiguration, match=r"given 4 rows and has created .* uuid\(\)"):
            again.commit([written])
        assert triple() == (4, 0, 0)
        with pytest.raises(JobFinished):
            self.writer()


def a_claim(one: Job) -> dict[str, Any]:
    """The claim that a task makes for one row of key "a"."""
    from delayed_queue.spark.source.rules import offers_of

    offers = offers_of(pa.Table.from_batches([rows(["a"])]), "json")
    return PartitionOffers(one, 0).claim_of(0, offers)


def test_the_ledger_is_pruned_by_age():
    offer(job("new"), [rows(["a"])])
    offer(job("old"), [rows(["b"])])
    OfferLedger.objects.filter(job="old").update(recorded_at=at(NOW))
    link = Link(Options())
    assert link.once("prune", prune_ledger) == 1
    link.close()
    assert list(OfferLedger.objects.values_list("job", flat=True)) == ["new"]


attempts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=4)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=attempts, deaths=st.lists(st.integers(0, 3), max_size=4), size=st.integers(1, 3))
def test_any_sequence_of_deaths_adds_up(
    other: psycopg.Connection[Any], content: list[list[str]], deaths: list[int], size: int
):
    """After any deaths the rows of the last attempts are stored and counted once."""
    other.execute("TRUNCATE delayed_queue, delayed_queue_offer_ledger")
    one = job(chunk=str(size), mode="upsert")
    for partition, keys in enumerate(content):
        for death in deaths:
            with pytest.raises(OSError, match="killed"):
                offer(one, failing_after([rows(keys[:death])]), partition)
        offer(one, [rows(keys)], partition)
    total = sum(map(len, content))
    close(one, total)
    wanted = {key for keys in content for key in keys}
    assert set(keys_of(other)) == wanted
    assert triple() == (len(wanted), 0, total - len(wanted))
    assert len(stored(other)) == len(wanted)
