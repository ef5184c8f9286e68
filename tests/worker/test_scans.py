"""Messages that a worker finds from a scan position, and when it wakes (W9)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.db.sql import NOTIFY
from delayed_queue.db.wakeups import channel_of
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.engine.scanning import MARGIN_MS, REWIND_MS
from delayed_queue.worker.engine.worker import Worker
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until
from tests.support.rivals import insert
from tests.support.running import SOON, handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

# Long enough to distinguish "at once" from "at the next poll".
POLL = timedelta(minutes=10)
PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Seen:
    """A handler that records the time of each key."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def __call__(self, envelope: Envelope) -> None:
        self.at[envelope.key] = time.monotonic()

    def worker(self, poll_interval: timedelta, **options: Any) -> Worker:
        return worker_with(handler_of("marked", self), poll_interval=poll_interval, **options)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("marked")


@pytest.fixture
def seen() -> Seen:
    return Seen()


@contextmanager
def late_transaction(queue: DelayedQueue, key: str) -> Iterator[Any]:
    """An offer, due now, in an open transaction."""
    with raw_connection() as other:
        other.execute("BEGIN")
        insert(other, queue, key)
        yield other


def outrun_the_margin(queue: DelayedQueue, seen: Seen) -> None:
    """Let the worker take messages up to one due later than the margin covers."""
    queue.offer_or_update("first", 1)
    wait_until(lambda: "first" in seen.at, 20)
    queue.offer_or_update("later", 1, delay=timedelta(milliseconds=MARGIN_MS + 200))
    wait_until(lambda: "later" in seen.at, 20)


def mark_of(worker: Worker) -> int:
    return worker.consumers[0].schedule.position


def test_w9_an_idle_worker_finds_what_is_offered_into_the_past_at_once(queue, seen):
    worker = seen.worker(POLL)
    with running(worker):
        queue.offer_or_update("first", 1)
        wait_until(lambda: "first" in seen.at, 20)
        assert mark_of(worker) > PAST.timestamp() * 1000
        queue.offer_or_update("past", 1, PAST)
        wait_until(lambda: "past" in seen.at, 20)


def test_w9_an_idle_worker_finds_what_was_committed_late_at_once(queue, seen):
    worker = seen.worker(POLL)
    with running(worker), late_transaction(queue, "late") as transaction:
        outrun_the_margin(queue, seen)
        transaction.execute(NOTIFY, {"channel": channel_of(queue.kind)})
        transaction.execute("COMMIT")
        wait_until(lambda: "late" in seen.at, 20)


def test_w9_a_rewind_finds_what_committed_late(queue: DelayedQueue, seen: Seen) -> None:
    worker = seen.worker(SOON)
    with running(worker):
        queue.offer_or_update("first", 1)
        wait_until(lambda: mark_of(worker) > NO_FLOOR)
        worker.consumers[0].schedule.full_scans.at = float("inf")
        early = datetime.now(UTC) - timedelta(milliseconds=REWIND_MS - 5_000)
        queue.offer_or_update("late", 1, schedule_at=early)
        wait_until(lambda: "late" in seen.at, 10)


@contextmanager
def stream(queue: DelayedQueue, seen: Seen) -> Iterator[None]:
    """Offer messages one by one, so that the worker always has some, and not too many."""
    ended = threading.Event()

    def offer() -> None:
        number = 0

        def is_caught_up() -> bool:
            return ended.is_set() or len(seen.at) > number - 50

        try:
            while not ended.is_set():
                queue.offer_batch(ScheduledMessage(f"s{number + n}", 1) for n in range(50))
                number += 50
                wait_until(is_caught_up, 20)
        finally:
            connections.close_all()

    thread = threading.Thread(target=offer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(20)


# With small batches nearly each fills, and polls start behind the last message taken.
@pytest.mark.parametrize(("batch_size", "into_the_past"), [(500, True), (5, False)])
def test_a_busy_worker_finds_it_within_a_poll_interval(
    queue: DelayedQueue, seen: Seen, settings: Settings, into_the_past: bool, batch_size: int
) -> None:
    settings.DELAYED_QUEUE = {"NOTIFY": False}
    worker = seen.worker(timedelta(seconds=1), batch_size=batch_size)
    with running(worker), late_transaction(queue, "early") as transaction, stream(queue, seen):
        outrun_the_margin(queue, seen)
        if into_the_past:
            queue.offer_or_update("past", 1, PAST)
        else:
            transaction.execute("COMMIT")
        key = "past" if into_the_past else "early"
        handled = len(seen.at)
        wait_until(lambda: key in seen.at)
        wait_until(lambda: len(seen.at) > handled + 50)  # it was busy all the time


def test_w9_without_notify_it_wakes_at_the_due_time(queue, seen, settings):
    settings.DELAYED_QUEUE = {"NOTIFY": False}
    queue.offer_or_update("soon", 1, delay=timedelta(milliseconds=500))
    started_at = time.monotonic()
    with running(seen.worker(POLL)):
        wait_until(lambda: "soon" in seen.at, 20)
    assert seen.at["soon"] - started_at >= 0.4


def test_w9_without_notify_it_looks_once_per_poll_interval(queue, seen, settings, caplog):
    settings.DELAYED_QUEUE = {"NOTIFY": False}
    caplog.set_level(logging.DEBUG, "delayed_queue")

    def looks() -> list[float]:
        return [each.created for each in caplog.records if "event=polled" in each.getMessage()]

    with running(seen.worker(timedelta(milliseconds=300))):
        wait_until(lambda: len(looks()) >= 6, 20)
        idle = looks()
        queue.offer_or_update("new", 1)
        wait_until(lambda: "new" in seen.at, 20)
    # Two come before each sleep.
    assert min(later - earlier for earlier, later in zip(idle, idle[2:], strict=False)) > 0.2
