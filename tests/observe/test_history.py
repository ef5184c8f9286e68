"""Samples: a worker's counts once a minute, and their queries (O1)."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
from django.db import connection, connections

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Sample
from delayed_queue.observe import store
from delayed_queue.observe.history import MAX_COUNTED, Deploy, Sampler, Tally, quantile, read
from delayed_queue.observe.store import SAMPLES_BY_DAY, CountsRow, DepthRow, Window
from delayed_queue.observe.workers import ALIVE
from tests.support.concurrency import calling, raw_connection
from tests.support.factories import DeadLetterFactory, MessageFactory
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE_MS: Final = 60_000
NOW: Final = 1_700_000_040_000
# A sample at NOW covers the minute before.
MINUTE: Final = (NOW - 30_000) // MINUTE_MS
DAYS_MADE: Final = """
SELECT inhrelid::regclass::text FROM pg_inherits
WHERE inhparent = 'delayed_queue_sample'::regclass AND inhrelid::regclass::text !~ 'rest'
"""


def tally(kind: str = "orders|json", done: int = 3) -> Tally:
    made = Tally(kind)
    made.done, made.failed, made.died = done, 2, 1
    made.note_lateness([5] * done)
    made.note_runs([0.3] * done)
    return made


def sampler() -> Sampler:
    return Sampler("default", ALIVE)


def sample(kind: str = "orders|json") -> Sample:
    return Sample.objects.get(kind=kind)


def at_once(*calls: Callable[[], Any]) -> None:
    """Start all calls at one moment, each in its own thread."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> None:
        try:
            barrier.wait(20)
            call()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(each,)) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)


class TestWriting:
    def test_a_minute_has_what_workers_did_and_how_full_the_queue_is(self) -> None:
        MessageFactory.create_batch(2, kind="orders|json", scheduled_at=0)
        DeadLetterFactory.create(kind="orders|json")
        sampler().look([tally()])
        row = sample()
        assert (row.done, row.failed, row.died) == (3, 2, 1)
        assert (row.due, row.scheduled, row.leased, row.dead) == (2, 0, 0, 1)
        assert (row.late or 0) > 1_000_000
        assert row.times == [(3 << 25) + 3, ((32 + 9) << 25) + 3]
        assert Sample.objects.filter(kind="").count() == 1

    def test_nothing_is_told_twice(self) -> None:
        mine, counted = sampler(), tally()
        mine.look([counted])
        mine.look([counted], is_last=True)
        counted.done += 4
        mine.look([counted], is_last=True)
        assert sum(Sample.objects.values_list("done", flat=True)) == 7

    def test_a_beat_within_the_minute_writes_nothing(self) -> None:
        mine, counted = sampler(), tally()
        mine.look([counted])
        counted.done += 4
        mine.look([counted])
        assert sample().done == 3

    def test_what_a_queue_did_before_it_was_let_go_is_told(self) -> None:
        mine, counted = sampler(), tally(done=0)
        mine.look([counted])
        counted.done += 4
        mine.look([], is_last=True)
        assert sum(Sample.objects.values_list("done", flat=True)) == 4
        counted.done += 4
        mine.look([], is_last=True)
        assert sum(Sample.objects.values_list("done", flat=True)) == 4

    def test_workers_add_up_and_one_of_them_measures(self) -> None:
        store.add_counts([CountsRow("a|json", 1, 2, 3, "{67108865,1073741825}")], now=NOW)
        store.add_counts([CountsRow("a|json", 10, 20, 30, "{67108866,1107296257}")], now=NOW + 5000)
        row = sample("a|json")
        assert (row.minute, row.done, row.failed, row.died) == (MINUTE, 11, 22, 33)
        assert row.times == [67108867, 1073741825, 1107296257]
        assert store.take_minute(1, now=NOW)[1] == MINUTE
        assert store.take_minute(1, now=NOW + 20_000)[1] is None
        assert store.take_minute(1, now=NOW + MINUTE_MS)[1] == MINUTE + 1

    def test_a_count_that_is_too_large_stays_what_it_can_be(self) -> None:
        most = 2**25 - 1
        for _ in range(2):
            store.add_counts([CountsRow("a|json", 0, 0, 0, f"{{{(5 << 25) + most}}}")], now=NOW)
        assert sample("a|json").times == [(5 << 25) + most]

    def test_thousands_of_queues_make_as_many_rows_as_are_busiest(self) -> None:
        tallies = [tally(f"tenant-{each}|json", done=each) for each in range(2 * MAX_COUNTED)]
        sampler().look(tallies)
        kinds = set(Sample.objects.exclude(kind="").values_list("kind", flat=True))
        assert kinds == {f"tenant-{each}|json" for each in range(MAX_COUNTED, 2 * MAX_COUNTED)}

    def test_without_a_retention_none_are_taken(self, settings: Any) -> None:
        settings.DELAYED_QUEUE = {"SAMPLE_RETENTION": None}
        sampler().look([tally()])
        assert not Sample.objects.exists()

    def test_a_sample_takes_two_hundred_bytes_at_most(self) -> None:
        """For a busy queue: lateness and run times that spread over three orders of magnitude."""
        chance, counted = random.Random(1), Tally("notifications-by-email|json")
        counted.done, counted.failed, counted.died = 600_000, 5000, 10
        spread = [chance.lognormvariate(0, 1) for _ in range(100_000)]
        counted.note_lateness([int(150 * each) for each in spread])
        counted.note_runs([0.1 * each for each in spread])
        MessageFactory.create_batch(2, kind=counted.kind, scheduled_at=0)
        sampler().look([counted])
        assert sample(counted.kind).due == 2
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT max(pg_column_size(each.*)), max(cardinality(times)) "
                "FROM delayed_queue_sample AS each"
            )
            size, buckets = cursor.fetchone()
        assert buckets >= 20
        assert size <= 200


