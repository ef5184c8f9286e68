"""The offers of a task, with and without faults, on PostgreSQL, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.sql import SQL, Identifier

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.codecs import channel_of
from delayed_queue.exceptions import InvalidMessage, ResourceUnavailable
from delayed_queue.models import Message
from delayed_queue.spark import counts
from delayed_queue.spark.database import APPLICATION, Connection, Link, fetch
from delayed_queue.spark.source.options import Options
from tests.spark.offered import at, close, is_anyone_waiting, letters, triple
from tests.spark.support import (
    NOW,
    is_waiting_for,
    job,
    keys_of,
    of_many,
    offer,
    owned,
    rows,
    rows_of_many,
)
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("queue")


def ours(connection: psycopg.Connection[Any]) -> list[int]:
    """Return our server processes."""
    found = connection.execute(
        """SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = %s""",
        [APPLICATION],
    )
    return [row[0] for row in found]


class TestSameAsDjango:
    """An offer through Spark changes the table as the queue's own offer does."""

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_outcomes_and_rows(self, queue: DelayedQueue, mode: str):
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
        offer(job(now=0, mode=mode), [records])
        close(job(), len(batch))

        wanted = tuple(outcomes.count(each) for each in ("created", "updated", "ignored"))
        assert triple() == wanted
        columns = ("key", "payload", "scheduled_at", "scheduled_at_initially", "lease_id",
                   "attempts", "headers", "due_at", "first_error", "last_error")  # fmt: skip
        ours, theirs = (
            list(Message.objects.filter(kind=each.kind).order_by("key").values_list(*columns))
            for each in (queue, twin)
        )
        assert [plain(row) for row in ours] == [plain(row) for row in theirs]

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_q4_what_is_offered_with_headers_names_its_version(
        self, queue: DelayedQueue, mode: str
    ):
        """By COPY, then by the merge; a new version by another language is thus distinguished."""
        texts = pa.array(['{"a": 1}', None])
        offer(job(mode=mode), [rows(["a", "b"]).append_column("headers", texts)])
        queue.offer_or_update("d", 0)
        others = rows(["c", "d"], "2").append_column("headers", pa.array(['{"a": 1}'] * 2))
        offer(job("again", mode=mode), [others])
        named = {each.key: each for each in Message.objects.exclude(headers=None)}
        assert set(named) == {"a", "c", *(["d"] if mode == "upsert" else [])}
        assert all(each.version_at == each.created_at for each in named.values())

    def test_equal_schedules_come_chunk_after_chunk_and_by_key_within(self, queue: DelayedQueue):
        offer(job(chunk="2"), [rows(["d", "c", "b", "a"])])
        assert [each.key for each in queue.try_poll_many(9)] == ["c", "d", "a", "b"]

    def test_by_the_merge_too(self, queue: DelayedQueue):
        queue.offer_if_not_exists("d", 1)
        offer(job(chunk="2"), [rows(["d", "c", "b", "a"])])
        assert [each.key for each in queue.try_poll_many(9)] == ["c", "a", "b", "d"]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(bytes(each) if isinstance(each, memoryview) else each for each in row)


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

    def test_a_deadlock_is_repeated(self, other: psycopg.Connection[Any]):
        """The other holds "b" and waits for "a", the first row that this one has written."""
        other.execute("SET deadlock_timeout = '10s'")  # so that ours is the victim
        other.execute("BEGIN")
        self.insert(other, "b")
        with ThreadPoolExecutor(1) as pool:
            ours = pool.submit(offer, job(), [rows(letters("ab"))])
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

    def test_a_connection_that_is_cut_is_made_anew(self, other: psycopg.Connection[Any]):
        def cutting() -> Any:
            yield rows(letters("ab"))
            # Sessions of earlier tests end a moment after their close.
            wait_until(lambda: len(ours(other)) == 1)
            other.execute("SELECT pg_terminate_backend(%s)", ours(other))
            yield rows(letters("cd"))

        one = job(chunk="2")
        assert offer(one, cutting()) == 4
        close(one, 4)
        assert (triple(), keys_of(other)) == ((4, 0, 0), letters("abcd"))

    def test_a_chunk_that_is_refused_is_not_sent_and_the_earlier_ones_stay(
        self, other: psycopg.Connection[Any]
    ):
        with pytest.raises(ValueError, match="column key is refused: A key has 1 to 200"):
            offer(job(chunk="2"), [rows(["a", "b", "c", ""])])
        assert keys_of(other) == ["a", "b"]

    def test_the_next_chunk_is_made_ready_while_one_is_written_and_no_more(
        self, other: psycopg.Connection[Any]
    ):
        """A task thus holds two of them, for any number of rows."""
        drawn: list[str] = []

        def one_by_one() -> Iterator[pa.RecordBatch]:
            for key in "abcdef":
                drawn.append(key)
                yield rows([key])

        with ThreadPoolExecutor(1) as pool:
            with other.transaction():
                other.execute("LOCK TABLE delayed_queue")
                offering = pool.submit(offer, job(chunk="1"), one_by_one())
                # The end of a chunk is known only with the row after it.
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
        tries: list[object] = []

        def work(connection: Connection) -> list[Any]:
            tries.append(connection)
            return fetch(connection, "SELECT 1 / 0", {})

        with pytest.raises(ResourceUnavailable, match="division by zero"):
            link.repeat("The division", work)
        assert len(tries) == 1


