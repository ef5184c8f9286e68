"""Prepared statements, and connections opened while the table was empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.db.own import using_own_connection
from delayed_queue.db.statements import run
from delayed_queue.queue.store.claim import claim_step
from delayed_queue.queue.store.settle import (
    acknowledge_leases_step,
    acknowledge_members_step,
    return_leases_step,
)

# After five runs PostgreSQL may keep a plan.
OFTEN = 10
MANY = 20_000


@pytest.fixture
def raw(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A new connection without prepared statements."""
    connection.close()
    connection.ensure_connection()
    yield connection.connection
    connection.close()


def executions(raw: psycopg.Connection[Any], word: str) -> list[tuple[int, int]]:
    """Return each matching prepared statement's runs: on a kept plan, on a new one."""
    found = raw.execute(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
        " WHERE strpos(statement, %s) > 0",
        [word],
    )
    return [(row[0], row[1]) for row in found]


def whole_reads(raw: psycopg.Connection[Any]) -> int:
    """Return the full scans of the queue by this connection in its transaction."""
    row = raw.execute("SELECT pg_stat_get_xact_numscans('delayed_queue'::regclass)").fetchone()
    assert row is not None
    return int(row[0])


def offer_one(queue: DelayedQueue, number: int) -> None:
    queue.offer_or_update(f"k{number}", 1)


def offer_two(queue: DelayedQueue, number: int) -> None:
    queue.offer_batch([ScheduledMessage(f"{number}-{each}", 1) for each in range(2)])


@pytest.mark.parametrize("offer", [offer_one, offer_two])
def test_a_producer_keeps_the_plan_of_its_offers(raw, offer):
    for number in range(OFTEN):
        offer(DelayedQueue("orders"), number)

    assert executions(raw, "INSERT INTO delayed_queue") == [(OFTEN - 5, 5)]


def test_a_consumer_has_its_statements_planned_each_time(raw: psycopg.Connection[Any]):
    queue = DelayedQueue("orders")
    for number in range(OFTEN):
        offer_two(queue, number)
        with queue.consume() as consumed:
            assert consumed is not None
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.acknowledge()

    for word in ("UPDATE delayed_queue", "DELETE FROM delayed_queue"):
        found = executions(raw, word)
        assert found
        assert all(kept == 0 and planned <= 5 for kept, planned in found)
    assert raw.execute("SHOW plan_cache_mode").fetchall() == [("auto",)]


def test_what_began_on_an_empty_table_does_not_read_a_full_one_to_its_end(raw):
    """Without an ANALYZE: a kept plan would be one for an empty table."""
    queue = DelayedQueue("orders")
    for _ in range(OFTEN):
        assert queue.try_poll() is None
    queue.offer_batch([ScheduledMessage(f"k{number}", 1) for number in range(MANY)])

    with transaction.atomic():
        before = whole_reads(raw)
        batch = queue.try_poll_many(100)
        assert batch[0].release()
        assert batch.acknowledge() == 99
        assert queue.drop_message(f"k{MANY - 1}")
        assert whole_reads(raw) == before


def test_a_worker_keeps_its_plans_and_they_fit_a_table_that_has_grown(raw):
    with using_own_connection("default"):
        for _ in range(OFTEN):
            turn("nothing", [])
        worker = connection.connection
        DelayedQueue("orders").offer_batch(
            [ScheduledMessage(f"k{number}", 1) for number in range(MANY)]
        )
        before = whole_reads(worker)
        with transaction.atomic():
            ids = turn("first", [])
            assert len(ids) == 100
            assert turn("second", ids) != ids
            assert whole_reads(worker) == before
        for word in ("UPDATE delayed_queue", "DELETE FROM delayed_queue"):
            assert executions(worker, word)
            assert all(new == 0 for _, new in executions(worker, word))
        assert connection.connection is worker


def test_the_statements_of_a_worker_are_never_compiled(raw, monkeypatch):
    """Before PostgreSQL 18 a disabled scan counts as expensive: compiling took seconds a claim."""
    monkeypatch.setenv("PGOPTIONS", "-c jit=on")
    connection.close()
    turn("nothing", [])
    assert setting("jit") == "on"
    with using_own_connection("default"):
        turn("nothing", [])
        assert setting("jit") == "off"


def setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


def turn(lease_id: str, ids: list[int]) -> list[int]:
    """Settle and claim as a worker does; return the claimed ids."""
    answers = run(
        "default",
        [
            acknowledge_leases_step(["gone"]),
            acknowledge_members_step(["first"], ids[:50]),
            return_leases_step(["unanswered"]),
            claim_step("orders|json", 100, lease_id, lease_id, 60_000),
        ],
    )
    assert len(answers[1]) == len(ids[:50])
    return [row[0] for row in answers[-1]]
