"""Tasks that are repeated, die after their commit, or have a twin: on PostgreSQL, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, ScheduledMessage, sql
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.models import Message, OfferLedger
from delayed_queue.payloads import channel_of
from delayed_queue.spark import counts
from delayed_queue.spark.connecting import APPLICATION, connect
from delayed_queue.spark.drivers import DriverError
from delayed_queue.spark.ledger import claim_closing, prune_ledger
from delayed_queue.spark.links import Link
from delayed_queue.spark.offering import Job, PartitionOffers
from delayed_queue.spark.options import Options
from tests.processes import wait_until
from tests.spark.support import (
    NOW,
    failing_after,
    is_waiting_for,
    job,
    keys_of,
    offer,
    rows,
    stored,
)

pytestmark = pytest.mark.usefixtures("queue")


def close(given_job: Job, total: int) -> None:
    link = Link(given_job.options)
    link.once("closing", lambda session: claim_closing(session, given_job.key, total))
    link.close()


def triple(name: str = "job") -> tuple[int, int, int]:
    found = counts(name)
    return found.created, found.updated, found.ignored


def ours(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the servers' processes that serve us."""
    found = connection.execute(
        """SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = %s""",
        [APPLICATION],
    )
    return [row[0] for row in found]


def letters(text: str) -> list[str]:
    return list(text)


