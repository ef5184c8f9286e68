"""Settling: how attempts ended, written in the statement that ends or releases their messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, LiteralString

from delayed_queue import Envelope
from delayed_queue.db.sql import Step
from delayed_queue.handlers import storable
from delayed_queue.notifications.models import MAX_NAME_LENGTH, Delivery, Status
from delayed_queue.notifications.services import INTERRUPTED

CALLBACK_QUEUE: Final = "notifications-callbacks"
# The outcome of what waits for another attempt though its last may have been accepted.
IN_DOUBT: Final = "in doubt"

# Offer a callback for each row of ``ended`` that has a URL and a final status. Without NOTIFY: the
# queue of callbacks is polled. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CALLBACKS: Final[LiteralString] = """,
called AS (
    INSERT INTO delayed_queue (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
    )
    SELECT
        ended.id || ':' || ended.status, 'notifications-callbacks|json',
        convert_to(json_build_object('id', ended.id, 'status', ended.status)::text, 'UTF8'),
        now, now, now
    FROM ended
    CROSS JOIN (
        SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint AS now
    ) AS clock
    WHERE ended.callback_url <> ''
        AND ended.status <> 'ENQUEUED'
    ON CONFLICT ("pKey", "pKind") DO NOTHING
)"""

# Write how attempts ended, with a delivery for each call of a provider. Only while the notification
# is PROCESSING under that lease. Deliveries are written in any case, because the provider has
# received the call; once, because a statement without an answer is sent again, and an attempt calls
# no provider twice. "attempts" becomes the number of calls so far (N25): START has counted one.
# Without an outcome, a doubt of earlier calls remains, and with it the provider that was called.
# Reads: the primary key, the index of deliveries by notification.
_SETTLED: Final[LiteralString] = (
    """settled AS (
    SELECT *
    FROM jsonb_to_recordset(%(settled)s::jsonb) AS settled (
        id uuid, lease_id uuid, status text, outcome text, attempt int, calls jsonb
    )
),
held AS MATERIALIZED (
    SELECT
        n.id, settled.status, jsonb_array_length(settled.calls) AS calls,
        COALESCE(settled.outcome, n.outcome) AS outcome,
        COALESCE(settled.calls #>> '{-1,provider_id}', '') AS provider_id,
        COALESCE(settled.calls #>> '{-1,error_class}', '') AS error_class,
        COALESCE(
            settled.calls #>> '{-1,provider}',
            CASE WHEN n.outcome = 'in doubt' THEN n.provider ELSE '' END
        ) AS provider
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
        settled.id, settled.attempt, call.provider, call.provider_id, call.outcome,
        call.error_class, call.detail, call.duration_ms
    FROM settled
    CROSS JOIN LATERAL jsonb_to_recordset(settled.calls) AS call (
        provider text, provider_id text, outcome text, error_class text, detail text,
        duration_ms int
    )
    WHERE (
            SELECT TRUE
            FROM delayed_queue_notification_delivery AS d
            WHERE d.notification_id = settled.id
                AND d.attempt = settled.attempt
                AND d.provider = call.provider
            LIMIT 1
        ) IS NULL
),
ended AS (
    UPDATE delayed_queue_notification AS n
    SET
        status = held.status,
        attempts = n.attempts - 1 + held.calls,
        lease_id = NULL,
        provider = held.provider,
        provider_id = held.provider_id,
        outcome = held.outcome,
        error_class = held.error_class,
        ended_at = CASE WHEN held.status <> 'ENQUEUED' THEN clock_timestamp() END
    FROM held
    WHERE n.id = held.id
    RETURNING n.id, n.status, n.callback_url
)"""
    + CALLBACKS
)

# Settle, and delete the messages that are still under their leases; returns their ids.
# Reads: as above, and the primary key of messages, or delayed_queue__LockUuidPlusIdIndex.
SETTLE: Final[LiteralString] = (
    "WITH "
    + _SETTLED
    + """
DELETE FROM delayed_queue
WHERE id = ANY (%(messages)s::bigint[])
    AND "lockUuid" = ANY (%(message_leases)s::text[])
RETURNING id
"""
)

# Settle those whose messages the same transaction releases. Reads: as above.
DEFER: Final[LiteralString] = (
    "WITH "
    + _SETTLED
    + """
SELECT id FROM ended
"""
)

# Fail open notifications whose message is under the lease, or, for an empty lease, is gone; with
# the reason. A notification that was PROCESSING may have been sent, and a delivery records that.
# Messages are read first, one by one, and the kind is behind COALESCE, as in START.
# Reads: the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
FAIL: Final[LiteralString] = (
    """
WITH failed AS MATERIALIZED (
    SELECT id, reason
    FROM unnest(%(ids)s::uuid[], %(leases)s::text[], %(reasons)s::text[])
        AS given (id, lease_id, reason)
    WHERE lease_id = COALESCE(
            (
                SELECT COALESCE(m."lockUuid", 'none')
                FROM delayed_queue AS m
                WHERE m."pKey" = given.id::text
                    AND COALESCE(starts_with(m."pKind", 'notifications-'), false)
            ),
            ''
        )
),
held AS MATERIALIZED (
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted, failed.reason
    FROM failed
    JOIN delayed_queue_notification AS n ON n.id = failed.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')"""
    + INTERRUPTED
    + """,
ended AS (
    UPDATE delayed_queue_notification AS n
    SET
        status = 'FAILED',
        lease_id = NULL,
        ended_at = clock_timestamp(),
        outcome = held.reason
            || CASE
                WHEN held.was_interrupted OR n.outcome = 'in doubt' THEN ', in doubt'
                ELSE ''
            END
    FROM held
    WHERE n.id = held.id
    RETURNING n.id, n.status, n.callback_url
)"""
    + CALLBACKS
    + """
SELECT id FROM ended
"""
)


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

    ENQUEUED means again after the delay. Without an outcome an earlier doubt remains.
    """

    status: Status
    calls: Sequence[Call] = ()
    outcome: str | None = None
    delay: timedelta = timedelta(0)
    # The number of this attempt, as recorded with its calls.
    attempt: int = 0
    # Why an attempt without calls counts: its attachments could not be fetched.
    error: str = ""


# The settlements of envelopes.
Settled = Sequence[tuple[Envelope, Settlement]]


def settling(settled: Settled, done: Sequence[Envelope]) -> Step:
    """Return the statement that writes the ends of attempts and acknowledges messages."""
    params = {
        "messages": [each.message_id for each in done],
        "message_leases": list({each.lease_id for each in done}),
    }
    return SETTLE, params | _params(settled)


def deferring(settled: Settled) -> Step:
    """Return the statement that writes the ends of attempts whose messages are released."""
    return DEFER, _params(settled)


def failing(failed: Sequence[tuple[uuid.UUID | str, str, str]]) -> Step:
    """Return the statement that fails notifications, each by id, lease and reason.

    An empty lease stands for a notification without a message.
    """
    return FAIL, {
        "ids": [id_ for id_, _, _ in failed],
        "leases": [lease_id for _, lease_id, _ in failed],
        "reasons": [storable(reason) for _, _, reason in failed],
    }


def _params(settled: Settled) -> dict[str, str]:
    # A text of a third party that the database cannot store would prevent all settlements.
    rows = [
        {
            "id": envelope.key,
            "lease_id": envelope.lease_id,
            "status": each.status,
            "outcome": each.outcome and storable(each.outcome),
            "attempt": each.attempt,
            "calls": [_row_of(call) for call in each.calls],
        }
        for envelope, each in settled
    ]
    return {"settled": json.dumps(rows)}


def _row_of(call: Call) -> dict[str, Any]:
    return {
        "provider": call.provider,
        "provider_id": storable(call.provider_id),
        "outcome": call.outcome,
        "error_class": storable(call.error_class)[:MAX_NAME_LENGTH],
        "detail": storable(call.detail),
        "duration_ms": call.duration and call.duration // timedelta(milliseconds=1),
    }
