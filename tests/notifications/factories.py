"""Notifications with their messages, for tests that begin after the intake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from delayed_queue import Envelope
from delayed_queue.notifications.models import Channel, Notification, Priority, Source
from delayed_queue.notifications.services import queue_of

DEFAULTS: dict[str, Any] = {
    "tenant": "shop",
    "source": Source.REST,
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
    """Lease the one message of the notification's queue that is due."""
    envelope = queue_of(notification.priority, notification.channel).try_poll()
    assert envelope is not None
    return envelope


def lose_lease(envelope: Envelope) -> None:
    """Give the message back as the end of its lease would."""
    assert envelope.release()