class TestRaces:
    def test_counts_of_workers_that_write_at_once_are_all_there(self) -> None:
        """In each order of the queues: they wait for each other's locks."""
        names = [f"queue-{each}|json" for each in range(50)]
        rows = [CountsRow(each, 1, 1, 1, "{67108865}") for each in names]
        calls = [rows, rows[::-1]] * 3

        at_once(*(lambda some=some: store.add_counts(some, now=NOW) for some in calls))
        found = Sample.objects.all()
        assert {each.kind for each in found} == set(names)
        assert {(each.done, tuple(each.times)) for each in found} == {(6, (67108870,))}

    def test_of_those_who_begin_at_once_one_measures(self) -> None:
        found: list[int | None] = []
        at_once(*[lambda: found.append(store.take_minute(1, now=NOW)[1])] * 4)
        assert sorted(found, key=str) == [MINUTE, None, None, None]

    def test_nobody_waits_for_who_measures(self, other: psycopg.Connection[Any]) -> None:
        with other.transaction():
            other.execute(store.TAKE_MINUTE, {"age": 1, "limit": 1, "now": NOW})
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '1s'")
                assert store.take_minute(1, now=NOW)[1] is None
                cursor.execute("RESET lock_timeout")

    def test_what_was_measured_and_counted_at_once_is_one_row(self) -> None:
        depth = DepthRow("a|json", 1, 2, 3, 4, 5)
        counts = CountsRow("a|json", 1, 0, 0, "{67108865}")
        at_once(
            lambda: store.save_depths(MINUTE, [depth]), lambda: store.add_counts([counts], now=NOW)
        )
        row = sample("a|json")
        assert (row.due, row.late, row.done, row.times) == (1, 5, 1, [67108865])


class TestFaults:
    def test_one_who_dies_while_measuring_leaves_the_minute_to_another(self, other, admin):
        other.execute("BEGIN")
        other.execute(store.TAKE_MINUTE, {"age": 1, "limit": 1, "now": NOW})
        admin.execute("SELECT pg_terminate_backend(%s)", [other.info.backend_pid])
        wait_until(lambda: store.take_minute(1, now=NOW)[1] == MINUTE)

    def test_what_could_not_be_written_is_told_with_the_next_minute(self, admin, caplog):
        mine, counted = sampler(), tally()
        connection.ensure_connection()
        admin.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
        mine.look([counted])
        assert "event=sample_failed" in caplog.text
        counted.done += 1
        mine.look([counted], is_last=True)
        assert sample().done == 4


