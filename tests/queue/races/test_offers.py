"""Offers that race each other, and the deletion of their key (Q6, Q7)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import CONSUME, NO_FLOOR
from delayed_queue.queue.store.inspect import DROP, DROP_ALL
from delayed_queue.queue.store.settle import ACKNOWLEDGE, ACKNOWLEDGE_LEASE, DEAD_LETTER
from tests.support.answers import polled, stored
from tests.support.concurrency import at_most, calling, together, wait_until_blocked

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)


def test_q6_a_hundred_rapid_updates_from_ten_threads_lose_nothing(queue: DelayedQueue):
    """Every one is stored, and the one that stays is the last of its thread."""

    def update(thread: int) -> list[OfferOutcome]:
        return [queue.offer_or_update("key", [thread, turn], PAST) for turn in range(10)]

    answers = together([partial(update, thread) for thread in range(10)])

    assert Counter(chain.from_iterable(answers)) == {CREATED: 1, UPDATED: 99}
    assert stored(queue, "key").payload[1] == 9


def test_q38_debounced_offers_from_ten_threads_keep_the_first_window(queue: DelayedQueue):
    hour = timedelta(hours=1)
    queue.offer_or_update("key", "first", delay=hour, latest=2 * hour)
    started_at = stored(queue, "key").created_at

    def postpone(thread: int) -> list[OfferOutcome]:
        return [
            queue.offer_or_update("key", [thread, turn], delay=2 * hour, latest=2 * hour)
            for turn in range(5)
        ]

    answers = together([partial(postpone, thread) for thread in range(10)])

    assert Counter(chain.from_iterable(answers)) == {UPDATED: 50}
    message = stored(queue, "key")
    assert (message.created_at, message.scheduled_at) == (started_at, started_at + 2 * hour)


# Q7. Statements that delete the key, in a transaction held open during the next offer.
DELETIONS: Final = {
    "acknowledge": (ACKNOWLEDGE, ("ids", "lease_id")),
    "acknowledge a batch": (ACKNOWLEDGE_LEASE, ("lease_id",)),
    "drop": (DROP, ("key", "kind")),
    "drop all": (DROP_ALL, ("kind",)),
    "reject": (DEAD_LETTER, ("ids", "lease_id", "reason", "error", "fingerprint", "now")),
    "consume": (CONSUME, ("kind", "limit", "floor", "floor_id", "now")),
}


def offer_in_a_batch(queue: DelayedQueue, key: str, payload: Any, *, can_update: bool) -> Any:
    return queue.offer_batch([ScheduledMessage(key, payload, can_update=can_update)])[0]


# The second offer, and its outcome if the deletion is rolled back.
OFFERS: Final[dict[str, tuple[Callable[..., Any], OfferOutcome]]] = {
    "offer_or_update": (DelayedQueue.offer_or_update, UPDATED),
    "offer_if_not_exists": (DelayedQueue.offer_if_not_exists, IGNORED),
    "offer_batch": (partial(offer_in_a_batch, can_update=True), UPDATED),
    "offer_batch if not exists": (partial(offer_in_a_batch, can_update=False), IGNORED),
}


def delete(connection: psycopg.Connection[Any], queue: DelayedQueue, deletion: str) -> None:
    """Offer the key, lease it if necessary, and delete it on the connection."""
    statement, names = DELETIONS[deletion]
    queue.offer_or_update("key", "old", PAST)
    params: dict[str, Any] = {
        "key": "key", "kind": queue.kind, "reason": "no", "error": None, "limit": 1, "now": None,
        "floor": NO_FLOOR, "floor_id": 0, "fingerprint": "",
    }  # fmt: skip
    if "lease_id" in names:
        envelope = polled(queue)
        params |= {"ids": [envelope.message_id], "lease_id": envelope.lease_id}
    assert connection.execute(statement, {name: params[name] for name in names}).rowcount == 1


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize(
    ("deletion", "end"), [("drop", "ROLLBACK"), *((each, "COMMIT") for each in DELETIONS)]
)
def test_q7_an_offer_waits_for_a_deletion_of_its_key_and_no_longer(
    queue, other, admin, deletion, offer, end
):
    """CREATED, or the outcome without the deletion if that is rolled back."""
    call, otherwise = OFFERS[offer]
    other.execute("BEGIN")
    delete(other, queue, deletion)

    with calling(lambda: call(queue, "key", "new")) as offering:
        wait_until_blocked(admin, offering)
        with at_most(5.0):
            other.execute(end)
            outcome = offering.answer()

    assert outcome is (CREATED if end == "COMMIT" else otherwise)
    found = stored(queue, "key")
    assert found.payload == ("old" if outcome is IGNORED else "new")
    assert outcome is IGNORED or (found.attempts, found.lease_id) == (0, None)


def produce(queue: DelayedQueue, producer: int) -> Counter[OfferOutcome]:
    """Offer sixty different payloads as fast as possible."""
    found: Counter[OfferOutcome] = Counter()
    for turn in range(60):
        with at_most(5.0):
            found[queue.offer_or_update("key", [producer, turn], PAST)] += 1
    return found


def acknowledge(queue: DelayedQueue) -> bool:
    envelope = queue.try_poll()
    return envelope is not None and envelope.acknowledge()


def consume(queue: DelayedQueue) -> bool:
    with queue.consume() as envelope:
        return envelope is not None


def drop(queue: DelayedQueue) -> bool:
    return queue.drop_message("key")


def test_q7_offers_and_deletions_of_a_key_that_race_all_the_time_account_for_each_other(queue):
    """As many were created as were deleted, plus the one that is left."""
    producers = [partial(produce, queue, producer) for producer in range(3)]
    are_over = threading.Event()

    def produce_together() -> Counter[OfferOutcome]:
        try:
            return sum(together(producers), Counter())
        finally:
            are_over.set()

    def delete_all_the_time(deletion: Callable[[DelayedQueue], bool]) -> int:
        deleted = 0
        while not are_over.is_set():
            deleted += deletion(queue)
        return deleted

    deleters: list[Callable[[], Any]] = [
        partial(delete_all_the_time, each) for each in (acknowledge, consume, drop)
    ]
    answers: list[Any] = together([produce_together, *deleters])
    found, deleted = answers[0], answers[1:]

    assert found[CREATED] == sum(deleted) + Message.objects.count()
    assert found.total() == 180
