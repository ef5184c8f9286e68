"""The rows of workers: their manager, at instants of the test's choosing (W12)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection

from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Worker
from delayed_queue.worker.store import SlowestScan, ThroughputRow, WorkerCounts
from tests.support.concurrency import raw_connection

NOW = 1_900_000_000_000
SECOND = 1000
COUNTS = WorkerCounts(in_flight=1, done=2, failed=3, dead=4, lost=5)

pytestmark = pytest.mark.django_db


def enlist(name: str = "worker", queues: tuple[str, ...] = (), now: int | None = NOW) -> int:
    return Worker.objects.enlist(name, "host", 7, queues=queues, version="1.2", now=now).id


def names() -> list[str]:
    return list(Worker.objects.order_by("name").values_list("name", flat=True))


def test_w12_a_worker_is_enlisted_with_what_it_is():
    row = Worker.objects.enlist(
        "worker", "host", 7, process=2, queues=["b", "a"], version="1.2", now=NOW
    )

    worker = Worker.objects.get(id=row.id)
    assert row.started_at == to_milliseconds(worker.started_at) == NOW
    assert to_milliseconds(worker.heartbeat_at) == NOW
    assert (worker.name, worker.host, worker.pid, worker.process) == ("worker", "host", 7, 2)
    assert (worker.queues, worker.version) == (["b", "a"], "1.2")
    assert (worker.in_flight, worker.done, worker.rates, worker.lease_ids) == (0, 0, {}, [])


def test_w12_enlisted_anew_it_keeps_the_time_it_started():
    row = Worker.objects.enlist("worker", "host", 7, started_at=NOW - 5, now=NOW)

    assert row.started_at == NOW - 5
    assert to_milliseconds(Worker.objects.get().heartbeat_at) == NOW


def test_w12_by_itself_the_database_tells_the_time():
    before = to_milliseconds(Worker.objects.get(id=enlist(now=None)).heartbeat_at)
    assert Worker.objects.beat(Worker.objects.get().id, COUNTS)
    assert to_milliseconds(Worker.objects.get().heartbeat_at) >= before > 0


def test_w12_a_heartbeat_writes_all_that_it_is_told():
    worker_id, other_id = enlist(), enlist("other")

    assert Worker.objects.beat(
        worker_id, COUNTS, rates={"a": 1.5}, lease_ids=["x", "y"], scan=SlowestScan("a", 0.25),
        now=NOW + SECOND,
    )  # fmt: skip

    worker = Worker.objects.get(id=worker_id)
    assert to_milliseconds(worker.heartbeat_at) == NOW + SECOND
    assert to_milliseconds(worker.started_at) == NOW
    counts = (worker.in_flight, worker.done, worker.failed, worker.dead, worker.lost)
    assert counts == tuple(COUNTS)
    assert (worker.rates, worker.lease_ids) == ({"a": 1.5}, ["x", "y"])
    assert (worker.scanned, worker.scan_seconds) == ("a", 0.25)
    assert Worker.objects.get(id=other_id).done == 0


def test_w12_counts_are_64_bits_wide():
    enlist()
    assert Worker.objects.beat(Worker.objects.get().id, WorkerCounts(done=2**40))
    assert Worker.objects.get().done == 2**40


def test_w12_a_heartbeat_says_when_the_row_is_gone():
    worker_id = enlist()
    assert Worker.objects.retire(worker_id) is True
    assert Worker.objects.beat(worker_id, COUNTS) is False
    assert Worker.objects.retire(worker_id) is False
    assert names() == []


def test_w12_only_the_long_silent_are_pruned():
    enlist("dead", now=NOW - 11 * SECOND)
    enlist("silent", now=NOW - 10 * SECOND)
    enlist("alive", now=NOW)

    assert Worker.objects.prune(10 * SECOND, 100, now=NOW) == 1
    assert names() == ["alive", "silent"]


def test_w12_pruning_is_bounded_and_takes_the_most_silent_first():
    for age in (1, 3, 2):
        enlist(f"silent-{age}", now=NOW - age * SECOND)

    assert Worker.objects.prune(0, 2, now=NOW) == 2
    assert names() == ["silent-1"]


@pytest.mark.django_db(transaction=True)
def test_w12_pruning_passes_over_a_row_that_another_holds():
    held = enlist("held", now=NOW - 9 * SECOND)
    enlist("free", now=NOW - 8 * SECOND)
    with connection.cursor() as cursor:  # waiting would end in LockNotAvailable
        cursor.execute("SET lock_timeout = '200ms'")
    with raw_connection() as other, other.transaction():
        _hold(other, held)
        assert Worker.objects.prune(0, 1, now=NOW) == 1
    connection.close()
    assert names() == ["held"]


def _hold(other: psycopg.Connection[Any], worker_id: int) -> None:
    other.execute("SELECT FROM delayed_queue_worker WHERE id = %s FOR UPDATE", [worker_id])


def test_w12_throughput_is_that_of_the_live_by_queue():
    alive = [enlist("a", ("orders", "mail")), enlist("b", ("orders",))]
    dead = enlist("c", ("orders",), now=NOW - 30 * SECOND)
    Worker.objects.beat(alive[0], COUNTS, rates={"orders": 1.5, "gone": 9.0}, now=NOW)
    Worker.objects.beat(alive[1], COUNTS, rates={"orders": 2.0}, now=NOW)
    Worker.objects.beat(dead, COUNTS, rates={"orders": 100.0}, now=NOW - 30 * SECOND)

    rows = Worker.objects.throughput(30 * SECOND, now=NOW)

    assert sorted(rows) == [ThroughputRow("mail", 1, 0.0), ThroughputRow("orders", 2, 3.5)]
