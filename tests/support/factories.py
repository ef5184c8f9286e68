"""Rows of the queue's tables, for tests that look at them rather than make them happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from factory.declarations import LazyFunction, SelfAttribute, Sequence, Trait
from factory.django import DjangoModelFactory

from delayed_queue.models import DeadLetter, Message


def from_now(**span: float) -> datetime:
    return datetime.now(UTC) + timedelta(**span)


class MessageFactory(DjangoModelFactory[Message]):
    """A message that has been due for a minute."""

    class Meta:
        model = Message

    kind = "orders|json"
    key = Sequence("order-{}".format)
    payload = b'{"total":12}'
    created_at = LazyFunction(lambda: from_now(minutes=-10))
    scheduled_at = LazyFunction(lambda: from_now(minutes=-1))
    scheduled_at_initially = SelfAttribute("scheduled_at")
    attempts = 0

    class Params:
        due = Trait(scheduled_at=LazyFunction(lambda: from_now(minutes=-1)))
        scheduled = Trait(scheduled_at=LazyFunction(lambda: from_now(hours=1)))
        leased = Trait(
            scheduled_at=LazyFunction(lambda: from_now(minutes=5)),
            scheduled_at_initially=LazyFunction(lambda: from_now(minutes=-1)),
            due_at=SelfAttribute("scheduled_at_initially"),
            lease_id=LazyFunction(lambda: str(uuid4())),
            attempts=1,
        )
        expired = Trait(leased=True, scheduled_at=LazyFunction(lambda: from_now(seconds=-30)))


class DeadLetterFactory(DjangoModelFactory[DeadLetter]):
    """A letter that died five minutes ago, of the same error from first to last."""

    class Meta:
        model = DeadLetter

    kind = "orders|json"
    # Never the key of a message of MessageFactory: a letter whose key is in use again stays dead.
    key = Sequence("dead-order-{}".format)
    payload = b'{"total":12}'
    attempts = 5
    reason = "attempts exhausted: ValueError"
    first_error = "Traceback (most recent call last):\nValueError: no such order"
    last_error = SelfAttribute("first_error")
    scheduled_at_initially = LazyFunction(lambda: from_now(hours=-1))
    created_at = LazyFunction(lambda: from_now(hours=-2))
    died_at = LazyFunction(lambda: from_now(minutes=-5))
