"""Ends that no dispatcher writes: overdue or without a message; and the deletion of old rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from delayed_queue.db.clock import read_clock
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import (
    DedupeClaim,
    Delivery,
    Notification,
    ParkedRequest,
    SoftBounce,
    Status,
    first_id_at,
)
from delayed_queue.notifications.services import USING, fetch
from delayed_queue.notifications.settling import CALLBACKS, failing

# Expire a bounded number of overdue notifications, so that lists are right before a dispatcher
# reaches them; their messages then find nothing to do. Rows that another transaction holds are
# being sent, cancelled or expired. Reads: notification_expires.
EXPIRE: Final[LiteralString] = (
    """
WITH ended AS (
    UPDATE delayed_queue_notification
    SET
        status = 'EXPIRED',
        ended_at = clock_timestamp(),
        outcome = CASE WHEN outcome = 'in doubt' THEN 'expired, in doubt' ELSE 'expired' END
    WHERE id = ANY (ARRAY(
            SELECT id
            FROM delayed_queue_notification
            WHERE status = 'ENQUEUED'
                AND expires_at <= statement_timestamp()
            ORDER BY expires_at
            LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ))
    RETURNING id, status, callback_url
)"""
    + CALLBACKS
    + """
SELECT id FROM ended
"""
)

# Find, among the next open notifications in one state, those without a message: an operator dropped
# it, or moved it to the dead letters. It locks nothing, so FAIL checks again. Returns a row for
# each notification, to continue from the last. The message is looked up per row, as in FAIL.
# Reads: notification_status_id, delayed_queue__PKeyPlusKindUniqueIndex.
WITHOUT_MESSAGE: Final[LiteralString] = """
SELECT
    waiting.id,
    (
        SELECT TRUE
        FROM delayed_queue AS m
        WHERE m."pKey" = waiting.id::text
            AND COALESCE(
                m."pKind"
                    = 'notifications-' || waiting.priority || '-' || waiting.channel || '|json',
                false
            )
    ) IS NULL AS is_lost
FROM (
    SELECT id, priority, channel
    FROM delayed_queue_notification
    WHERE (status, id) > (%(status)s, %(after)s::uuid)
        AND status <= %(status)s
    ORDER BY status, id
    LIMIT %(limit)s
) AS waiting
ORDER BY waiting.id
"""

SWEEP_LIMIT: Final = 1000


def expire_overdue(limit: int = SWEEP_LIMIT) -> int:
    """Expire overdue notifications; return how many, at most the limit."""
    return len(fetch(EXPIRE, {"limit": limit}))


def fail_lost(limit: int = SWEEP_LIMIT) -> int:
    """Fail open notifications that have no message, so that no dispatcher would send them.

    Goes through all open ones, ``limit`` per statement; returns how many it failed.
    """
    return sum(
        fail_lost_of(lost)
        for status in (Status.ENQUEUED, Status.PROCESSING)
        for lost in _without_message(status, limit)
        if lost
    )


def _without_message(status: Status, limit: int) -> Iterator[list[uuid.UUID]]:
    after = uuid.UUID(int=0)
    while True:
        params = {"status": status.value, "after": after, "limit": limit}
        rows = fetch(WITHOUT_MESSAGE, params)
        yield [id_ for id_, is_lost in rows if is_lost]
        if len(rows) < limit:
            return
        after = rows[-1][0]


def fail_lost_of(ids: list[uuid.UUID]) -> int:
    """Fail those of them that still have no message; return how many."""
    return len(fetch(*failing([(each, "", "its message is gone") for each in ids])))


BATCH: Final = 1000


def prune(age: timedelta) -> int:
    """Delete what ended longer ago than that, a thousand at a time; return how many.

    With the notifications go their deliveries; dedupe keys go when their window is over, parked
    requests by the same age.
    """
    before = read_clock(USING) - age
    _delete(DedupeClaim.objects.filter(until__lte=Now()).order_by("until"))
    softened_before = read_clock(USING) - get_settings().SOFT_BOUNCES[1]
    _delete(SoftBounce.objects.filter(at__lt=softened_before).order_by("at"))
    _delete(ParkedRequest.objects.filter(parked_at__lt=before).order_by("parked_at", "id"))
    return _prune_notifications(before)


def _delete(rows: QuerySet[Any]) -> None:
    # The filter applies again: a key may have been claimed anew.
    while ids := list(rows.values_list("pk", flat=True)[:BATCH]):
        rows.filter(pk__in=ids).delete()


def _prune_notifications(before: datetime) -> int:
    """Delete what was made and ended before, in the order of ids; open ones stay, however old.

    Reads: the primary key, the index of deliveries by notification.
    """
    total, after = 0, uuid.UUID(int=0)
    rows = Notification.objects.filter(pk__lt=first_id_at(before)).order_by("pk")
    while ids := list(rows.filter(pk__gt=after).values_list("pk", flat=True)[:BATCH]):
        after = ids[-1]
        with transaction.atomic(using=USING):
            # Locked, because a retry would open it again.
            ended = rows.select_for_update().filter(pk__in=ids, ended_at__lt=before)
            gone = list(ended.values_list("pk", flat=True))
            Delivery.objects.filter(notification_id__in=gone).delete()
            rows.filter(pk__in=gone).delete()
        total += len(gone)
    return total
