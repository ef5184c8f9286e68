"""Figures of the service, each of bounded cost."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, LiteralString

from delayed_queue.db.clock import database_now
from delayed_queue.notifications.models import ParkedRequest, Priority, Status, first_id_at, time_of
from delayed_queue.notifications.services import USING, dispatch_queues, fetch
from delayed_queue.observe.overview import Count, QueueDepth, cap_for, depths

CAP: Final = 10_000
CALLS: Final = 5_000
PARKED_CAP: Final = 1_000
MINUTE: Final = timedelta(minutes=1)
PERIOD: Final = timedelta(minutes=15)

# The number of notifications in each state, up to a cap. Reads: notification_status_id.
STATES: Final[LiteralString] = """
SELECT wanted.status, counted.found
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT count(*) AS found
    FROM (
        SELECT 1
        FROM delayed_queue_notification AS n
        WHERE (n.status, n.id) >= (wanted.status, '00000000-0000-0000-0000-000000000000'::uuid)
            AND n.status <= wanted.status
        ORDER BY n.status, n.id
        LIMIT %(cap)s
    ) AS few
) AS counted
"""

# The number of notifications accepted since a moment, by the time in their ids, up to a cap; and
# the first id among them, which gives the rate if the cap is reached. Reads: the primary key.
ACCEPTED: Final[LiteralString] = """
SELECT count(*), min(id::text)
FROM (
    SELECT id
    FROM delayed_queue_notification
    WHERE id >= %(since)s::uuid
    ORDER BY id DESC
    LIMIT %(cap)s
) AS latest
"""

# The results of the newest calls since a moment, up to a cap, by provider; with the seconds they
# span, and the last failure. Reads: notification_delivery_at.
PROVIDERS: Final[LiteralString] = """
WITH latest AS MATERIALIZED (
    SELECT id, at, provider, outcome, error_class, duration_ms
    FROM delayed_queue_notification_delivery
    WHERE at >= statement_timestamp() - %(period)s::interval
    ORDER BY at DESC, id DESC
    LIMIT %(cap)s
)
SELECT
    provider,
    count(*) FILTER (WHERE outcome = 'sent') AS sent,
    count(*) FILTER (WHERE outcome = 'refused') AS refused,
    count(*) FILTER (WHERE outcome = 'failed') AS failed,
    count(*) FILTER (WHERE outcome IN ('ambiguous', 'unfinished')) AS doubtful,
    count(*) FILTER (
        WHERE outcome = 'sent' AND at >= statement_timestamp() - INTERVAL '1 minute'
    ) AS sent_lately,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS median_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS slow_ms,
    max(at) FILTER (WHERE outcome <> 'sent') AS last_failure_at,
    COALESCE((array_agg(error_class ORDER BY id DESC) FILTER (WHERE outcome <> 'sent'))[1], '')
        AS last_error,
    (SELECT count(*) FROM latest) AS counted,
    (SELECT EXTRACT(EPOCH FROM statement_timestamp() - min(at)) FROM latest) AS span
FROM latest
GROUP BY provider
ORDER BY provider
"""


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """The results of one provider's newest calls."""

    name: str
    sent: int
    refused: int
    failed: int
    doubtful: int
    sent_lately: int
    median_ms: int | None
    slow_ms: int | None
    last_failure_at: datetime | None
    last_error: str

    @property
    def calls(self) -> int:
        return self.sent + self.refused + self.failed + self.doubtful

    @property
    def share_failing(self) -> float:
        """The share of failed calls, without refusals, which concern the recipient."""
        judged = self.sent + self.failed + self.doubtful
        return (self.failed + self.doubtful) / judged if judged else 0.0


@dataclass(frozen=True, slots=True)
class Calls:
    """The newest calls of providers, the seconds they span, and the figures of each provider."""

    span: float
    is_cut: bool
    providers: Sequence[ProviderFigures]

    @property
    def sent_per_second(self) -> float:
        """The rate over the last minute, or over the newest calls if they span less."""
        sent = sum(each.sent_lately for each in self.providers)
        return sent / min(self.span, MINUTE.total_seconds())


@dataclass(frozen=True, slots=True)
class DispatchQueue:
    """A queue of the dispatcher."""

    priority: str
    channel: str
    depth: QueueDepth


def states() -> dict[Status, Count]:
    """Return how many notifications there are in each state, counted to a cap."""
    statuses = [each.value for each in Status]
    rows = fetch(STATES, {"statuses": statuses, "cap": CAP})
    return {Status(status): Count(found, found >= CAP) for status, found in rows}


def accepted_per_second(now: datetime | None = None) -> float:
    """Return the rate of intake over the last minute, or over the newest of a greater number."""
    now = now or database_now(USING)
    rows = fetch(ACCEPTED, {"since": first_id_at(now - MINUTE), "cap": CALLS})
    count, first = rows[0]
    if count < CALLS:
        return float(count) / MINUTE.total_seconds()
    span = (now - time_of(uuid.UUID(first))).total_seconds()
    return float(count) / max(span, 0.001)


def calls() -> Calls:
    """Return what providers did in the last quarter of an hour, or in their newest calls."""
    rows = fetch(PROVIDERS, {"period": PERIOD, "cap": CALLS})
    figures = [ProviderFigures(*row[:10]) for row in rows]
    counted, span = rows[0][10:] if rows else (0, 0)
    is_cut = counted >= CALLS
    seconds = float(span) if is_cut else PERIOD.total_seconds()
    return Calls(max(seconds, 0.001), is_cut, figures)


def queues() -> list[DispatchQueue]:
    """Return the queues of the dispatcher, urgent ones first."""
    kinds = {queue.kind: place for place, queue in dispatch_queues().items()}
    found = [
        DispatchQueue(*kinds[each.kind], each)
        for each in depths(list(kinds), cap=cap_for(len(kinds)), using=USING)
    ]
    order = list(Priority)
    return sorted(found, key=lambda each: (order.index(Priority(each.priority)), each.channel))


def oldest_due(found: Sequence[DispatchQueue]) -> timedelta | None:
    """Return how long the notification that waits longest has been due."""
    ages = [each.depth.oldest_due_age for each in found if each.depth.oldest_due_age is not None]
    return max(ages, default=None)


def parked() -> Count:
    """Return how many requests are parked, counted to a cap."""
    found = ParkedRequest.objects.order_by("parked_at", "id")[:PARKED_CAP].count()
    return Count(found, found >= PARKED_CAP)
