"""Consumers that race for the same messages (Q17)."""

from __future__ import annotations

from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.queue.store.claim import CLAIM, CONSUME, NO_FLOOR
from tests.support.answers import polled
from tests.support.concurrency import raw_connection
from tests.support.statements import sql

LOCK: Final = 'SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE'


def offer(queue: DelayedQueue, count: int) -> list[str]:
    keys = [f"key-{each:03}" for each in range(count)]
    queue.offer_batch([ScheduledMessage(key, None) for key in keys])
    return keys


def parameters(queue: DelayedQueue, statement: str) -> dict[str, Any]:
    params = {"kind": queue.kind, "limit": 1, "floor": NO_FLOOR, "floor_id": 0, "now": None}
    lease = {"lease_id": "lease", "retaken_id": "again", "lease": 60_000}
    return {**params, **(lease if statement == "CLAIM" else {})}


@pytest.mark.parametrize("statement", ["CLAIM", "CONSUME"])
def test_q17_a_row_that_another_transaction_holds_is_skipped_not_waited_for(
    queue: DelayedQueue, other: psycopg.Connection[Any], statement: str
):
    """Waiting would end in LockNotAvailable."""
    first, second = offer(queue, 2)
    other.execute("SET lock_timeout = '200ms'")

    with raw_connection() as holder, holder.transaction():
        holder.execute(LOCK, [first])
        rows = other.execute(getattr(sql, statement), parameters(queue, statement)).fetchall()

    assert [row[1] for row in rows] == [second]


def test_a_poll_passes_a_message_that_is_being_consumed(impatient, other):
    """Q17, through the queue itself."""
    keys = offer(impatient, 2)

    with other.transaction():
        taken = other.execute(CONSUME, parameters(impatient, "CONSUME")).fetchall()
        assert polled(impatient).key == keys[1]
        assert impatient.try_poll() is None
    assert taken[0][1] == keys[0]


def test_q17_two_claims_at_the_same_time_take_two_messages(queue, other):
    """The second does not wait for the commit of the first."""
    offer(queue, 2)

    with raw_connection() as holder, holder.transaction():
        first = holder.execute(CLAIM, parameters(queue, "CLAIM")).fetchall()
        second = other.execute(CLAIM, parameters(queue, "CLAIM")).fetchall()

    assert [row[1] for row in first + second] == ["key-000", "key-001"]
