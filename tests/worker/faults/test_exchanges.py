"""A worker whose round trip breaks in the middle (W7)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.running import handler_of, running, worker_with

HOUR = timedelta(hours=1)


class Calls:
    """A handler that records its calls and waits for its release."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.go_on = threading.Event()

    def __call__(self, envelope: Envelope) -> None:
        self.attempts.append(envelope.attempt)
        assert self.go_on.wait(20)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def worker_of(calls: Calls, **options: object) -> Worker:
    return worker_with(handler_of("faults", calls), **{"lease": HOUR, **options})


def test_an_acknowledgement_that_never_arrived_is_made_again(queue, proxy, calls):
    queue.offer_or_update("key", None, PAST)
    worker = worker_of(calls)
    with running(worker):
        wait_until(lambda: calls.attempts)
        proxy.refuse()
        calls.go_on.set()
        refused = proxy.accepted
        proxy.accept()
        wait_until(lambda: worker.counts.total)
    assert proxy.accepted > refused
    connection.close()  # it broke as well
    assert worker.counts == Counts(done=1)
    assert calls.attempts == [1]
    assert not Message.objects.exists()


def test_what_is_lost_besides_an_outage_is_counted_as_lost(queue, proxy, calls):
    """An outage between two round trips leaves no outcome in doubt."""
    queue.offer_or_update("key", None, PAST)
    worker = worker_of(calls)
    with running(worker):
        wait_until(lambda: calls.attempts)
        proxy.cut()
        queue.offer_or_update("later", None, PAST)
        # Then the claim loop has a new connection.
        wait_until(lambda: len(calls.attempts) == 2)
        queue.drop_message("key")
        calls.go_on.set()
        wait_until(lambda: worker.counts.total == 2)
    assert worker.counts == Counts(done=1, lost=1)


def test_what_a_claim_leased_whose_answer_was_swallowed_comes_back_at_once(queue, proxy, calls):
    """At once, before its lease of an hour ends, and as a first attempt: no handler saw it."""
    calls.go_on.set()
    worker = worker_of(calls)
    with running(worker):
        wait_until(lambda: "UPDATE 0" in proxy.answers)
        proxy.swallow_answer("UPDATE 1")
        queue.offer_or_update("key", None, PAST)
        wait_until(lambda: worker.counts.total)
    assert proxy.swallowed_tag is None
    assert calls.attempts == [1]
    assert worker.counts == Counts(done=1)
    assert not Message.objects.exists()


def test_what_was_given_back_by_an_exchange_whose_answer_was_swallowed_is_not_lost(
    queue: DelayedQueue, proxy: Proxy, calls: Calls
):
    """Leased ahead of a slow message: no attempt counted, and handled once."""
    calls.go_on.set()
    worker = worker_of(calls, concurrency=1, batch_size=10)
    with running(worker):
        queue.offer_batch([ScheduledMessage(f"quick{each}", None, PAST) for each in range(20)])
        wait_until(lambda: worker.counts.done == 20)
        calls.go_on.clear()
        proxy.swallow_answer("UPDATE 9")
        queue.offer_batch([ScheduledMessage(f"k{each}", None, PAST) for each in range(10)])
        wait_until(lambda: proxy.swallowed_tag is None)
        wait_until(lambda: Message.objects.filter(lease_id=None, attempts=0).count() == 9)
        calls.go_on.set()
        wait_until(lambda: not Message.objects.exists())
    assert worker.counts == Counts(done=30)
    assert calls.attempts == [1] * 30
