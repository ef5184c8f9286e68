"""The server commits, and its answer never arrives (Q27, Q33)."""

from __future__ import annotations

from delayed_queue import ScheduledMessage
from tests.support.answers import stored
from tests.support.operations import PAST


def test_q24_a_claim_whose_answer_was_swallowed_is_not_acknowledged_with_the_next_one(queue, proxy):
    """Leased and never delivered messages must come back when that lease expires."""
    queue.offer_batch([ScheduledMessage(key, None, PAST) for key in ("lost", "second")])
    proxy.swallow_answer("UPDATE 1")

    batch = queue.try_poll_many(1)

    assert [envelope.key for envelope in batch] == ["second"]
    assert batch.acknowledge() == 1
    assert stored(queue, "lost").state == "leased"
    assert stored(queue, "lost").lease_id != batch.lease_id
