"""Order of queues without a named one: the most overdue first, then in turns."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.running import handler_of, registry_with

pytestmark = pytest.mark.django_db(transaction=True)


def offer(queue: str, count: int, *, late: timedelta) -> None:
    at = timezone.now() - late
    DelayedQueue(queue).offer_batch(ScheduledMessage(f"k{n}", n, at) for n in range(count))


def order(*names: str, transactional: bool = False, **options: Any) -> list[str]:
    """Drain queues with handlers registered in this order; return the order of handling."""
    seen: list[str] = []

    def handle(envelope: Envelope) -> None:
        seen.append(envelope.queue)

    handlers = [handler_of(name, handle, transactional=transactional) for name in names]
    chosen = WorkerOptions(burst=True, concurrency=1, cron=False, **options)
    Worker(chosen, registry_with(*handlers)).run()
    return seen


@pytest.mark.parametrize("transactional", [False, True])
def test_what_is_an_hour_late_does_not_wait_behind_a_long_queue(transactional: bool) -> None:
    offer("a_first", 2000, late=timedelta(seconds=5))
    offer("b_second", 3, late=timedelta(hours=1))
    seen = order("a_first", "b_second", transactional=transactional, batch_size=10)
    assert seen[0] == "b_second"
    assert seen[:60].count("b_second") == 3
    assert len(seen) == 2003


def test_of_two_long_queues_neither_waits_for_the_end_of_the_other() -> None:
    offer("older", 300, late=timedelta(hours=1))
    offer("newer", 300, late=timedelta(seconds=5))
    seen = order("newer", "older", batch_size=10)
    assert seen[0] == "older"
    # Claims of ten and the messages ahead: turns, not one queue and then the other.
    assert max(len(list(run)) for _, run in groupby(seen[:500])) <= 60


def test_named_queues_are_served_in_the_order_of_their_names() -> None:
    offer("high", 100, late=timedelta(seconds=5))
    offer("low", 3, late=timedelta(hours=1))
    assert order("low", "high", queues=("high", "low")) == ["high"] * 100 + ["low"] * 3
