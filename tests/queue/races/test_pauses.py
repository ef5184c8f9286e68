"""Pausing against claims, and operators against each other (W12)."""

from __future__ import annotations

from delayed_queue import DelayedQueue
from tests.support.answers import polled
from tests.support.concurrency import together

INSERT = """INSERT INTO delayed_queue_limit ("pKind", "pausedAt") VALUES (%s, 0)"""


def test_w12_of_ten_operators_one_pauses_and_one_resumes(queue: DelayedQueue):
    assert sorted(together([queue.pause] * 10)) == [False] * 9 + [True]
    assert sorted(together([queue.resume] * 10)) == [False] * 9 + [True]


def test_w12_a_claim_does_not_wait_for_an_operator_who_has_not_committed(impatient, other):
    impatient.offer_or_update("a", 1)
    impatient.offer_or_update("b", 1)
    with other.transaction():
        other.execute(INSERT, [impatient.kind])
        assert polled(impatient).key == "a"

    assert impatient.try_poll() is None


def test_w12_an_operator_does_not_wait_for_handlers(impatient, other):
    """A consumed message is finished; its queue is paused at once."""
    impatient.offer_or_update("a", 1)
    with impatient.consume() as envelope:
        assert envelope is not None
        assert other.execute(INSERT, [impatient.kind]).rowcount == 1
    assert not impatient.contains_message("a")
