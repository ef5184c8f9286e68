"""A notification in flight: begun, turned to a provider, settled.

A dispatcher claims a message, calls ``begin``, sends outside any transaction, and writes the end
with ``finish``, ``fail`` or ``defer``, fenced by the lease of the message. Each of these is one
statement. A crash before the end leaves PROCESSING, and the queue delivers the message again when
its lease is over; the next ``begin`` takes over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, LiteralString

from django.db import router, transaction

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage, db
from delayed_queue.db.clock import database_now
from delayed_queue.handlers import storable
from delayed_queue.notifications.models import (
    MAX_NAME_LENGTH,
    Channel,
    Delivery,
    Notification,
    Priority,
    Status,
    queue_name,
)

# The database of notifications and their messages: where the router writes them.
USING: Final = router.db_for_write(Notification)

# The end of ``held``, locked in the order of ids: batches that overlap wait, and never for each
# other. Then a delivery for each of them that was begun by somebody who never wrote how it ended:
# the provider may have seen it.
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

# Begin notifications, for the leases of their messages. A row comes back for each that is
# still open, PROCESSING under its lease, with what is to become of it: sent, or ended as expired
# or suppressed, which the caller settles at once. One whose former dispatcher never wrote how it
# ended (another lease) is taken over, and a delivery tells so. Twice under one lease changes
# nothing, so that a lost answer can be asked for again.
# "provider" is the one that is about to be called; it comes back as it is, unless the last call
# may have been accepted ("in doubt"): then as the one that was called.
# Only for whoever holds the message now: one that was stopped or cut off for longer than its lease
# must not take over from the one that has the message since, and end what that one is sending.
# Expiry is by the clock, not the statement's start: the wait for a lock counts.
# Who holds a message is asked once for each, before notifications are looked for, and the kind
# behind COALESCE: planned while the queue was empty, its index leads to all messages of the kind.
# Reads: the primary key, notification_suppression, delayed_queue__PKeyPlusKindUniqueIndex.
BEGIN: Final[LiteralString] = (
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
                    AND s.category IN ('', n.category)
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
    attempts = n.attempts + CASE WHEN is_new AND verdict = 'PROCESSING' THEN 1 ELSE 0 END,
    started_at = CASE WHEN is_new THEN clock_timestamp() ELSE n.started_at END,
    provider = CASE WHEN is_new AND NOT in_doubt THEN held.provider ELSE n.provider END
FROM held
WHERE n.id = held.id
RETURNING
    n.id, n.lease_id, n.tenant, n.channel, n.priority, n.category, n.recipient,
    n.recipient_hash, n.subject, n.body, n.html, n.expires_at, n.callback_url, n.attempts,
    held.was_interrupted, n.provider, held.in_doubt, held.verdict
"""
)

# Note which provider is called next, before it is: after a crash it is the one that may have the
# message. Fenced like SETTLE; no row comes back when the lease was lost, and then none may be.
# Reads: the primary key.
TURN_TO: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET provider = %(provider)s
WHERE id = %(id)s
    AND status = 'PROCESSING'
    AND lease_id = %(lease_id)s
RETURNING id
"""

# Write how attempts ended, with a delivery for each call of a provider. Fenced: only while the
# notification is PROCESSING under that lease. The deliveries are written all the same, because
# the provider has seen them; once, for a statement whose answer was lost is sent again, and an
# attempt calls no provider twice. "attempts" becomes the number of calls so far (N25). What would
# be tried again after its expiry is EXPIRED at once.
# Rows are locked in the order of their ids, as above.
# Reads: the primary key, the index of deliveries by notification.
SETTLE: Final[LiteralString] = """
WITH settled AS (
    SELECT id, lease_id, status, attempts, delay, provider, provider_id, outcome, error_class
    FROM unnest(
        %(ids)s::uuid[], %(leases)s::uuid[], %(statuses)s::text[], %(attempts)s::int[],
        %(delays)s::interval[], %(providers)s::text[], %(provider_ids)s::text[],
        %(outcomes)s::text[], %(error_classes)s::text[]
    ) AS settled (
        id, lease_id, status, attempts, delay, provider, provider_id, outcome, error_class
    )
),
held AS MATERIALIZED (
    SELECT
        n.id,
        CASE
            WHEN settled.status = 'ENQUEUED'
                AND n.expires_at <= clock_timestamp() + settled.delay THEN 'EXPIRED'
            ELSE settled.status
        END AS status,
        settled.attempts,
        settled.provider,
        settled.provider_id,
        CASE
            WHEN settled.status = 'ENQUEUED'
                AND settled.outcome = ''
                AND n.expires_at <= clock_timestamp() + settled.delay THEN 'expired'
            ELSE settled.outcome
        END AS outcome,
        settled.error_class
    FROM delayed_queue_notification AS n
    JOIN settled ON settled.id = n.id AND settled.lease_id = n.lease_id
    WHERE n.status = 'PROCESSING'
    ORDER BY n.id
    FOR UPDATE OF n
),
recorded AS (
    INSERT INTO delayed_queue_notification_delivery (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    )
    SELECT
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    FROM unnest(
        %(call_ids)s::uuid[], %(call_attempts)s::int[], %(call_providers)s::text[],
        %(call_provider_ids)s::text[], %(call_outcomes)s::text[], %(call_error_classes)s::text[],
        %(call_details)s::text[], %(call_durations)s::int[]
    ) AS call (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    )
    WHERE (
            SELECT TRUE
            FROM delayed_queue_notification_delivery AS d
            WHERE d.notification_id = call.notification_id
                AND d.attempt = call.attempt
                AND d.provider = call.provider
            LIMIT 1
        ) IS NULL
)
UPDATE delayed_queue_notification AS n
SET
    status = held.status,
    attempts = held.attempts,
    lease_id = NULL,
    provider = held.provider,
    provider_id = held.provider_id,
    outcome = held.outcome,
    error_class = held.error_class,
    ended_at = CASE WHEN held.status <> 'ENQUEUED' THEN clock_timestamp() END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status