@pytest.fixture(params=["adbc", "psycopg"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestSameAsDjango:
    """An offer through Spark does to the table what the queue's own offer does."""

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_outcomes_and_rows(self, queue: DelayedQueue, driver: str, mode: str):
        twin = DelayedQueue("twin")
        for each in (queue, twin):
            each.offer_batch([ScheduledMessage(key, 1) for key in ("b", "c", "leased")])
            Message.objects.filter(kind=each.kind).update(
                scheduled_at=at(0), scheduled_at_initially=at(0), first_error="e", headers={"a": 1}
            )
            Message.objects.filter(kind=each.kind, key="leased").update(
                lease_id="x", attempts=3, due_at=at(0)
            )
        batch = [("a", "1"), ("b", "1"), ("c", "2"), ("leased", "3"), ("a", "2"), ("a", "2")]
        outcomes = [
            str(outcome)
            for outcome in twin.offer_batch(
                [
                    ScheduledMessage(key, int(payload), at(0), can_update=mode == "upsert")
                    for key, payload in batch
                ]
            )
        ]
        records = rows([key for key, _ in batch])
        records = records.set_column(1, "payload", pa.array([payload for _, payload in batch]))
        offer(job(now=0, mode=mode, driver=driver), [records])
        close(job(), len(batch))

        wanted = tuple(outcomes.count(each) for each in ("created", "updated", "ignored"))
        assert triple() == wanted
        columns = ("key", "payload", "scheduled_at", "scheduled_at_initially", "lease_id",
                   "attempts", "headers", "due_at", "first_error", "last_error")  # fmt: skip
        ours, theirs = (
            list(Message.objects.filter(kind=each.kind).order_by("id").values_list(*columns))
            for each in (queue, twin)
        )
        assert [plain(row) for row in ours] == [plain(row) for row in theirs]

    def test_equal_schedules_are_delivered_as_they_came(self, queue: DelayedQueue, driver: str):
        offer(job(driver=driver), [rows(["c", "a", "b"])])
        assert [each.key for each in queue.try_poll_many(9)] == ["c", "a", "b"]

    def test_by_the_merge_too(self, queue: DelayedQueue, driver: str):
        queue.offer_if_not_exists("a", 1)
        offer(job(driver=driver), [rows(["c", "a", "b"])])
        assert [each.key for each in queue.try_poll_many(9)] == ["c", "b", "a"]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(each) if isinstance(each, memoryview) else each for each in row)


def at(milliseconds: int) -> Any:
    from delayed_queue.messages import from_milliseconds

    return from_milliseconds(milliseconds)


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
        """The reason for the ledger: by the key alone a repetition would deliver it twice."""
        one = job(chunk="2")
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        assert queue.try_poll_many(9).acknowledge() == 2
        offer(one, [rows(letters("abcd"))])
        close(one, 4)
        assert (triple(), keys_of(other)) == ((4, 0, 0), letters("cd"))

    def test_write_is_called_twice_for_one_partition(self, other: psycopg.Connection[Any]):
        """A speculative twin that ends later."""
        one = job(chunk="2", mode="upsert")
        for _ in range(2):
            offer(one, [rows(letters("abcab"))])
        close(one, 5)
        # Of five rows three were new, and the second of "a" and of "b" brought nothing new.
        assert (triple(), keys_of(other)) == ((3, 0, 2), letters("abc"))

    def test_an_attempt_that_brings_other_rows_loses_none(self, other: psycopg.Connection[Any]):
        """A ledger that skipped by number alone would take them for the old ones."""
        one = job(chunk="2")
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        offer(one, [rows(letters("abxy"))])
        offer(one, [rows(letters("uvxy"))])
        assert set(keys_of(other)) >= set("abuvxy")
        assert counts("job").created == len(keys_of(other))

    def test_another_order_counts_once_too(self):
        one = job(chunk="2")
        with pytest.raises(OSError, match="killed"):
            offer(one, failing_after([rows(letters("abcd"))]))
        offer(one, [rows(letters("dcba"))])
        close(one, 4)
        assert triple() == (4, 0, 0)

    def test_partitions_with_the_same_rows_are_told_apart(self):
        one = job()
        for partition in range(3):
            offer(one, [rows(letters("ab"))], partition)
        close(one, 6)
        assert triple() == (2, 0, 4)

    def test_a_closed_job_takes_no_more(self, other: psycopg.Connection[Any]):
        """A task that Spark gave up on lives on, and comes when all is over."""
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
            close(one, 2)
            yield rows(["late"])

        offer(one, closing())
        # The last chunk is offered when the one behind it comes, or the end.
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
        holder.fetch(sql.CLAIM_CHUNK, claim)
        with ThreadPoolExecutor(1) as pool:
            twin = pool.submit(offer, one, [rows(["a"])])
            wait_until(lambda: is_anyone_waiting(other))
            holder.commit() if commit else holder.rollback()
            assert twin.result(20) == 1
        holder.close()


def a_claim(one: Job) -> dict[str, Any]:
    """The claim that a task makes for one row of key "a"."""
    from delayed_queue.spark.offers import offers_of

    offers = offers_of(pa.Table.from_batches([rows(["a"])]), "json")
    return PartitionOffers(one, 0)._claim_of(0, offers)


def is_anyone_waiting(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    return bool(found and found[0])


class TestTrouble:
    def test_two_jobs_with_the_same_keys_cannot_deadlock(self, other: psycopg.Connection[Any]):
        keys = [f"k{each:04}" for each in range(2000)]
        barrier = threading.Barrier(2)

        def run(name: str, order: int) -> None:
            barrier.wait()
            offer(job(name, mode="upsert"), [rows(keys[::order], (name == "one" and "1") or "2")])

        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(run, "one", 1), pool.submit(run, "two", -1)]:
                each.result(60)
        assert len(keys_of(other)) == 2000
        assert counts("one").created + counts("two").created == 2000

    @pytest.mark.parametrize("driver", ["adbc", "psycopg"])
    def test_a_deadlock_is_repeated(self, other: psycopg.Connection[Any], driver: str):
        """The other holds "b" and wants "a", of which this one has written the first."""
        other.execute("SET deadlock_timeout = '10s'")  # so that ours is the victim
        other.execute("BEGIN")
        self.insert(other, "b")
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(offer, job(driver=driver), [rows(letters("ab"))])
            with psycopg.connect(other.info.dsn, autocommit=True) as watcher:
                wait_until(lambda: is_anyone_waiting(watcher))
            self.insert(other, "a")
            other.execute("COMMIT")
            assert ours.result(30) == 2
        close(job(), 2)
        assert triple() == (0, 0, 2)

    @staticmethod
    def insert(connection: psycopg.Connection[Any], key: str) -> None:
        connection.execute(
            'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
            '"scheduledAtInitially", "createdAt") VALUES (%s, %s, %s, 0, 0, 0)',
            [key, "orders|json", b"1"],
        )

    @pytest.mark.parametrize("driver", ["adbc", "psycopg"])
    def test_a_connection_that_is_cut_is_made_anew(
        self, other: psycopg.Connection[Any], driver: str
    ):
        def cutting() -> Any:
            yield rows(letters("ab"))
            # Those of earlier tests end a moment after they were closed.
            wait_until(lambda: len(ours(other)) == 1)
            other.execute("SELECT pg_terminate_backend(%s)", ours(other))
            yield rows(letters("cd"))

        one = job(chunk="2", driver=driver)
        assert offer(one, cutting()) == 4
        close(one, 4)
        assert (triple(), keys_of(other)) == ((4, 0, 0), letters("abcd"))

    def test_a_chunk_that_is_refused_is_not_sent_and_the_earlier_ones_stay(
        self, other: psycopg.Connection[Any]
    ):
        with pytest.raises(ValueError, match="column key is empty"):
            offer(job(chunk="2"), [rows(["a", "b", "c", ""])])
        assert keys_of(other) == ["a", "b"]

    def test_the_next_chunk_is_made_ready_while_one_is_written_and_no_more(
        self, other: psycopg.Connection[Any]
    ):
        """So a task holds two of them, however many there are."""
        drawn: list[str] = []

        def one_by_one() -> Iterator[pa.RecordBatch]:
            for key in "abcdef":
                drawn.append(key)
                yield rows([key])

        with ThreadPoolExecutor(1) as pool:
            with other.transaction():
                other.execute("LOCK TABLE delayed_queue")
                offering = pool.submit(offer, job(chunk="1"), one_by_one())
                # A chunk is known to end when what follows it has come.
                wait_until(lambda: len(drawn) == 3 and is_waiting_for(other))
                assert not offering.done()
                assert drawn == ["a", "b", "c"]
            assert offering.result(60) == 6
        assert keys_of(other) == list("abcdef")

    def test_a_chunk_that_fails_ends_the_task_before_the_next_is_written(
        self, other: psycopg.Connection[Any]
    ):
        other.execute("ALTER TABLE delayed_queue ADD CONSTRAINT no_b CHECK (\"pKey\" <> 'b')")
        try:
            with pytest.raises(ResourceUnavailable, match="no_b"):
                offer(job(chunk="1"), [rows([key]) for key in "abc"])
        finally:
            other.execute("ALTER TABLE delayed_queue DROP CONSTRAINT no_b")
        assert keys_of(other) == ["a"]

    def test_the_columns_own_limits_are_errors_not_retries(self, other: psycopg.Connection[Any]):
        link = Link(Options())
        with pytest.raises(DriverError, match="division by zero"):
            link._once(lambda session: session.fetch("SELECT 1 / 0", {}))


class TestWaking:
    @pytest.mark.parametrize(
        ("options", "heard"),
        [({}, 1), ({"notify": "false"}, 0)],
    )
    def test_once_for_a_partition_with_something_due(
        self, other: psycopg.Connection[Any], options: dict[str, str], heard: int
    ):
        other.execute(f"LISTEN {channel_of('orders|json')}")
        offer(job("job", NOW, 0, chunk="2", **options), [rows(letters("abcdef"))])
        assert len(list(other.notifies(timeout=0.5, stop_after=2))) == heard

    def test_not_for_what_is_far_away(self, other: psycopg.Connection[Any]):
        other.execute(f"LISTEN {channel_of('orders|json')}")
        batch = rows(["a"]).append_column("delay", pa.array([3_600_000]))
        offer(job(), [batch])
        assert list(other.notifies(timeout=0.5, stop_after=1)) == []


def test_the_ledger_is_pruned_by_age():
    offer(job("new"), [rows(["a"])])
    offer(job("old"), [rows(["b"])])
    OfferLedger.objects.filter(job="old").update(recorded_at=at(NOW))
    link = Link(Options())
    assert link.once("prune", lambda session: prune_ledger(session, 30)) == 1
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
    """Whatever dies when, the last attempts' rows are there, and the counts are of the input."""
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
