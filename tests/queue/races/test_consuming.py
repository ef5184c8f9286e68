"""Many consumers of one queue, each in one transaction with the deletion (Q30)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from django.contrib.auth.models import Group

from delayed_queue import DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from tests.support.answers import present
from tests.support.concurrency import together

ATTEMPTS: Final = 40


class Poison(Exception):
    """The handler's exception, with its attempt."""


def consume_until_empty(queue: DelayedQueue) -> list[str]:
    """Write the key of each message to another table; its names are unique."""
    keys: list[str] = []
    while True:
        with queue.consume() as envelope:
            if envelope is None:
                return keys
            Group.objects.create(name=envelope.key)
        keys.append(envelope.key)


def test_q30_the_effects_of_every_message_happen_once(queue: DelayedQueue):
    """Two hundred messages, eight threads."""
    expected = [f"key-{each:03}" for each in range(200)]
    queue.offer_batch([ScheduledMessage(key, None) for key in expected])

    answers = together([lambda: consume_until_empty(queue)] * 8)

    assert Counter(key for answer in answers for key in answer) == Counter(expected)
    assert sorted(Group.objects.values_list("name", flat=True)) == expected
    assert not Message.objects.exists()


def fail(envelope: Envelope) -> None:
    """Write to another table, and raise."""
    Group.objects.create(name=f"attempt {envelope.attempt}")
    raise Poison(envelope.attempt)


def fail_until_dead(queue: DelayedQueue) -> list[int]:
    """Consume and fail until the message is dead; return the attempts that raised."""
    attempts: list[int] = []
    while not DeadLetter.objects.exists():
        try:
            with queue.consume() as envelope:
                if envelope is not None:
                    fail(envelope)
        except Poison as error:
            attempts.append(error.args[0])
    return attempts


def test_every_failure_of_a_contended_message_is_counted_once(transactional_db: None):
    """Q28, Q30: six consumers; the effects of all failed attempts are rolled back."""
    policy = RetryPolicy((timedelta(0),), max_attempts=ATTEMPTS)
    queue = DelayedQueue("races", retry_policy=policy)
    queue.offer_or_update("poison", None)

    answers = together([lambda: fail_until_dead(queue)] * 6)

    attempts = sorted(attempt for answer in answers for attempt in answer)
    assert attempts == list(range(1, ATTEMPTS + 1))
    letter = DeadLetter.objects.get()
    assert letter.attempts == ATTEMPTS
    assert "Poison: 1\n" in present(letter.first_error)
    assert f"Poison: {ATTEMPTS}\n" in present(letter.last_error)
    assert not Group.objects.exists()
    assert not Message.objects.exists()
