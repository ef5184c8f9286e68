"""Notifications with their messages, for tests that start after the intake."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction

from delayed_queue import Envelope
from delayed_queue.models import Message
from delayed_queue.notifications.dispatching import Attempt
from delayed_queue.notifications.models import Channel, Notification, Priority, Status
from delayed_queue.notifications.services import Outgoing, fetch, queue_of, start_many
from delayed_queue.notifications.settling import Call, Settlement, deferring, settling

DEFAULTS: dict[str, Any] = {
    "tenant": "shop",
    "channel": Channel.EMAIL,
    "priority": Priority.NORMAL,
    "recipient": "ada@example.org",
    "recipient_hash": b"\x01" * 16,
    "subject": "Hello",
    "body": "Hello, Ada.",
}


@transaction.atomic
def enqueue(**values: Any) -> Notification:
    """Store a notification, due a minute ago, and offer its message."""
    send_at = values.pop("send_at", datetime.now(UTC) - timedelta(minutes=1))
    notification = Notification.objects.create(**DEFAULTS | values, send_at=send_at)
    queue = queue_of(notification.priority, notification.channel)
    queue.offer_or_update(str(notification.id), None, send_at)
    return notification


def lease(notification: Notification) -> Envelope:
    """Lease the one due message of the notification's queue."""
    envelope = queue_of(notification.priority, notification.channel).try_poll()
    assert envelope is not None
    return envelope


def started(**values: Any) -> tuple[Notification, Envelope, Outgoing]:
    """Store a notification, and lease and start it."""
    notification = enqueue(**values)
    envelope = lease(notification)
    begun = begin(envelope)
    assert begun is not None
    return notification, envelope, begun


def outgoing(**values: Any) -> Outgoing:
    """Return a notification in flight, without a row."""
    given = DEFAULTS | {
        "id": uuid.uuid4(), "lease_id": uuid.uuid4(), "category": "", "is_transactional": False,
        "html": "", "expires_at": None, "attempt": 1, "was_interrupted": False,
        "provider": "mail", "in_doubt": False,
    }  # fmt: skip
    return Outgoing(**given | values)


def lose_lease(envelope: Envelope) -> None:
    """Return the message as an expired lease would."""
    assert envelope.release()


class Held:
    """A message under the lease of a started notification, as its envelope names it."""

    def __init__(self, begun: Outgoing) -> None:
        self.key, self.lease_id = str(begun.id), str(begun.lease_id)
        found = Message.objects.filter(key=self.key).values_list("pk", flat=True).first()
        self.message_id = found or 0


def begin(envelope: Envelope) -> Outgoing | None:
    """Start its notification; if it must not be sent, settle it at once and return None."""
    found = start_many([envelope], {}).get(envelope.key)
    if found is None or found.verdict == Status.PROCESSING:
        return found
    settle(found, async_to_sync(Attempt(envelope, found, []).run)())
    return None


def settle(begun: Outgoing, settlement: Settlement) -> Status | None:
    """Settle an attempt as a worker does; return its status, None for a lost lease."""
    held: Any = Held(begun)
    settled = [(held, settlement)]
    row = Notification.objects.filter(pk=begun.id)
    had_lease = row.filter(lease_id=begun.lease_id).exists()
    is_deferred = settlement.status == Status.ENQUEUED
    fetch(*(deferring(settled) if is_deferred else settling(settled, [held])))
    status = Status(row.get().status)
    return status if had_lease and status != Status.PROCESSING else None


def finish(begun: Outgoing, calls: Sequence[Call]) -> Status | None:
    return settle(
        begun, Settlement(Status.SUCCESSFULLY_PROCESSED, calls, "", attempt=begun.attempt)
    )


def fail(begun: Outgoing, calls: Sequence[Call], outcome: str) -> Status | None:
    return settle(begun, Settlement(Status.FAILED, calls, outcome, attempt=begun.attempt))


def defer(begun: Outgoing, calls: Sequence[Call], outcome: str | None = None) -> Status | None:
    return settle(begun, Settlement(Status.ENQUEUED, calls, outcome, attempt=begun.attempt))
