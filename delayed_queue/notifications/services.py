"""The queues of notifications, and notifications in flight.

After a crash a notification stays PROCESSING, and the attempt under the next lease takes over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, LiteralString

from django.db import Error, router
from django.http import HttpResponse

from delayed_queue import DelayedQueue, Envelope, db
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import is_unavailable, repeat
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.notifications.models import Channel, Notification, Priority, Status, queue_name

if TYPE_CHECKING:
    from delayed_queue.notifications.requests import Mail

# The database of notifications and their messages: where the router writes them.
USING: Final = router.db_for_write(Notification)

# The end of ``held``, locked in the order of ids, so that overlapping batches never deadlock. Then
# a delivery for each call without a recorded end: the provider may have accepted it.
INTERRUPTED: Final[LiteralString] = """
    ORDER BY n.id
    FOR UPDATE OF n
),
interrupted AS (
    INSERT INTO delayed_queue_notification_delivery (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail
    )
    SELECT id, attempts, '', '', 'unfinished', '', ''
    FROM held
    WHERE was_interrupted
)"""

# Start notifications under the current leases of their messages. Returns each that is still open,
# PROCESSING under its lease, with a verdict: to be sent, expired or suppressed. One that another
# lease left PROCESSING is taken over, and a delivery records that. A repetition changes nothing.
# "provider" is about to be called; if an earlier call may have been accepted ("in doubt"), the
# provider of that call is kept. Expiry is checked by clock_timestamp(): the wait for a lock counts.
# The holder is read once per message, and the kind is behind COALESCE: a plan made while the queue
# was empty would use the index on kinds and read all their messages.
# Reads: the primary key, notification_suppression, delayed_queue__PKeyPlusKindUniqueIndex.
START: Final[LiteralString] = (
    """
WITH asked AS MATERIALIZED (
    SELECT id, lease_id, provider
    FROM unnest(%(ids)s::uuid[], %(kinds)s::text[], %(leases)s::uuid[], %(providers)s::text[])
        AS given (id, kind, lease_id, provider)
    WHERE lease_id::text = (
        SELECT m."lockUuid"
        FROM delayed_queue AS m
        WHERE m."pKey" = given.id::text
            AND COALESCE(m."pKind" = given.kind, false)
    )
),
held AS MATERIALIZED (
    SELECT
        n.id,
        asked.lease_id,
        asked.provider,
        n.attempts,
        n.outcome = 'in doubt' OR (n.status = 'PROCESSING' AND n.lease_id <> asked.lease_id)
            AS in_doubt,
        n.lease_id IS DISTINCT FROM asked.lease_id AS is_new,
        n.status = 'PROCESSING' AND n.lease_id <> asked.lease_id AS was_interrupted,
        CASE
            WHEN n.expires_at <= clock_timestamp() THEN 'EXPIRED'
            WHEN EXISTS (
                SELECT 1
                FROM delayed_queue_notification_suppression AS s
                WHERE s.channel = n.channel
                    AND s.recipient_hash = n.recipient_hash
                    AND s.category IN ('', CASE WHEN n.is_transactional THEN '' ELSE n.category END)
            ) THEN 'CANCELLED'
            ELSE 'PROCESSING'
        END AS verdict
    FROM delayed_queue_notification AS n
    JOIN asked ON asked.id = n.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')"""
    + INTERRUPTED
    + """
UPDATE delayed_queue_notification AS n
SET
    status = 'PROCESSING',
    lease_id = held.lease_id,
    attempts = n.attempts + CASE WHEN is_new THEN 1 ELSE 0 END,
    started_at = CASE WHEN is_new THEN clock_timestamp() ELSE n.started_at END,
    provider = CASE WHEN is_new AND NOT in_doubt THEN held.provider ELSE n.provider END,
    outcome = CASE WHEN in_doubt THEN 'in doubt' ELSE n.outcome END
FROM held
WHERE n.id = held.id
RETURNING
    n.id, n.lease_id, n.tenant, n.channel, n.priority, n.category, n.is_transactional, n.recipient,
    n.recipient_hash, n.subject, n.body, n.html, n.expires_at, n.attempts,
    held.was_interrupted, n.provider, held.in_doubt, n.quiet, held.verdict,
    COALESCE(n.mail::text, '')
"""
)


