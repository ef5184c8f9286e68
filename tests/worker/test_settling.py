"""A worker's counters of the answers to its settlements."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.settling import Counts, Settler
from tests.support.operations import PAST
from tests.support.running import handler_of, worker_with

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


def test_one_that_came_back_meanwhile_is_done_once_and_its_first_lease_is_lost() -> None:
    """After an operator released it, the same worker may handle it again."""
    queue = DelayedQueue("orders")
    consumer = worker_with(handler_of("orders", lambda envelope: None)).consumers[0]
    queue.offer_or_update("key", None, PAST)
    claims = []
    for _ in range(2):
        batch = queue.try_poll_many(1)
        claims.append(Claim(consumer, batch.lease_id, list(batch), 0.0))
        claims[-1].done.append(batch[0].message_id)
        Message.objects.update(scheduled_at=PAST)
    counts = Counts()
    (settlement,) = Settler(None, counts).settlements(claims)
    settlement.note([(claims[0].done[0],)])
    assert counts == Counts(done=1, lost=1)