class TestWaking:
    def test_once_for_a_partition_with_something_due(self, other: psycopg.Connection[Any]):
        other.execute(f"LISTEN {channel_of('orders|json')}")
        offer(job("job", NOW, 0, chunk="2"), [rows(letters("abcdef"))])
        assert len(list(other.notifies(timeout=0.5, stop_after=2))) == 1

    def test_not_for_what_is_far_away(self, other: psycopg.Connection[Any]):
        other.execute(f"LISTEN {channel_of('orders|json')}")
        batch = rows(["a"]).append_column("delay", pa.array([3_600_000]))
        offer(job(), [batch])
        assert list(other.notifies(timeout=0.5, stop_after=1)) == []


class TestManyQueues:
    """Rows that name their queue and group."""

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_new_ones_are_copied_and_the_rest_is_merged(self, mode: str):
        both = {("k", "a|json", "of a"), ("k", "b|json", "of b")}
        one = of_many(mode=mode)
        offer(one, [rows_of_many("b", "a")])
        assert (triple(), owned()) == ((2, 0, 0), both)
        offer(of_many(mode=mode), [rows_of_many("a", "c", payload="2")], partition=1)
        assert owned() == both | {("k", "c|json", "of c")}
        assert triple()[:2] == ((3, 0) if mode == "offer" else (3, 1))

    @pytest.mark.parametrize("mode", ["offer", "upsert"])
    def test_their_expiry_is_copied_and_merged(self, mode: str):
        """Q37: the second offer of "b" has another expiry."""
        early, late = (datetime(2100, 1, day, tzinfo=UTC) for day in (1, 2))
        for end, keys in ((early, ["a", "b"]), (late, ["b", "c"])):
            expiry = pa.array([end] * 2, pa.timestamp("us", "UTC"))
            batch = rows(keys).append_column("expires_at", expiry)
            offer(job(f"until {end:%d}", mode=mode), [batch])
        found = dict(Message.objects.values_list("key", "expires_at"))
        assert found == {"a": early, "b": late if mode == "upsert" else early, "c": late}

    def test_structs_lists_and_maps_are_json(self):
        at = datetime(2031, 1, 1, tzinfo=UTC)
        value = {"id": 7, "of": [{"at": at}], "by": {"a": 1}}
        kinds = pa.struct(
            {
                "id": pa.int64(),
                "of": pa.list_(pa.struct({"at": pa.timestamp("us", "UTC")})),
                "by": pa.map_(pa.string(), pa.int64()),
            }
        )
        payloads = pa.array([value], kinds)
        made = pa.RecordBatch.from_pydict({"key": ["k"], "payload": payloads})
        offer(job(), [made])
        stored = DelayedQueue("orders").read("k")
        assert stored is not None
        assert stored.payload == {
            "id": 7, "of": [{"at": "2031-01-01T00:00:00+00:00"}], "by": {"a": 1}
        }  # fmt: skip
        nothing = pa.RecordBatch.from_pydict({"key": ["k"], "payload": [{"b": b"\xff"}]})
        with pytest.raises(InvalidMessage, match=r"JSON cannot hold, such as bytes. \(key 'k'\)"):
            offer(job("bytes"), [nothing])

    def test_each_of_their_workers_is_woken(self, other: psycopg.Connection[Any]):
        for name in ("a", "b"):
            other.execute(SQL("LISTEN {}").format(Identifier(channel_of(f"{name}|json"))))
        offer(of_many(), [rows_of_many("a", "b")])
        assert len(list(other.notifies(timeout=10, stop_after=2))) == 2
