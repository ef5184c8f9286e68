"""Under an old snapshot no handled row can be removed; claims do not read these rows."""

from __future__ import annotations

import math
from typing import Any

import psycopg
import pytest

from delayed_queue.models import Worker
from delayed_queue.queue.store.claim import NO_FLOOR, claim_step
from delayed_queue.worker.engine.heartbeat import Heartbeat
from tests.plans.case import PRIMARY
from tests.plans.explain import explain
from tests.support.concurrency import raw_connection
from tests.support.running import handler_of, worker_with

HANDLED = 50_000
BATCH = 100
# A bulk offer, all due at one instant: its size, the handled messages, and the batch size.
BULK, OF_BULK, FEW = 20_000, 10_000, 10
# Due one after the other, ``apart`` milliseconds apart, the last of them ``ago`` milliseconds ago.
_FILL = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'k' || number, 'orders|json', '1', due, due, due
FROM generate_series(1, %(count)s) AS number
CROSS JOIN LATERAL (
    SELECT
        floor(extract(epoch FROM now()) * 1000)::bigint
        - %(ago)s - %(apart)s * (%(count)s - number) AS due
) AS times
"""


@pytest.mark.django_db(transaction=True)
def test_a_claim_reads_no_more_after_fifty_thousand_than_after_one() -> None:
    with raw_connection() as holder, raw_connection() as own:

        def pages_after(count: int) -> tuple[int, int]:
            """Handle ``count``; return the pages of a worker's claim, and of a full scan."""
            own.execute(_FILL, {"count": count, "ago": 20_000, "apart": 10})
            worker = worker_with(handler_of("orders", lambda envelope: None), burst=True)
            assert worker.run().done == count
            own.execute(_FILL, {"count": BATCH, "ago": 0, "apart": 10})
            position = worker.consumers[0].schedule.position
            found = pages_of_a_claim(own, position), pages_of_a_claim(own)
            own.execute("DELETE FROM delayed_queue")
            return found

        hold(holder)
        first, _ = pages_after(1_000)
        last, of_all = pages_after(HANDLED)
        # A claim that passed the handled messages would read fifty times as many pages. A
        # concurrent vacuum, which cannot remove them, may make it read half as much again.
        assert last < 2.5 * first
        # The pages that each claim would read without a position.
        assert of_all > 1.5 * last


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("transactional", [False, True])
def test_a_claim_in_the_midst_of_a_bulk_offer_reads_no_more_than_the_first(transactional):
    """It lies above the position; while polls fill, each starts behind the last message."""
    with raw_connection() as holder, raw_connection() as own:
        hold(holder)
        own.execute(_FILL, {"count": BULK, "ago": 0, "apart": 0})
        first = pages_of_a_claim(own, limit=FEW)
        handler = handler_of("orders", lambda envelope: None, transactional=transactional)
        worker = worker_with(handler, max_messages=OF_BULK, concurrency=1)
        assert worker.run().done == OF_BULK
        schedule = worker.consumers[0].schedule
        schedule.rewinds.at = schedule.full_scans.at = math.inf
        poll = schedule.begin(FEW)
        last = pages_of_a_claim(own, poll.position, poll.first_id, limit=FEW)
        from_position = pages_of_a_claim(own, schedule.position, limit=FEW)
        assert last < 2 * first
        assert from_position > 2 * last


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("generic", [False, True])
def test_what_is_offered_after_a_vacuum_of_the_drained_table_is_leased_by_its_ids(generic):
    """From then on it counts as empty, and a full index as one page."""
    step = claim_step("orders|json", FEW, "own", "taken", 60_000)
    with raw_connection() as own:
        own.execute(_FILL, {"count": OF_BULK, "ago": 0, "apart": 0})
        own.execute("DELETE FROM delayed_queue")
        own.execute("VACUUM ANALYZE delayed_queue")
        counted = "SELECT reltuples, relpages > 0 FROM pg_class WHERE relname = 'delayed_queue'"
        assert own.execute(counted).fetchall() == [(0, True)]
        own.execute(_FILL, {"count": BULK, "ago": 0, "apart": 0})
        plan = explain(own, *step, generic=generic)
    assert PRIMARY in plan.indexes, plan


@pytest.mark.django_db(transaction=True)
def test_what_a_full_scan_takes_is_in_the_row_of_the_worker() -> None:
    with raw_connection() as own:
        own.execute(_FILL, {"count": BATCH, "ago": 0, "apart": 0})
        worker = worker_with(handler_of("orders", lambda envelope: None), burst=True)
        heartbeat = Heartbeat("default", worker.describe)
        heartbeat.beat()
        assert Worker.objects.values_list("scanned", "scan_seconds").get() == ("", 0)
        worker.run()
        heartbeat.beat()
        scanned, seconds = Worker.objects.values_list("scanned", "scan_seconds").get()
        assert scanned == "orders"
        assert 0 < seconds < 5


def hold(connection: psycopg.Connection[Any]) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    connection.execute("SELECT 1")


def pages_of_a_claim(
    connection: psycopg.Connection[Any],
    position: int = NO_FLOOR,
    first_id: int = 0,
    limit: int = BATCH,
) -> int:
    step = claim_step(
        "orders|json", limit, "own", "taken", 60_000, floor=position, floor_id=first_id
    )
    return explain(connection, *step, generic=False).buffers
