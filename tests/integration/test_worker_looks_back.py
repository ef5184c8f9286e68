"""Looks of a worker below its low-water mark: at what is due before what it took last (W9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.lanes import BACK_MS, Lane
from delayed_queue.worker.worker import Worker
from tests.processes import wait_until
from tests.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("marked")


@pytest.mark.parametrize("age", [timedelta(seconds=5), timedelta(hours=1)])
def test_w9_what_is_due_before_the_mark_is_found(queue: DelayedQueue, age: timedelta) -> None:
    with marked(queue) as (worker, _):
        queue.offer_or_update("early", 1, schedule_at=datetime.now(UTC) - age)
        wait_until(lambda: worker.tally.done == 2, 10)


def test_w9_a_look_back_finds_what_committed_late(queue: DelayedQueue) -> None:
    with marked(queue) as (worker, lane):
        lane._full_look_at = float("inf")
        early = datetime.now(UTC) - timedelta(milliseconds=BACK_MS - 5_000)
        queue.offer_or_update("late", 1, schedule_at=early)
        wait_until(lambda: worker.tally.done == 2, 10)


@contextmanager
def marked(queue: DelayedQueue) -> Iterator[tuple[Worker, Lane]]:
    """Run a worker that has handled one message, so that it has a mark."""
    queue.offer_or_update("first", 1)
    worker = worker_with(handler_of(queue.name, lambda envelope: None))
    lane = worker.lanes[0]
    with running(worker):
        wait_until(lambda: worker.tally.done == 1)
        wait_until(lambda: lane._floor > NO_FLOOR)
        yield worker, lane
