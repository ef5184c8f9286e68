"""Writes of others below the last message taken, while each poll fills (W9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.db.statements import run
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import claim_step
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.plans import ClaimPlan
from tests.support.rivals import insert, update
from tests.support.running import handler_of, worker_with

LIMIT: Final = 2
EARLY: Final = "early"
Write = Callable[[psycopg.Connection[Any], DelayedQueue, int], None]


@pytest.fixture
def due_at() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=5)


@pytest.fixture
def consumer(queue: DelayedQueue) -> Consumer:
    worker = worker_with(handler_of(queue.name, lambda envelope: None))
    return worker.consumers[0]


def poll(consumer: Consumer) -> list[str]:
    """Poll as a worker does, but rewind only when the test does."""
    plan = ClaimPlan(consumer, LIMIT)
    rows = plan.finish(
        dict(zip(plan.steps, run("default", list(plan.steps.values())), strict=True))
    )
    consumer.schedule.rewinds.at = consumer.schedule.full_scans.at = math.inf
    return [row.key for row in rows]


def offer_late(connection: psycopg.Connection[Any], queue: DelayedQueue, due_at: int) -> None:
    insert(connection, queue, EARLY, schedule_at=due_at)


def reschedule(connection: psycopg.Connection[Any], queue: DelayedQueue, due_at: int) -> None:
    queue.offer_or_update(EARLY, "old", delay=timedelta(hours=1))
    update(connection, queue, EARLY, schedule_at=due_at - 1)


def hold_it(connection: psycopg.Connection[Any], queue: DelayedQueue, due_at: int) -> None:
    offer_late(connection, queue, due_at)
    connection.execute("COMMIT")
    connection.execute("BEGIN")
    connection.execute('SELECT FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', [EARLY])


def lease_it(connection: psycopg.Connection[Any], queue: DelayedQueue, due_at: int) -> None:
    """As another worker, whose connection breaks before the commit."""
    hold_it(connection, queue, due_at)
    statement, params = claim_step(queue.kind, 1, "theirs", "theirs", 60_000)
    assert len(connection.execute(statement, params).fetchall()) == 1


@pytest.mark.parametrize(
    ("write", "end"),
    [(offer_late, "COMMIT"), (reschedule, "COMMIT"), (hold_it, "ROLLBACK"), (lease_it, "ROLLBACK")],
)
@pytest.mark.parametrize("is_busy", [True, False])
def test_it_is_found_by_the_next_rewind_or_when_polls_no_longer_fill(
    queue, consumer, other, due_at, write, end, is_busy
):
    other.execute("BEGIN")
    write(other, queue, to_milliseconds(due_at))
    # Ids behind that of the early one, at the same instant.
    queue.offer_batch([ScheduledMessage(f"k{n}", 1, due_at) for n in range(6)])
    assert poll(consumer) == ["k0", "k1"]
    other.execute(end)
    assert poll(consumer) == ["k2", "k3"]
    if is_busy:
        consumer.schedule.rewinds.at = 0.0
        assert poll(consumer) == [EARLY, "k4"]
        assert poll(consumer) == ["k5"]
    else:
        assert [poll(consumer) for _ in range(3)] == [["k4", "k5"], [], [EARLY]]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_claim_begins_in_the_midst_of_an_instant(queue, due_at, place):
    keys = [f"k{n}" for n in range(6)]
    queue.offer_batch([ScheduledMessage(key, 1, due_at) for key in keys])
    ids = dict(Message.objects.values_list("key", "id"))
    floor_id = ids[keys[place]] if place < 6 else ids[keys[-1]] + 1
    floor = to_milliseconds(due_at), floor_id
    consumed = Message.objects.take(queue.kind, 10, floor=floor)
    assert [row.key for row in consumed] == keys[place:]
