"""Statements of workers and supervisors that race a consumer that takes over the message."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg
import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.db.sql import Step
from delayed_queue.db.statements import run
from delayed_queue.models import Message
from delayed_queue.queue.store.settle import (
    COUNT_CRASH,
    RELEASE_LEASES,
    acknowledge_leases_step,
    acknowledge_members_step,
    release_step,
    return_leases_step,
)
from delayed_queue.spark.store.streaming import COUNT_DELIVERY
from delayed_queue.tasks.store import Attempt, acknowledging
from tests.support.answers import polled
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.rivals import drop, lease_again, update

HOUR_MS: Final = 3_600_000


def releasing_leases(lease_id: str, message_id: int) -> Step:
    return RELEASE_LEASES, {"lease_ids": [lease_id], "ids": [], "now": None}


def giving_back_begun(lease_id: str, message_id: int) -> Step:
    statement, params = return_leases_step([lease_id])
    return statement, params | {"begun": [message_id]}


def counting_crash(lease_id: str, message_id: int) -> Step:
    params = {
        "lease_id": "crashed", "ids": [message_id], "count": 1, "stays": False, "error": "signal 9",
        "now": None,
    }  # fmt: skip
    return COUNT_CRASH, params


def counting_delivery(lease_id: str, message_id: int) -> Step:
    return COUNT_DELIVERY, {"lease_id": lease_id, "id": message_id}


STEPS: Final[dict[str, Callable[[str, int], Step]]] = {
    "ACKNOWLEDGE_LEASES": lambda lease_id, message_id: acknowledge_leases_step([lease_id]),
    "ACKNOWLEDGE_MEMBERS": lambda lease_id, message_id: acknowledge_members_step(
        [lease_id], [message_id]
    ),
    "ACKNOWLEDGE_TASKS": lambda lease_id, message_id: acknowledging(
        [message_id],
        [lease_id],
        [Attempt(message_id, lease_id, str(uuid4()), ("a.b", "default"), time.monotonic())],
        "[]",
    ),
    # A release of messages that no handler has started.
    "RELEASE": lambda lease_id, message_id: release_step(lease_id, [message_id], None, 1, None),
    "RELEASE_LEASES": releasing_leases,
    "GIVE_BACK": lambda lease_id, message_id: return_leases_step([lease_id]),
    "GIVE_BACK of begun": giving_back_begun,
    "COUNT_CRASH": counting_crash,
    "COUNT_DELIVERY": counting_delivery,
}
Theft = Callable[[psycopg.Connection[Any], DelayedQueue], None]


def lease_an_hour_later(connection: psycopg.Connection[Any], queue: DelayedQueue) -> None:
    lease_again(connection, queue, int(timezone.now().timestamp() * 1000) + HOUR_MS)


def postpone(connection: psycopg.Connection[Any], queue: DelayedQueue) -> None:
    update(connection, queue, delay=HOUR_MS)


THEFTS: Final[list[Theft]] = [lease_an_hour_later, postpone, drop]


def rows() -> list[dict[str, Any]]:
    return [dict(row) for row in Message.objects.order_by("key").values()]


@pytest.fixture
def step(queue: DelayedQueue, name: str) -> Step:
    """The named statement, for a leased message; after a crash, for a due one."""
    queue.offer_or_update("key", "old")
    if name == "COUNT_CRASH":
        return STEPS[name]("", Message.objects.get().id)
    envelope = polled(queue)
    return STEPS[name](envelope.lease_id, envelope.message_id)


def ran(step: Step) -> int:
    return len(run("default", [step])[0])


@pytest.mark.parametrize("theft", THEFTS, ids=lambda theft: theft.__name__)
@pytest.mark.parametrize("name", STEPS)
def test_what_is_being_taken_is_left_alone(queue, other, admin, step, theft):
    """It waits for the other transaction, and returns according to its outcome."""
    other.execute("BEGIN")
    theft(other, queue)
    with calling(lambda: ran(step)) as call:
        wait_until_blocked(admin, call)
        other.execute("COMMIT")
        before = rows()
        assert call.answer() == 0
    assert rows() == before


@pytest.mark.parametrize("name", STEPS)
def test_it_takes_effect_when_the_theft_is_rolled_back(queue, other, admin, step):
    other.execute("BEGIN")
    postpone(other, queue)
    with calling(lambda: ran(step)) as call:
        wait_until_blocked(admin, call)
        other.execute("ROLLBACK")
        assert call.answer() == 1


@pytest.mark.parametrize("name", ["ACKNOWLEDGE_LEASES", "RELEASE_LEASES", "GIVE_BACK"])
def test_of_a_whole_lease_only_what_was_taken_is_left_out(queue, other, admin, name):
    queue.offer_batch([ScheduledMessage(key, "old") for key in ("a", "key", "z")])
    lease_id = queue.try_poll_many(3).lease_id
    other.execute("BEGIN")
    postpone(other, queue)
    with calling(lambda: ran(STEPS[name](lease_id, 0))) as call:
        wait_until_blocked(admin, call)
        other.execute("COMMIT")
        assert call.answer() == 2
    updated = Message.objects.get(key="key")
    assert (bytes(updated.payload), updated.attempts, updated.lease_id) == (b'"new"', 0, None)
    assert updated.scheduled_at > timezone.now() + timedelta(minutes=50)


@pytest.mark.parametrize("name", STEPS)
def test_of_several_at_once_one_takes_effect(queue: DelayedQueue, name: str):
    """A supervisor's second check, and a worker that was still alive."""
    for _ in range(5):
        queue.offer_or_update("key", "old")
        message_id = Message.objects.get().id
        lease_id = "" if name == "COUNT_CRASH" else polled(queue).lease_id
        answers = together([lambda: ran(STEPS[name](lease_id, message_id))] * 4)  # noqa: B023
        attempts = set(Message.objects.values_list("attempts", flat=True))
        if name == "COUNT_CRASH":
            # One that started before another ended finds the message not yet due: no loss.
            assert sum(answers) >= 1
            assert attempts == {sum(answers)}
        elif name == "COUNT_DELIVERY":
            # Each counts as a delivery, after the one by the lease.
            assert (answers, attempts) == ([1] * 4, {5})
        else:
            assert sorted(answers) == [0, 0, 0, 1]
            assert attempts <= {0}
        Message.objects.all().delete()
