"""Workers whose messages are locked by another transaction."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import psycopg

from delayed_queue import DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.processes import wait_until
from tests.support.rivals import update
from tests.support.running import handler_of, running, worker_with

HOUR = timedelta(hours=1)


def hold(other: psycopg.Connection[Any], queue: DelayedQueue, key: str) -> None:
    """Update the message in a transaction that stays open."""
    other.execute("BEGIN")
    update(other, queue, key, delay=HOUR // timedelta(milliseconds=1))


class Handler:
    """Waits until the test releases it; fails where the payload requests it."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, envelope: Envelope) -> None:
        self.begun.release()
        assert self.go_on.wait(20)
        if envelope.payload == "fail":
            raise ValueError("asked to fail")

    def worker(self) -> Worker:
        retry = RetryPolicy.ladder("1h")
        handler = handler_of("races", self, retry=retry)
        return worker_with(handler, concurrency=4, lease=HOUR)

    def has_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=20)


def offer(queue: DelayedQueue, payload: str = "done") -> None:
    queue.offer_batch([ScheduledMessage(f"k{each}", payload) for each in range(4)])


def keys() -> set[str]:
    return set(Message.objects.values_list("key", flat=True))


def test_a_message_that_is_being_updated_holds_up_no_other(queue, other):
    handler = Handler()
    worker = handler.worker()
    offer(queue)
    with running(worker):
        handler.has_begun(4)
        hold(other, queue, "k1")
        handler.go_on.set()
        wait_until(lambda: worker.counts.done == 3)
        assert keys() == {"k1"}
        # New messages are claimed, handled and acknowledged as well.
        queue.offer_or_update("next", 1)
        wait_until(lambda: worker.counts.done == 4)
        other.execute("COMMIT")
        wait_until(lambda: worker.counts.total == 5)
    assert worker.counts == Counts(done=4, lost=1)
    assert (Message.objects.get().payload, Message.objects.get().lease_id) == (b'"new"', None)


def test_when_the_update_is_undone_the_message_is_acknowledged(queue, other):
    handler = Handler()
    worker = handler.worker()
    offer(queue)
    with running(worker):
        handler.has_begun(4)
        hold(other, queue, "k1")
        handler.go_on.set()
        wait_until(lambda: worker.counts.done == 3)
        other.execute("ROLLBACK")
        wait_until(lambda: worker.counts.done == 4)
    assert worker.counts == Counts(done=4)
    assert not keys()


def test_a_worker_that_stops_does_not_wait_for_it(queue, other):
    """A message whose settlement failed is delivered again once its lease has expired."""
    handler = Handler()
    offer(queue)
    retry = RetryPolicy.ladder("1h")
    worker = worker_with(
        handler_of("races", handler, retry=retry), concurrency=4, lease=HOUR,
        shutdown_timeout=timedelta(seconds=1),
    )  # fmt: skip
    with running(worker) as thread:
        handler.has_begun(4)
        hold(other, queue, "k1")
        handler.go_on.set()
        wait_until(lambda: worker.counts.done == 3)
        worker.stop()
        thread.join(timeout=10)
        assert not thread.is_alive()
        other.execute("ROLLBACK")
    assert keys() == {"k1"}
