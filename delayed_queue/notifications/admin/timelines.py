"""The timeline of a notification: accepted, each call of a provider, its end, what is to come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.messages import MessageState
from delayed_queue.notifications.models import OPEN_STATUSES, Delivery, Notification, Status
from delayed_queue.notifications.services import queue_of

_CLASSES: Final = {
    "sent": "dq-due",
    "refused": "dq-alarm",
    "failed": "dq-alarm",
    "ambiguous": "dq-expired",
    "unfinished": "dq-expired",
}


def timeline_of(
    row: Notification, deliveries: Sequence[Delivery], now: datetime, *, with_details: bool
) -> SafeString:
    """Return what happened in order, with now in its place and what is still to come behind."""
    events: list[Any] = [(row.created_at, f"accepted from {row.tenant}")]
    if row.status == Status.PROCESSING:
        events.append((row.started_at, f"attempt {row.attempts} began"))
    if row.expires_at is not None and row.status in OPEN_STATUSES:
        events.append((row.expires_at, "too late from here on"))
    if row.status == Status.ENQUEUED:
        events.append(_next_attempt(row, now))
    events += [(each.at, _call(each, with_details)) for each in deliveries]
    if row.ended_at is not None:
        outcome = f": {row.outcome}" if row.outcome else ""
        events.append((row.ended_at, f"{Status(row.status).label}{outcome}"))
    return formats.timeline(events, now)


def _next_attempt(row: Notification, now: datetime) -> tuple[datetime, str]:
    """Return when a dispatcher may take it, by its message; without one, none ever will."""
    stored = queue_of(row.priority, row.channel).read(str(row.pk))
    if stored is None:
        return now, "it has no message: it will be failed within minutes"
    if stored.state is MessageState.LEASED:
        return stored.scheduled_at, "a dispatcher has its message until here"
    return stored.scheduled_at, f"attempt {row.attempts + 1} from here on"


def _call(delivery: Delivery, with_details: bool) -> SafeString:
    took = "" if delivery.duration_ms is None else f" in {delivery.duration_ms:,} ms"
    told = " · ".join(
        each for each in (delivery.error_class, delivery.detail if with_details else "") if each
    )
    return format_html(
        'attempt {}, {} <span class="dq-state {}" title="{}">{}</span>{} {}',
        delivery.attempt,
        delivery.provider or "a dispatcher that died",
        _CLASSES[delivery.outcome],
        Delivery.Outcome(delivery.outcome).label,
        delivery.outcome,
        took,
        told,
    )
