"""Rewinds of a worker: to messages due before its last one (W9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.scanning import REWIND_MS
from delayed_queue.worker.engine.worker import Worker
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("marked")


@pytest.mark.parametrize("age", [timedelta(seconds=5), timedelta(hours=1)])
def test_w9_what_is_due_before_the_mark_is_found(queue: DelayedQueue, age: timedelta) -> None:
    with marked(queue) as (worker, _):
        queue.offer_or_update("early", 1, schedule_at=datetime.now(UTC) - age)
        wait_until(lambda: worker.counts.done == 2, 10)


def test_w9_a_rewind_finds_what_committed_late(queue: DelayedQueue) -> None:
    with marked(queue) as (worker, consumer):
        consumer.schedule.full_scans.at = float("inf")
        early = datetime.now(UTC) - timedelta(milliseconds=REWIND_MS - 5_000)
        queue.offer_or_update("late", 1, schedule_at=early)
        wait_until(lambda: worker.counts.done == 2, 10)


@contextmanager
def marked(queue: DelayedQueue) -> Iterator[tuple[Worker, Consumer]]:
    """Run a worker that has handled one message, so that it has a mark."""
    queue.offer_or_update("first", 1)
    worker = worker_with(handler_of(queue.name, lambda envelope: None))
    consumer = worker.consumers[0]
    with running(worker):
        wait_until(lambda: worker.counts.done == 1)
        wait_until(lambda: consumer.schedule.position > NO_FLOOR)
        yield worker, consumer