"""


CALLBACK_QUEUE: Final = "notifications-callbacks"


@dataclass(frozen=True, slots=True)
class Begun:
    """A notification in flight: what a dispatcher needs to send it, and the lease to name.

    ``provider`` is to be called now; when ``in_doubt`` it was called before, and may have sent it.
    """

    id: uuid.UUID
    lease_id: uuid.UUID
    tenant: str
    channel: str
    priority: str
    category: str
    recipient: str = field(repr=False)
    recipient_hash: bytes = field(repr=False)
    subject: str = field(repr=False)
    body: str = field(repr=False)
    html: str = field(repr=False)
    expires_at: datetime | None
    callback_url: str = field(repr=False)
    attempt: int
    was_interrupted: bool
    provider: str
    in_doubt: bool
    # When it expires, on the monotonic clock of this process.
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a provider, as it ended. ``detail`` may hold personal data: never log it."""

    provider: str
    outcome: Delivery.Outcome
    provider_id: str = ""
    error_class: str = ""
    detail: str = field(default="", repr=False)
    duration: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of an attempt: the status it leads to, why, and the calls that were made.

    ENQUEUED means again after the delay.
    """

    begun: Begun
    status: Status
    calls: Sequence[Call] = ()
    outcome: str = ""
    delay: timedelta = timedelta(0)
    # False for one that BEGIN ended without counting an attempt.
    was_begun: bool = True

    @property
    def attempts(self) -> int:
        """The calls of providers so far; BEGIN has counted one before it was made."""
        return self.begun.attempt - 1 + len(self.calls) if self.was_begun else self.begun.attempt


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


@cache
def _callback_queue() -> DelayedQueue:
    return DelayedQueue(CALLBACK_QUEUE, using=USING)


def begin(envelope: Envelope) -> Begun | None:
    """Begin the envelope's notification; None when there is nothing to send.

    Then it has been sent, cancelled or failed before, or this call found it too late or
    suppressed, or the envelope's lease is lost: acknowledge the message.
    """
    return begin_many([envelope]).get(envelope.key)


def begin_many(
    envelopes: Iterable[Envelope], providers: Mapping[str, str] | None = None
) -> dict[str, Begun]:
    """Begin notifications with one statement; return those to be sent, by key.

    ``providers`` are those about to be called, by key.
    """
    kinds = _kinds()
    asked = sorted((each.key, kinds[each.queue], each.lease_id) for each in envelopes)
    chosen = providers or {}
    rows = fetch(
        BEGIN,
        {
            "ids": [key for key, _, _ in asked],
            "kinds": [kind for _, kind, _ in asked],
            "leases": [lease for _, _, lease in asked],
            "providers": [chosen.get(key, "") for key, _, _ in asked],
        },
    )
    begun = [(_with_deadline(Begun(*row[:-1])), Status(row[-1])) for row in rows]
    ended = [
        Settlement(
            each,
            status,
            (),
            _ENDINGS[status] + (_DOUBTED if each.in_doubt else ""),
            was_begun=False,
        )
        for each, status in begun
        if status in _ENDINGS
    ]
    if ended:
        settle_many(ended)
    return {str(each.id): each for each, status in begun if status not in _ENDINGS}


def _with_deadline(begun: Begun) -> Begun:
    if begun.expires_at is None:
        return begun
    left = (begun.expires_at - database_now(USING)).total_seconds()
    return replace(begun, deadline=time.monotonic() + left)


# The outcome of what waits for another attempt though its last may have been accepted.
IN_DOUBT: Final = "in doubt"
_DOUBTED: Final = f", {IN_DOUBT}"
_ENDINGS: Final = {Status.EXPIRED: "expired", Status.CANCELLED: "suppressed"}


def turn_to(begun: Begun, provider: str) -> bool:
    """Note that this provider is called next; False when the lease was lost, so call none."""
    params = {"id": begun.id, "lease_id": begun.lease_id, "provider": provider}
    return bool(fetch(TURN_TO, params))


def finish(begun: Begun, calls: Sequence[Call]) -> Status | None:
    """Write that it was sent; None when the lease was lost, and the calls alone were written."""
    return settle(Settlement(begun, Status.SUCCESSFULLY_PROCESSED, calls))


def fail(begun: Begun, calls: Sequence[Call], outcome: str) -> Status | None:
    """Write that it failed for good, and why; None when the lease was lost."""
    return settle(Settlement(begun, Status.FAILED, calls, outcome))


def defer(
    begun: Begun, calls: Sequence[Call], delay: timedelta, outcome: str = ""
) -> Status | None:
    """Put it back for another attempt: ENQUEUED, then let the message come again.

    EXPIRED when that would be too late, then acknowledge the message; None when the lease was
    lost.
    """
    return settle(Settlement(begun, Status.ENQUEUED, calls, outcome, delay))


def settle(settlement: Settlement) -> Status | None:
    """Write the end of one attempt; return the status it led to, None when the lease was lost."""
    return settle_many([settlement]).get(settlement.begun.id)


def settle_many(settlements: Sequence[Settlement]) -> dict[uuid.UUID, Status]:
    """Write the ends of attempts with one statement; return the statuses they led to.

    Those not returned had lost their lease. With a ``callbackUrl`` among them, their callbacks
    are offered in the same transaction.
    """
    params = _settlement_params(settlements) | _call_params(settlements)
    called = {each.begun.id for each in settlements if each.begun.callback_url}
    if not called:
        return statuses_of(fetch(SETTLE, params))
    with transaction.atomic(using=USING):
        statuses = statuses_of(fetch(SETTLE, params))
        offer_callbacks((id_, statuses[id_]) for id_ in called if id_ in statuses)
    return statuses


def statuses_of(rows: Iterable[tuple[Any, ...]]) -> dict[uuid.UUID, Status]:
    """Return statuses by id, of rows of both."""
    return {id_: Status(status) for id_, status in rows}


# Some of the texts are a third party's own. What the database cannot store must be seen to here:
# one of them would keep back the ends of all that are written with it.


def _settlement_params(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    last = [each.calls[-1] if each.calls else None for each in settlements]
    return {
        "ids": [each.begun.id for each in settlements],
        "leases": [each.begun.lease_id for each in settlements],
        "statuses": [each.status.value for each in settlements],
        "attempts": [each.attempts for each in settlements],
        "delays": [each.delay for each in settlements],
        "providers": [
            call.provider if call else _doubted(each.begun)
            for each, call in zip(settlements, last, strict=True)
        ],
        "provider_ids": [storable(call.provider_id) if call else "" for call in last],
        "outcomes": [storable(each.outcome) for each in settlements],
        "error_classes": [_name_of_error(call) if call else "" for call in last],
    }


def _doubted(begun: Begun) -> str:
    """Return who may have the message, which is not forgotten when an attempt calls nobody."""
    return begun.provider if begun.in_doubt else ""


def _call_params(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    calls = [(each.begun, call) for each in settlements for call in each.calls]
    return {
        "call_ids": [begun.id for begun, _ in calls],
        "call_attempts": [begun.attempt for begun, _ in calls],
        "call_providers": [call.provider for _, call in calls],
        "call_provider_ids": [storable(call.provider_id) for _, call in calls],
        "call_outcomes": [call.outcome.value for _, call in calls],
        "call_error_classes": [_name_of_error(call) for _, call in calls],
        "call_details": [storable(call.detail) for _, call in calls],
        "call_durations": [_milliseconds(call.duration) for _, call in calls],
    }


def _name_of_error(call: Call) -> str:
    return storable(call.error_class)[:MAX_NAME_LENGTH]


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)


def offer_callbacks(ended: Iterable[tuple[uuid.UUID, str]]) -> None:
    """Offer a message for each final status, to be posted to the ``callbackUrl``.

    In the transaction of the change itself, so that no end goes untold.
    """
    messages = [
        ScheduledMessage(f"{id_}:{status}", {"id": str(id_), "status": str(status)})
        for id_, status in ended
        if status != Status.ENQUEUED
    ]
    _callback_queue().offer_batch(messages)


def fetch(statement: LiteralString, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    return db.fetch(USING, statement, params)


def execute(statement: LiteralString, params: Mapping[str, Any]) -> int:
    """Run a statement, and return how many rows it changed."""
    return db.execute(USING, statement, params)