LOCK: Final[LiteralString] = "SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))::text"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A notification in flight: what a dispatcher needs to send it, and its lease.

    ``provider`` is called next; if ``in_doubt``, it was called before and may have sent it.
    ``verdict`` is PROCESSING for one to be sent, or how it ends without a call.
    """

    id: uuid.UUID
    lease_id: uuid.UUID
    tenant: str
    channel: str
    priority: str
    category: str
    is_transactional: bool
    recipient: str = field(repr=False)
    recipient_hash: bytes = field(repr=False)
    subject: str = field(repr=False)
    body: str = field(repr=False)
    html: str = field(repr=False)
    expires_at: datetime | None
    attempt: int
    was_interrupted: bool
    provider: str
    in_doubt: bool
    quiet: str = ""
    verdict: str = Status.PROCESSING
    mail: str = field(default="", repr=False)
    # When it expires, on the monotonic clock of this process.
    deadline: float | None = None
    # ``mail`` without suppressed copies and with fetched files; read before a call.
    extras: Mail | None = field(default=None, repr=False)


def queue_of(priority: str, channel: str) -> DelayedQueue:
    """Return the queue of that priority and channel."""
    return dispatch_queues()[priority, channel]


@cache
def dispatch_queues() -> dict[tuple[str, str], DelayedQueue]:
    """Return the queues by priority and channel.

    Made at first use: queues read the settings, and `check` reports wrong settings after imports.
    """
    return {
        (priority.value, channel.value): DelayedQueue(queue_name(priority, channel), using=USING)
        for priority in Priority
        for channel in Channel
    }


@cache
def _kinds() -> dict[str, str]:
    return {queue.name: queue.kind for queue in dispatch_queues().values()}


def start_many(envelopes: Iterable[Envelope], providers: Mapping[str, str]) -> dict[str, Outgoing]:
    """Start notifications with one statement; return them by key.

    Those not returned have ended, or the envelope's lease is lost: acknowledge the message.
    ``providers`` are those about to be called, by key.
    """
    kinds = _kinds()
    asked = sorted((each.key, kinds[each.queue], each.lease_id) for each in envelopes)
    rows = fetch(
        START,
        {
            "ids": [key for key, _, _ in asked],
            "kinds": [kind for _, kind, _ in asked],
            "leases": [lease for _, _, lease in asked],
            "providers": [providers.get(key, "") for key, _, _ in asked],
        },
    )
    return {str(row[0]): _with_deadline(Outgoing(*row)) for row in rows}


def _with_deadline(outgoing: Outgoing) -> Outgoing:
    if outgoing.expires_at is None:
        return outgoing
    left = (outgoing.expires_at - database_now(USING)).total_seconds()
    return replace(outgoing, deadline=time.monotonic() + left)


def record_provider(outgoing: Outgoing, provider: str) -> bool:
    """Record that this provider is called next; False if the lease was lost, so call none.

    After a crash it is the one that may have accepted the message.
    """
    rows = Notification.objects.filter(pk=outgoing.id, lease_id=outgoing.lease_id)
    held = rows.filter(status=Status.PROCESSING)
    return bool(repeat(USING, lambda: held.update(provider=provider)))


def or_unavailable(act: Callable[[], HttpResponse]) -> HttpResponse:
    """Return the response; 503 if the database is unavailable."""
    try:
        return act()
    except (Error, ResourceUnavailable) as error:
        if not is_unavailable(error):
            raise
        return HttpResponse(status=503, headers={"Retry-After": "10"})


def lock(name: str) -> None:
    """Wait for other transactions that hold this lock; hold it until the end of this one."""
    fetch(LOCK, {"name": name})


def statuses_of(rows: Iterable[tuple[Any, ...]]) -> dict[uuid.UUID, Status]:
    """Return statuses by id, of rows of both."""
    return {id_: Status(status) for id_, status in rows}


def fetch(statement: LiteralString, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    return db.fetch(USING, statement, params)
