"""Database round trips of a worker: one per iteration, for all its writes (W2)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.settling import Counts
from tests.support.operations import PAST
from tests.support.proxy import Proxy
from tests.support.running import handler_of, worker_with

# Connect two connections for two claims at a time, check the schema, LISTEN, find the queue empty,
# and disconnect.
AROUND = 50


def fail(envelope: Envelope) -> None:
    raise ValueError("asked to fail")


def offer(queue: DelayedQueue, count: int) -> None:
    queue.offer_batch([ScheduledMessage(f"k{n}", None, PAST) for n in range(count)])


def rounds_of(proxy: Proxy, before: int) -> int:
    """Return the round trips since ``before``: the proxy counts the server's "ready" replies."""
    return proxy.rounds - before


def test_w2_a_turn_is_one_round_trip(queue: DelayedQueue, proxy: Proxy):
    offer(queue, 3000)
    worker = worker_with(
        handler_of("faults", lambda envelope: None), burst=True, concurrency=1, batch_size=100
    )
    before = proxy.rounds
    assert worker.run() == Counts(done=3000)
    # Thirty claims, and the acknowledgements with the next ones.
    assert rounds_of(proxy, before) <= 2 * 30 + AROUND
    assert not Message.objects.exists()


@pytest.mark.parametrize("policy", ["1h", ""], ids=["retried", "dead-lettered"])
def test_w2_failures_are_written_many_in_a_round_trip(queue, proxy, policy):
    offer(queue, 250)
    retry = RetryPolicy.ladder(policy) if policy else RetryPolicy.never()
    worker = worker_with(
        handler_of("faults", fail, retry=retry), burst=True, concurrency=4, batch_size=100
    )
    before = proxy.rounds
    assert worker.run().total == 250
    assert rounds_of(proxy, before) <= 30 + AROUND
    assert Message.objects.filter(attempts=1, lease_id=None).count() == (250 if policy else 0)
    assert DeadLetter.objects.count() == (0 if policy else 250)
