"""Batch offers that race single offers and each other (Q12, Q13)."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pytest
from django.db import transaction

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.queue.store.offer import OFFER_BATCH_OR_UPDATE
from tests.support.answers import stored
from tests.support.concurrency import (
    Call,
    calling,
    raw_connection,
    running,
    together,
    wait_until_blocked,
)
from tests.support.rivals import insert

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
SIZE: Final = 500
HELD: Final = 250


def batch(*, can_update: bool = True, payload: str = "batch") -> list[ScheduledMessage]:
    return [
        ScheduledMessage(f"key-{each:03}", payload, can_update=can_update) for each in range(SIZE)
    ]


@pytest.mark.parametrize(
    ("can_update", "end", "expected"),
    [
        (True, "COMMIT", UPDATED),
        (False, "COMMIT", IGNORED),
        (True, "ROLLBACK", CREATED),
        (False, "ROLLBACK", CREATED),
    ],
)
def test_q13_a_key_inserted_meanwhile_costs_only_that_key(
    queue, other, admin, can_update, end, expected
):
    other.execute("BEGIN")
    insert(other, queue, f"key-{HELD:03}", payload=b'"held"', schedule_at=0)

    with calling(lambda: queue.offer_batch(batch(can_update=can_update))) as offering:
        wait_until_blocked(admin, offering)
        other.execute(end)
        outcomes = offering.answer()

    assert outcomes[HELD] is expected
    assert outcomes[:HELD] + outcomes[HELD + 1 :] == [CREATED] * (SIZE - 1)
    assert Message.objects.count() == SIZE
    assert stored(queue, f"key-{HELD:03}").payload == ("held" if expected is IGNORED else "batch")


def test_racing_batches_in_opposite_orders_create_every_key_once(queue: DelayedQueue):
    """Q12, Q13: in separate transactions, which are not retried after a deadlock."""

    def offer(thread: int) -> list[OfferOutcome]:
        messages = batch(payload=f"batch {thread}")
        ordered = messages if thread % 2 else messages[::-1]
        with transaction.atomic():
            outcomes = queue.offer_batch(ordered)
        return outcomes if thread % 2 else outcomes[::-1]

    answers = together([partial(offer, thread) for thread in range(6)])

    for outcomes in zip(*answers, strict=True):
        assert Counter(outcomes) == {CREATED: 1, UPDATED: 5}
    assert Message.objects.values("payload").distinct().count() == 1


def test_racing_batches_if_not_exists_create_every_key_once(queue: DelayedQueue):
    """Q12, Q13."""
    answers = together([lambda: queue.offer_batch(batch(can_update=False))] * 6)

    for outcomes in zip(*answers, strict=True):
        assert Counter(outcomes) == {CREATED: 1, IGNORED: 5}


def test_q13_two_batches_with_the_same_keys_in_opposite_orders_take_turns(queue, other, admin):
    """The first locks a and waits for b; the second locks nothing and waits for a."""
    with ExitStack() as stack:
        calls: list[Call[list[Any]]] = []
        other.execute("BEGIN")
        insert(other, queue, "b", payload=b'"held"', schedule_at=0)
        for keys in (["a", "b", "c"], ["c", "b", "a"]):
            connection = stack.enter_context(raw_connection())
            connection.execute("SET deadlock_timeout = '20ms'")
            params = {
                "kind": queue.kind, "keys": keys, "payloads": [b"1"] * 3, "schedules": [None] * 3,
                "headers": [None] * 3, "groups": [None] * 3, "expiries": [None] * 3, "now": None,
            }  # fmt: skip
            calls.append(stack.enter_context(running(connection, OFFER_BATCH_OR_UPDATE, params)))
            wait_until_blocked(admin, calls[-1])
        other.execute("ROLLBACK")

        first, second = calls
        assert sorted(first.answer()) == [("a", True), ("b", True), ("c", True)]
        # With the same payload, but due at another instant.
        assert sorted(second.answer()) in ([], [("a", False), ("b", False), ("c", False)])
