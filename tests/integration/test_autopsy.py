"""What becomes of the messages of a process that died."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.workers.autopsy import Remains, give_back
from delayed_queue.workers.board import InHand

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = ("a", "b", "c", "d")


@pytest.fixture
def queue() -> DelayedQueue:
    """A queue of which one process has leased four messages."""
    queue = DelayedQueue("dead")
    queue.offer_batch(ScheduledMessage(key, 1) for key in KEYS)
    return queue


def row(key: str) -> dict[str, Any]:
    return dict(Message.objects.values("id", "attempts", "lease_id", "scheduled_at").get(key=key))


def is_due(key: str) -> bool:
    return bool(row(key)["scheduled_at"] <= timezone.now())


def in_hand(key: str, *, suspect: bool = False, transactional: bool = False) -> InHand:
    return InHand(row(key)["id"], suspect, transactional)


def test_in_hand_is_expired_and_counted_and_the_rest_released(queue: DelayedQueue) -> None:
    lease = queue.try_poll_many(4).lease_id
    give_back(Remains((lease,), (in_hand("b"),)), "default")
    assert all(is_due(key) for key in KEYS)
    assert (row("b")["attempts"], row("b")["lease_id"]) == (1, lease)
    assert {(row(key)["attempts"], row(key)["lease_id"]) for key in "acd"} == {(0, None)}


def test_beside_a_suspect_what_was_in_hand_is_not_counted(queue: DelayedQueue) -> None:
    lease = queue.try_poll_many(4).lease_id
    remains = Remains((lease,), (in_hand("a"), in_hand("b", suspect=True)))
    give_back(remains, "default")
    assert (row("b")["attempts"], row("b")["lease_id"]) == (1, lease)
    assert {(row(key)["attempts"], row(key)["lease_id"]) for key in "acd"} == {(0, None)}


def test_stale_and_foreign_leases_are_left_alone(queue: DelayedQueue) -> None:
    """Its messages in hand were leased by another by now, or updated."""
    ours = queue.try_poll_many(3).lease_id
    theirs = queue.try_poll_many(1).lease_id
    remains = Remains((ours,), tuple(in_hand(key) for key in "ad"))
    queue.offer_or_update("a", "new")
    before = row("a"), row("d")
    give_back(remains, "default")
    assert (row("a"), row("d")) == before
    assert row("d")["lease_id"] == theirs
    assert not is_due("d")


def test_a_delivery_in_a_transaction_is_counted(queue: DelayedQueue) -> None:
    give_back(Remains((), (in_hand("a", transactional=True),)), "default")
    assert row("a")["attempts"] == 1
    assert row("a")["lease_id"]
    assert is_due("a")
    assert {(row(key)["attempts"], row(key)["lease_id"]) for key in "bcd"} == {(0, None)}


def test_a_delivery_in_a_transaction_is_not_counted_against_a_new_lease(
    queue: DelayedQueue,
) -> None:
    lease = queue.try_poll_many(4).lease_id
    give_back(Remains((), (in_hand("a", transactional=True),)), "default")
    assert (row("a")["attempts"], row("a")["lease_id"]) == (1, lease)
    assert not is_due("a")


def test_twice_is_harmless(queue: DelayedQueue) -> None:
    lease = queue.try_poll_many(4).lease_id
    hands = (in_hand("a"), in_hand("b", transactional=True))
    remains = Remains((lease,), hands)
    give_back(remains, "default")
    again = queue.try_poll_many(2)
    before = [row(key) for key in KEYS]
    give_back(remains.leased(), "default")
    after = [row(key) for key in KEYS]
    held = {envelope.key for envelope in again}
    for key, was, now in zip(KEYS, before, after, strict=True):
        assert (was["attempts"], was["lease_id"]) == (now["attempts"], now["lease_id"])
        assert key not in held or was == now
