"""Holders of a lease that race a consumer that takes it over (Q24, Q25, Q26)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message
from delayed_queue.testing import ManualClock
from tests.support.answers import polled
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.rivals import drop, lease_again, update

LEASE: Final = timedelta(minutes=5)
# Operations on a lease. Once the lease is lost, each answers False and changes nothing.
ACTIONS: Final[dict[str, Callable[[Envelope], bool]]] = {
    "acknowledge": Envelope.acknowledge,
    "release": lambda envelope: envelope.release(timedelta(minutes=1), "failed"),
    "extend": lambda envelope: envelope.extend(timedelta(days=1)),
    "reject": lambda envelope: envelope.reject("no"),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def timed(transactional_db: None, clock: ManualClock) -> DelayedQueue:
    """A queue on that clock."""
    return DelayedQueue("races", clock=clock, lease_duration=LEASE)


@pytest.fixture
def late(timed: DelayedQueue, clock: ManualClock) -> Envelope:
    """An envelope whose lease has expired, though no other consumer has leased the message yet."""
    timed.offer_or_update("key", "payload")
    envelope = polled(timed)
    clock.advance(LEASE + timedelta(seconds=1))
    return envelope


def row(key: str = "key") -> dict[str, Any]:
    return dict(Message.objects.filter(key=key).values().get())


def update_at(other: psycopg.Connection[Any], timed: DelayedQueue, now: int) -> None:
    update(other, timed, now=now)


# A transaction of another session, its end, the answer to the late action, and what is left: the
# lease, the attempts and the last error of the message.
THEFTS: Final = {
    "leased again": (lease_again, "COMMIT", False, [("theirs", 2, None)]),
    "updated": (update_at, "COMMIT", False, [(None, 0, None)]),
    "dropped": (lambda other, timed, now: drop(other, timed), "COMMIT", False, []),
    "leased again, and rolled back": (lease_again, "ROLLBACK", True, None),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("theft", THEFTS)
def test_q25_q31_a_late_action_waits_for_a_theft_and_follows_its_outcome(
    timed, clock, other, admin, late, theft, action
):
    """The lease has expired: until the theft commits, no other consumer has the message."""
    steal, end, succeeds, left = THEFTS[theft]
    other.execute("BEGIN")
    steal(other, timed, to_milliseconds(clock()))

    with calling(lambda: ACTIONS[action](late)) as acting:
        wait_until_blocked(admin, acting)
        other.execute(end)
        assert acting.answer() is succeeds

    if left is not None:
        assert list(Message.objects.values_list("lease_id", "attempts", "last_error")) == left
        assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("action", ["acknowledge", "release", "reject"])
def test_q25_of_many_threads_that_end_a_lease_exactly_one_succeeds(queue, action):
    """Twenty times over."""
    queue.offer_batch([ScheduledMessage(f"key-{each}", None) for each in range(20)])

    batch = queue.try_poll_many(20)
    assert len(batch) == 20
    for envelope in batch:
        answers = together([partial(ACTIONS[action], envelope)] * 4)
        assert sorted(answers) == [False, False, False, True]


def test_q24_a_member_that_is_being_updated_survives_the_acknowledgement_of_its_batch(
    timed, clock, other, admin
):
    timed.offer_batch([ScheduledMessage(key, "old") for key in ("a", "key", "z")])
    batch = timed.try_poll_many(3)
    other.execute("BEGIN")
    update_at(other, timed, to_milliseconds(clock()))

    with calling(batch.acknowledge) as acknowledging:
        wait_until_blocked(admin, acknowledging)
        other.execute("COMMIT")
        assert acknowledging.answer() == 2

    left = polled(timed)
    assert (left.key, left.payload, left.attempt) == ("key", "new", 1)
    assert Message.objects.count() == 1


def test_a_member_that_is_leased_again_survives_the_acknowledgement_of_its_batch(
    timed, clock, other, admin
):
    """Q24, Q25."""
    timed.offer_batch([ScheduledMessage(key, "old") for key in ("first", "second")])
    batch = timed.try_poll_many(2)
    clock.advance(LEASE + timedelta(seconds=1))
    other.execute("BEGIN")
    lease_again(other, timed, to_milliseconds(clock()))

    with calling(batch.acknowledge) as acknowledging:
        wait_until_blocked(admin, acknowledging)
        other.execute("COMMIT")
        assert acknowledging.answer() == 1

    assert row("first")["lease_id"] == "theirs"
    assert Message.objects.count() == 1
