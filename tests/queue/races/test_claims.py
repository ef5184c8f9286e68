"""Consumers that race for the same messages (Q17)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.queue.store.claim import CLAIM, CONSUME, NO_FLOOR
from tests.support.answers import polled
from tests.support.concurrency import (
    raw_connection,
    running,
    together,
    wait_until_blocked,
)
from tests.support.statements import sql

SKIP: Final = "FOR UPDATE SKIP LOCKED"
LOCK: Final = 'SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE'


def offer(queue: DelayedQueue, count: int) -> list[str]:
    keys = [f"key-{each:03}" for each in range(count)]
    queue.offer_batch([ScheduledMessage(key, None) for key in keys])
    return keys


def parameters(queue: DelayedQueue, statement: str) -> dict[str, Any]:
    params = {"kind": queue.kind, "limit": 1, "floor": NO_FLOOR, "floor_id": 0, "now": None}
    lease = {"lease_id": "lease", "retaken_id": "again", "lease": 60_000}
    return {**params, **(lease if statement == "CLAIM" else {})}


def poll_until_empty(queue: DelayedQueue, limit: int) -> list[str]:
    keys: list[str] = []
    while batch := queue.try_poll_many(limit):
        keys += [envelope.key for envelope in batch]
    return keys


@pytest.mark.parametrize("limit", [1, 7])
def test_ten_threads_lease_each_message_once(queue: DelayedQueue, limit: int):
    """Q17: fifty messages for each thread."""
    keys = offer(queue, 500)

    answers = together([partial(poll_until_empty, queue, limit)] * 10)

    assert Counter(key for answer in answers for key in answer) == Counter(keys)


@pytest.mark.parametrize("statement", ["CLAIM", "CONSUME"])
def test_a_row_that_another_transaction_holds_is_skipped_not_waited_for(
    queue: DelayedQueue, other: psycopg.Connection[Any], statement: str
):
    """Q17: waiting would end in LockNotAvailable."""
    first, second = offer(queue, 2)
    other.execute("SET lock_timeout = '200ms'")

    with raw_connection() as holder, holder.transaction():
        holder.execute(LOCK, [first])
        rows = other.execute(getattr(sql, statement), parameters(queue, statement)).fetchall()

    assert [row[1] for row in rows] == [second]


def test_a_poll_passes_a_message_that_is_being_consumed(
    impatient: DelayedQueue, other: psycopg.Connection[Any]
):
    """Q17, through the queue itself."""
    keys = offer(impatient, 2)

    with other.transaction():
        taken = other.execute(CONSUME, parameters(impatient, "CONSUME")).fetchall()
        assert polled(impatient).key == keys[1]
        assert impatient.try_poll() is None
    assert taken[0][1] == keys[0]


@pytest.mark.parametrize("statement", ["CLAIM", "CONSUME"])
def test_without_skip_locked_it_would_wait(
    queue: DelayedQueue, other: psycopg.Connection[Any], statement: str
):
    """So the tests above bite."""
    first, _ = offer(queue, 2)
    other.execute("SET lock_timeout = '200ms'")
    naive = getattr(sql, statement).replace(SKIP, "FOR UPDATE")
    assert naive != getattr(sql, statement)

    with raw_connection() as holder, holder.transaction():
        holder.execute(LOCK, [first])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(naive, parameters(queue, statement))


def test_two_claims_at_the_same_time_take_two_messages(
    queue: DelayedQueue, other: psycopg.Connection[Any]
):
    """Q17: the second does not wait for the commit of the first."""
    offer(queue, 2)

    with raw_connection() as holder, holder.transaction():
        first = holder.execute(CLAIM, parameters(queue, "CLAIM")).fetchall()
        second = other.execute(CLAIM, parameters(queue, "CLAIM")).fetchall()

    assert [row[1] for row in first + second] == ["key-000", "key-001"]


def test_without_for_update_two_claims_would_take_the_same_message(
    queue: DelayedQueue, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
):
    """The second finds the row by its id, waits for the first, and takes it all the same."""
    offer(queue, 2)
    naive = CLAIM.replace(SKIP, "")
    assert naive != CLAIM
    params = parameters(queue, "CLAIM")

    with raw_connection() as holder:
        holder.execute("BEGIN")
        first = holder.execute(naive, params).fetchall()
        with running(other, naive, {**params, "lease_id": "another"}) as claiming:
            wait_until_blocked(admin, claiming)
            holder.execute("COMMIT")
            second = claiming.answer()

    assert [row[1] for row in first + second] == ["key-000", "key-000"]