class TestDays:
    def test_samples_are_dropped_by_the_day_and_never_deleted_by_the_row(self) -> None:
        now = datetime(2026, 3, 10, 12, tzinfo=UTC)
        for days in (0, 3, 20):
            at = int((now + timedelta(days=days)).timestamp() * 1000)
            store.add_counts([CountsRow("a|json", 1, 0, 0, "{}")], now=at)
        try:
            assert SAMPLES_BY_DAY.keep(timedelta(days=8), now=now)
            assert Sample.objects.count() == 3
            assert SAMPLES_BY_DAY.keep(timedelta(days=8), now=now + timedelta(days=9))
            assert Sample.objects.count() == 2
        finally:
            drop_days()

    def test_who_reads_while_days_come_and_go_is_waited_for_and_meets_no_deadlock(self) -> None:
        """A reader locks the table, then its partitions; creating and dropping them must, too."""
        now = datetime(2026, 3, 10, 12, tzinfo=UTC)
        later = now + timedelta(days=9)
        try:
            assert SAMPLES_BY_DAY.keep(timedelta(days=8), now=now)
            with raw_connection() as reader, reader.transaction():
                reader.execute("LOCK TABLE ONLY delayed_queue_sample IN ACCESS SHARE MODE")
                with calling(lambda: SAMPLES_BY_DAY.keep(timedelta(days=1), now=later)) as call:
                    wait_until(lambda: waits_for_a_lock(call.pid))
                    # Counts all partitions, including the default one.
                    reader.execute("SELECT count(*) FROM delayed_queue_sample")
                    reader.execute("COMMIT")
                    assert call.answer()
        finally:
            drop_days()


def waits_for_a_lock(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone() == ("Lock",))


def drop_days() -> None:
    with connection.cursor() as cursor:
        cursor.execute(DAYS_MADE)
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE {name}")


class TestWorker:
    def test_a_worker_tells_what_it_did_when_it_stops(self) -> None:
        queue = DelayedQueue("sampled")
        queue.offer_batch([ScheduledMessage(str(each), each) for each in range(20)])

        def fail_odd(envelope: Any) -> None:
            if envelope.payload % 2:
                raise ValueError(envelope.payload)

        worker = worker_with(handler_of("sampled", fail_odd))
        with running(worker):
            wait_until(lambda: (worker.counts.done, worker.counts.failed) >= (10, 10))
        wait_until(lambda: sum(Sample.objects.values_list("done", flat=True)) == 10)
        rows = Sample.objects.filter(kind=queue.kind)
        assert sum(each.failed for each in rows) >= 10
        counted = [each for row in rows for each in row.times]
        assert sum(each & (2**25 - 1) for each in counted if each >> 25 < 32) >= 20
        assert sum(each & (2**25 - 1) for each in counted if each >> 25 >= 32) >= 20


class TestReading:
    WINDOW = Window(MINUTE - 4, MINUTE, 1)

    def fill(self, *stored: int | None) -> None:
        """Sample that many minutes; None is one without a worker."""
        for each, due in enumerate(stored, MINUTE - len(stored)):
            if due is None:
                continue
            Sample.objects.create(kind="", minute=each, versions="1.0", times=[])
            if due:
                store.save_depths(each, [DepthRow("a|json", due, 0, 0, 0, 0)])

    def test_a_minute_without_a_worker_is_no_zero(self) -> None:
        self.fill(5, None, 0, 7)
        steps = read("a|json", self.WINDOW).steps
        assert [each.due for each in steps] == [5, None, 0, 7]

    def test_what_came_in_is_what_left_and_what_is_there_more(self) -> None:
        self.fill(5, 5, 2, 10_000, 4)
        at = (MINUTE - 3) * MINUTE_MS + 30_000
        store.add_counts([CountsRow("a|json", 7, 1, 1, "{}")], now=at)
        steps = read("a|json", self.WINDOW).steps
        assert [each.came_in for each in steps] == [0, 5, None, None]

    def test_deploys_are_versions_that_were_not_there(self) -> None:
        for each, version in enumerate(("1.0", "1.0, 1.1", "1.1", "1.2")):
            Sample.objects.create(kind="", minute=MINUTE - 4 + each, versions=version, times=[])
        found = read("a|json", self.WINDOW).deploys
        assert found == [Deploy(MINUTE - 3, "1.1"), Deploy(MINUTE - 1, "1.2")]

    def test_steps_of_hours_hold_the_most_and_the_sum(self) -> None:
        self.fill(5, 2, 9, 4)
        window = Window((MINUTE - 4) // 4 * 4, (MINUTE - 4) // 4 * 4 + 8, 4)
        steps = read("a|json", window).steps
        assert max(each.due or 0 for each in steps) == 9

    @pytest.mark.parametrize("typical", [4, 60, 900, 40_000])
    def test_percentiles_are_near_those_of_the_values(self, typical: int) -> None:
        chance, counted = random.Random(typical), Tally("a|json")
        values = sorted(int(chance.lognormvariate(math.log(typical), 0.8)) for _ in range(5000))
        counted.note_lateness(values)
        for share in (0.5, 0.99):
            true = values[int(share * len(values))]
            assert 0.6 < (quantile(counted.times, share) or 0) / true < 1.7
