"""Settling: how attempts ended, written in the statement that ends or releases their messages."""

from __future__ import annotations

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
# no provider twice. "attempts" becomes the number of calls so far (N25): BEGIN has counted one.
# Without an outcome, a doubt of earlier calls remains, and with it the provider that was called.
# Reads: the primary key, the index of deliveries by notification.
_SETTLED: Final[LiteralString] = (
    """settled AS (
    SELECT id, lease_id, status, calls, provider, provider_id, outcome, error_class
    FROM unnest(
        %(ids)s::uuid[], %(leases)s::uuid[], %(statuses)s::text[], %(calls)s::int[],
        %(providers)s::text[], %(provider_ids)s::text[], %(outcomes)s::text[],
        %(error_classes)s::text[]
    ) AS settled (id, lease_id, status, calls, provider, provider_id, outcome, error_class)
),
held AS MATERIALIZED (
    SELECT
        n.id, settled.status, settled.calls, settled.provider_id, settled.error_class,
        COALESCE(settled.outcome, n.outcome) AS outcome,
        COALESCE(
            settled.provider, CASE WHEN n.outcome = 'in doubt' THEN n.provider ELSE '' END
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
# Messages are read first, one by one, and the kind is behind COALESCE, as in BEGIN.
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


# The settlements of envelopes.
Settled = Sequence[tuple[Envelope, Settlement]]


def settling(settled: Settled, done: Sequence[Envelope]) -> Step:
    """Return the statement that writes the ends of attempts and acknowledges messages."""
    params = {
        "messages": [each.message_id for each in done],
        "message_leases": list({each.lease_id for each in done}),
    }
    return SETTLE, params | _settlement_params(settled) | _call_params(settled)


def deferring(settled: Settled) -> Step:
    """Return the statement that writes the ends of attempts whose messages are released."""
    return DEFER, _settlement_params(settled) | _call_params(settled)


def failing(failed: Sequence[tuple[uuid.UUID | str, str, str]]) -> Step:
    """Return the statement that fails notifications, each by id, lease and reason.

    An empty lease stands for a notification without a message.
    """
    return FAIL, {
        "ids": [id_ for id_, _, _ in failed],
        "leases": [lease_id for _, lease_id, _ in failed],
        "reasons": [storable(reason) for _, _, reason in failed],
    }


# Some of the texts come from third parties. One that the database cannot store would prevent
# all settlements of its statement.


def _settlement_params(settled: Settled) -> dict[str, list[Any]]:
    last = [each.calls[-1] if each.calls else None for _, each in settled]
    return {
        "ids": [envelope.key for envelope, _ in settled],
        "leases": [envelope.lease_id for envelope, _ in settled],
        "statuses": [each.status.value for _, each in settled],
        "calls": [len(each.calls) for _, each in settled],
        "providers": [call and call.provider for call in last],
        "provider_ids": [storable(call.provider_id) if call else "" for call in last],
        "outcomes": [each.outcome and storable(each.outcome) for _, each in settled],
        "error_classes": [_name_of_error(call) if call else "" for call in last],
    }


def _call_params(settled: Settled) -> dict[str, list[Any]]:
    calls = [(envelope, each, call) for envelope, each in settled for call in each.calls]
    return {
        "call_ids": [envelope.key for envelope, _, _ in calls],
        "call_attempts": [each.attempt for _, each, _ in calls],
        "call_providers": [call.provider for _, _, call in calls],
        "call_provider_ids": [storable(call.provider_id) for _, _, call in calls],
        "call_outcomes": [call.outcome.value for _, _, call in calls],
        "call_error_classes": [_name_of_error(call) for _, _, call in calls],
        "call_details": [storable(call.detail) for _, _, call in calls],
        "call_durations": [_milliseconds(call.duration) for _, _, call in calls],
    }


def _name_of_error(call: Call) -> str:
    return storable(call.error_class)[:MAX_NAME_LENGTH]


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)
