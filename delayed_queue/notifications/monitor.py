"""Figures of the service, each of bounded cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString, NamedTuple

from django.db.models import Count as CountOf
from django.db.models import Q, QuerySet

from delayed_queue.db.clock import database_now
from delayed_queue.db.sql import rows_of
from delayed_queue.notifications.models import (
    Notification,
    ParkedRequest,
    Reception,
    Status,
    first_id_at,
    time_of,
)
from delayed_queue.notifications.services import USING, dispatch_queues, fetch
from delayed_queue.observe.overview import Count, depths

CAP: Final = 10_000
CALLS: Final = 5_000
PARKED_CAP: Final = 1_000
MINUTE: Final = timedelta(minutes=1)
PERIOD: Final = timedelta(minutes=15)
WEEK: Final = timedelta(days=7)
EVENTS: Final = 50_000
# Mailbox providers reject the mail of senders with more complaints over deliveries.
MOST_COMPLAINTS: Final = 0.003

# The results of the newest calls since a moment, up to a cap, by provider, with the last failure.
# "seconds" is the time that all of these calls span. Reads: notification_delivery_at.
PROVIDERS: Final[LiteralString] = """
WITH latest AS MATERIALIZED (
    SELECT id, at, provider, outcome, error_class
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
    max(at) FILTER (WHERE outcome <> 'sent') AS last_failure_at,
    COALESCE((array_agg(error_class ORDER BY id DESC) FILTER (WHERE outcome <> 'sent'))[1], '')
        AS last_error,
    (
        SELECT EXTRACT(EPOCH FROM statement_timestamp() - min(at))::float8
        FROM latest
    ) AS seconds
FROM latest
GROUP BY provider
ORDER BY provider
"""


class Received(NamedTuple):
    """Counts of the events of one provider's mail."""

    delivered: int
    bounced: int
    complained: int

    @property
    def complaint_rate(self) -> float:
        """Complaints over deliveries; a mail that was complained about was delivered."""
        return self.complained / max(self.delivered + self.complained, 1)

    @property
    def is_capped(self) -> bool:
        return self.delivered + self.bounced + self.complained >= EVENTS


class ProviderFigures(NamedTuple):
    """The results of one provider's newest calls."""

    name: str
    sent: int
    refused: int
    failed: int
    doubtful: int
    last_failure_at: datetime | None
    last_error: str
    seconds: float

    @property
    def calls(self) -> int:
        return self.sent + self.refused + self.failed + self.doubtful

    @property
    def share_failing(self) -> float:
        """The share of failed calls, without refusals, which concern the recipient."""
        judged = self.sent + self.failed + self.doubtful
        return (self.failed + self.doubtful) / judged if judged else 0.0


def states() -> dict[Status, Count]:
    """Return how many notifications there are in each state, counted to a cap."""
    # A range, in the order of the index: for one value the planner may read the primary key.
    rows = Notification.objects.order_by("status", "id")
    return {each: _counted(rows.filter(status__gte=each, status__lte=each), CAP) for each in Status}


def _counted(rows: QuerySet[Any], cap: int) -> Count:
    found = rows[:cap].count()
    return Count(found, found >= cap)


def accepted_per_second(now: datetime) -> float:
    """Return the rate of intake over the last minute, or over the newest of a greater number."""
    rows = Notification.objects.filter(pk__gte=first_id_at(now - MINUTE)).order_by("-pk")
    ids = list(rows.values_list("pk", flat=True)[:CALLS])
    if len(ids) < CALLS:
        return len(ids) / MINUTE.total_seconds()
    return len(ids) / max((now - time_of(ids[-1])).total_seconds(), 0.001)


def providers(period: timedelta = PERIOD, cap: int = CALLS) -> list[ProviderFigures]:
    """Return what providers did in that time, or in their newest calls."""
    return rows_of(ProviderFigures, fetch(PROVIDERS, {"period": period, "cap": cap}))


def received(provider: str) -> Received:
    """Return the events of a provider in the last seven days, or its newest.

    Reads: notification_received.
    """
    rows = Notification.objects.exclude(delivery=Reception.UNKNOWN).filter(
        provider=provider, delivery_at__gte=database_now(USING) - WEEK
    )
    latest = rows.order_by("-delivery_at")[:EVENTS]
    counts = {each: CountOf("pk", filter=Q(delivery=each)) for each in Received._fields}
    return Received(**latest.aggregate(**counts))


def sent_per_second(providers: Sequence[ProviderFigures]) -> float:
    """Return the rate at which providers accepted notifications, over these calls."""
    return sum(each.sent / max(each.seconds, 1.0) for each in providers)


def longest_wait() -> timedelta | None:
    """Return the age of the oldest message that is due; None if none is."""
    found = depths([each.kind for each in dispatch_queues().values()], using=USING)
    return max((each.oldest_due_age for each in found if each.oldest_due_age), default=None)


def parked() -> Count:
    """Return how many requests are parked, counted to a cap."""
    return _counted(ParkedRequest.objects.order_by("parked_at", "id"), PARKED_CAP)
