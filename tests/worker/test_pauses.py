"""Workers and paused queues (W12): workers stop at once, and wake on a resume."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.messages import MessageState
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.processes import wait_until
from tests.support.running import registry_of, running
from tests.worker.test_worker import burst

pytestmark = pytest.mark.django_db(transaction=True)

# Without a wakeup a worker would oversleep by that much.
MINUTE = timedelta(minutes=1)


def test_w12_a_burst_leaves_a_paused_queue_alone():
    queue = DelayedQueue("ledger")
    queue.offer_batch(ScheduledMessage(f"k{n}", n) for n in range(3))
    queue.pause()
    assert burst("ledger") == Counts()
    queue.resume()
    assert burst("ledger") == Counts(done=3)


def test_w12_what_is_in_flight_is_finished_and_nothing_more_is_begun():
    """A worker that handles "after" has polled "orders" before, which comes first."""
    orders, after = DelayedQueue("orders"), DelayedQueue("after")
    begun, may_end = threading.Event(), threading.Event()
    seen: list[str] = []

    def handle(envelope: Envelope) -> None:
        seen.append(envelope.key)
        begun.set()
        assert may_end.wait(20)

    orders.offer_or_update("first", 1)
    options = WorkerOptions(
        queues=("orders", "after"), poll_interval=MINUTE, concurrency=1, batch_size=1, cron=False
    )
    worker = Worker(options, registry_of(orders=handle, after=handle))
    with running(worker):
        assert begun.wait(20)
        orders.pause()
        orders.offer_or_update("second", 1)
        after.offer_or_update("third", 1)
        may_end.set()
        wait_until(lambda: worker.counts.done == 2)
        stored = orders.read("second")
        assert stored is not None
        assert (stored.state, stored.attempts) == (MessageState.DUE, 0)
        assert seen == ["first", "third"]

        orders.resume()
        wait_until(lambda: not Message.objects.exists())
    assert seen == ["first", "third", "second"]
