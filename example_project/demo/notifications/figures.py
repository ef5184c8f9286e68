"""Counted in the database: what is where, and how long things took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db import connection

from delayed_queue.models import DeadLetter, Message
from example_project.demo.notifications.traffic import TENANTS
from example_project.notifications.models import FINAL_STATUSES, Delivery, Notification, Status
from example_project.notifications.services import LANES

OURS: Final = sorted(set(TENANTS.values()))
KINDS: Final = [queue.kind for queue in LANES.values()]

_ROWS: Final = """
SELECT
    n.id::text,
    n.tenant,
    n.channel,
    n.status,
    n.outcome,
    n.provider,
    n.attempts,
    extract(epoch FROM n.expires_at)::float8,
    EXISTS (
        SELECT 1
        FROM notifications_delivery AS d
        WHERE d.notification_id = n.id
            AND d.outcome IN ('ambiguous', 'unfinished')
    )
FROM notifications_notification AS n
WHERE n.tenant = ANY (%(tenants)s)
"""
# From when it could be claimed to when it was in hand; of later attempts the first is not known.
_WAITS: Final = """
SELECT
    count(*),
    percentile_cont(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (
        ORDER BY 1000 * extract(epoch FROM started_at - greatest(created_at, send_at))
    )
FROM notifications_notification
WHERE tenant = ANY (%(tenants)s)
    AND attempts = 1
    AND started_at IS NOT NULL
    AND priority = ANY (%(priorities)s)
    AND extract(epoch FROM created_at) BETWEEN %(since)s AND %(until)s
"""
_SENT_BY_SECOND: Final = """
SELECT count(*)
FROM notifications_notification
WHERE tenant = ANY (%(tenants)s)
    AND status = 'SUCCESSFULLY_PROCESSED'
GROUP BY date_trunc('second', ended_at)
ORDER BY 1 DESC
"""
_CAMPAIGN_ENDED: Final = """
SELECT extract(epoch FROM max(ended_at))::float8
FROM notifications_notification
WHERE tenant = %(tenant)s
"""


class Row(NamedTuple):
    """What the table says of one notification; instants are Unix seconds."""

    id: str
    tenant: str
    channel: str
    status: str
    outcome: str = ""
    provider: str = ""
    attempts: int = 0
    expires_at: float | None = None
    is_doubtful: bool = False

    @property
    def is_final(self) -> bool:
        return self.status in FINAL_STATUSES

    @property
    def is_sent(self) -> bool:
        return self.status == Status.SUCCESSFULLY_PROCESSED


@dataclass(frozen=True, slots=True)
class Waits:
    """From enqueued, or due, to claimed; in milliseconds."""

    count: int
    p50: float
    p99: float
    longest: float


def rows() -> dict[str, Row]:
    """Return our notifications by their id."""
    return {row[0]: Row(*row) for row in _fetch(_ROWS)}


def statuses() -> Counter[str]:
    """Return how many are in each state."""
    ours = Notification.objects.filter(tenant__in=OURS)
    states = (ours.filter(status=status).count() for status in Status)
    return Counter(dict(zip(Status.values, states, strict=True)))


def in_hand() -> set[tuple[str, str]]:
    """Return the notifications that are being sent, each with its lease."""
    found = Notification.objects.filter(tenant__in=OURS, status=Status.PROCESSING)
    return {(str(id_), str(lease)) for id_, lease in found.values_list("id", "lease_id")}


def unfinished() -> set[str]:
    """Return those whose dispatcher died between the call and the note of how it ended."""
    found = Delivery.objects.filter(
        outcome=Delivery.Outcome.UNFINISHED, notification__tenant__in=OURS
    )
    return {str(id_) for id_ in found.values_list("notification_id", flat=True)}


def waits(priorities: list[str], since: float = 0.0, until: float = 1e11) -> Waits:
    """Return how long those that were accepted in that time waited."""
    [(count, shares)] = _fetch(_WAITS, priorities=priorities, since=since, until=until)
    return Waits(count, *(shares or (0.0, 0.0, 0.0)))


def busiest_second() -> int:
    """Return the most that were sent in one second."""
    return next((count for (count,) in _fetch(_SENT_BY_SECOND)), 0)


def campaign_ended_at(tenant: str) -> float:
    [(at,)] = _fetch(_CAMPAIGN_ENDED, tenant=tenant)
    return at or 0.0


def messages() -> int:
    """Return how many messages there are in the lanes."""
    return Message.objects.filter(kind__in=KINDS).count()


def dead_letters() -> set[str]:
    """Return the keys of the dead letters of the lanes, which are ids of notifications."""
    return set(DeadLetter.objects.filter(kind__in=KINDS).values_list("key", flat=True))


def _fetch(statement: str, **params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"tenants": OURS, **params})
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
