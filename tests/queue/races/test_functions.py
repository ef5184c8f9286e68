"""The SQL functions against each other, against pauses and against Python (S3, S7)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from tests.queue.races.conftest import LIMITS
from tests.support.concurrency import calling, raw_connection, together, wait_until_blocked

CLAIM = "SELECT id, key FROM delayed_queue_claim('races', %s)"
OFFER = "SELECT delayed_queue_offer('races', 'k', %s::jsonb)"
OFFER_MANY = "SELECT * FROM delayed_queue_offer_many('races', %s)"
ACKNOWLEDGE = """
SELECT delayed_queue_acknowledge(lease_id) FROM delayed_queue_claim('races')
"""
LOCK = 'SELECT id FROM delayed_queue WHERE "pKey" = %s FOR UPDATE'


def offer(queue: DelayedQueue, *keys: str) -> None:
    queue.offer_batch([ScheduledMessage(key, None, group=key[0]) for key in keys])


def run(statement: str, *params: Any) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return list(cursor.fetchall())


def test_s2_a_claim_skips_a_message_that_another_transaction_holds(queue, other):
    offer(queue, "a1", "b1")
    other.execute("SET lock_timeout = '200ms'")
    with raw_connection() as holder, holder.transaction():
        holder.execute(LOCK, ["a1"])
        assert [row[1] for row in other.execute(CLAIM, [2])] == ["b1"]


def test_s2_claims_of_sql_and_python_never_share_a_message(queue: DelayedQueue):
    offer(queue, *(f"{n:04}" for n in range(400)))

    def by_sql() -> list[str]:
        return [key for _ in range(20) for _, key in run(CLAIM, 5)]

    def by_python() -> list[str]:
        return [each.key for _ in range(20) for each in queue.try_poll_many(5)]

    taken = together([by_sql, by_python, by_sql, by_python])
    assert sorted(key for each in taken for key in each) == [f"{n:04}" for n in range(400)]


def test_s3_of_many_offers_of_one_key_one_creates_it(queue: DelayedQueue):
    calls = [partial(run, OFFER, json.dumps(n)) for n in range(4)]
    outcomes = sorted(rows[0][0] for rows in together(calls))
    assert outcomes == ["created", "updated", "updated", "updated"]


def test_s3_an_offer_waits_for_an_acknowledgement_and_creates(queue, other):
    queue.offer_or_update("k", 1)
    with raw_connection() as holder:
        holder.execute("BEGIN")
        holder.execute(ACKNOWLEDGE)
        with calling(partial(run, OFFER, "2")) as call:
            wait_until_blocked(other, call)
            holder.execute("COMMIT")
            assert call.answer() == [("created",)]


def test_s1_two_batches_in_opposite_orders_do_not_deadlock(queue: DelayedQueue):
    def batch(keys: list[int]) -> str:
        return json.dumps([{"key": f"{key:03}", "payload": key} for key in keys])

    keys = list(range(300))
    for _ in range(3):
        together([partial(run, OFFER_MANY, batch(each)) for each in (keys, keys[::-1])])


@pytest.mark.parametrize(("rules", "most"), LIMITS)
def test_s7_claims_of_sql_and_python_together_stay_within_limits(queue, rules, most):
    queue.groups.set(rules)
    offer(queue, *(f"a{n}" for n in range(20)))
    calls = [lambda: run(CLAIM, 2), lambda: list(queue.try_poll_many(2))] * 3
    assert sum(len(each) for each in together(calls)) == most


def test_s7_a_claim_waits_for_the_claim_of_another_and_sees_its_leases(queue, other):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    with raw_connection() as holder:
        holder.execute("BEGIN")
        assert len(holder.execute(CLAIM, [1]).fetchall()) == 1
        with calling(partial(run, CLAIM, 1)) as call:
            wait_until_blocked(other, call)
            holder.execute("COMMIT")
            assert call.answer() == []


def test_s7_a_pause_that_commits_first_holds_for_a_claim_that_waited(queue, other):
    """The claim waits for its turn; the pause commits; the claim reads it behind the lock."""
    queue.groups.set(Groups(concurrency=5))
    offer(queue, "a1")
    with raw_connection() as holder:
        holder.execute("BEGIN")
        holder.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 7310600482201519))", [queue.kind]
        )
        with calling(partial(run, CLAIM, 1)) as call:
            wait_until_blocked(other, call)
            assert queue.pause()
            holder.execute("COMMIT")
            assert call.answer() == []
