"""Ends that no dispatcher writes: overdue, dead, without a message; and forgetting them all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from django.db import transaction

from delayed_queue.db.clock import read_clock
from delayed_queue.notifications.models import Status, first_id_at
from delayed_queue.notifications.services import (
    INTERRUPTED,
    USING,
    dispatch_queues,
    execute,
    fetch,
    offer_callbacks,
)

# Mark a bounded number of waiting notifications whose time is over, so that lists tell the truth
# before a dispatcher comes to them; the queue's messages then find nothing to do. What another
# transaction holds is being sent, cancelled or expired. Reads: notification_expires.
EXPIRE: Final[LiteralString] = """
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
"""

# Fail those ``held``, with their reason.
_FAIL: Final[LiteralString] = (
    INTERRUPTED
    + """
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
"""
)

# Fail what is still open though its message became a dead letter: of a handler that killed its
# process each time, nobody else writes the end. One that was PROCESSING may have been sent, and a
# delivery tells so. Looks at the newest letters of one queue only, and locks in the order of ids.
# Whether its message lives is asked of each letter: NOT EXISTS may be a join with all messages. The
# kind is compared behind COALESCE, as in BEGIN.
# Reads: dead_letter_kind_died, the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
FAIL_DEAD: Final[LiteralString] = (
    """
WITH letter AS MATERIALIZED (
    SELECT "pKey", reason
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
        AND "pKey" ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    ORDER BY "diedAt" DESC, id DESC
    LIMIT %(limit)s
),
held AS MATERIALIZED (
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted,
        'given up: ' || letter.reason AS reason
    FROM delayed_queue_notification AS n
    JOIN letter ON n.id = letter."pKey"::uuid
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = letter."pKey"
                AND COALESCE(m."pKind" = %(kind)s, false)
        ) IS NULL"""
    + _FAIL
)

# Of the next open notifications in one state those that have no message, so that no dispatcher will
# ever come to them: somebody dropped it on the page of its queue, or it was one of more dead
# letters than FAIL_DEAD looks at. Locks nothing, so what it finds is only suspected. A row for each
# that was looked at, to go on from the last. Whether there is a message is asked of each, as above.
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

# Fail those of them that still have no message, looked at anew: by now one may have been retried.
# One that was PROCESSING may have been sent, and a delivery tells so. Locks in the order of ids.
# Joined rather than "id = ANY": with that, PostgreSQL 15 reads all that are open to find those few.
# Reads: the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
FAIL_LOST: Final[LiteralString] = (
    """
WITH held AS MATERIALIZED (
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted,
        'its message is gone' AS reason
    FROM unnest(%(ids)s::uuid[]) AS lost (id)
    JOIN delayed_queue_notification AS n ON n.id = lost.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = n.id::text
                AND COALESCE(
                    m."pKind" = 'notifications-' || n.priority || '-' || n.channel || '|json',
                    false
                )
        ) IS NULL"""
    + _FAIL
)

SWEEP_LIMIT: Final = 1000


@transaction.atomic(using=USING)
def expire_overdue(limit: int = SWEEP_LIMIT) -> int:
    """Mark waiting notifications whose time is over; return how many, at most the limit."""
    return _tell(fetch(EXPIRE, {"limit": limit}))


@transaction.atomic(using=USING)
def fail_dead(limit: int = SWEEP_LIMIT) -> int:
    """Fail open notifications whose message became a dead letter; return how many."""
    kinds = [queue.kind for queue in dispatch_queues().values()]
    return sum(_tell(fetch(FAIL_DEAD, {"kind": kind, "limit": limit})) for kind in kinds)


def fail_lost(limit: int = SWEEP_LIMIT) -> int:
    """Fail open notifications that have no message, so that nobody would send them.

    Goes through all that are open, ``limit`` with each statement; returns how many it failed.
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


@transaction.atomic(using=USING)
def fail_lost_of(ids: list[uuid.UUID]) -> int:
    """Fail those of them that still have no message; return how many."""
    return _tell(fetch(FAIL_LOST, {"ids": ids}))


def _tell(ended: list[tuple[Any, ...]]) -> int:
    offer_callbacks((id_, status) for id_, status, callback_url in ended if callback_url)
    return len(ended)


BATCH: Final = 1000

# Delete a bounded number of notifications that ended before a moment and were made before it, with
# their deliveries; in the order of their ids, so that a prune of a year goes on where it was.
# Open ones are passed over, however old. Reads: the primary key, the index of deliveries by
# notification.
PRUNE: Final[LiteralString] = """
WITH old AS MATERIALIZED (
    SELECT id
    FROM delayed_queue_notification
    WHERE id < %(before)s::uuid
        AND id > %(after)s::uuid
    ORDER BY id
    LIMIT %(limit)s
),
gone AS (
    DELETE FROM delayed_queue_notification AS n
    USING old
    WHERE n.id = old.id
        AND n.ended_at < %(ended_before)s
    RETURNING n.id
),
forgotten AS (
    DELETE FROM delayed_queue_notification_delivery AS d
    USING gone
    WHERE d.notification_id = gone.id
)
SELECT (SELECT count(*) FROM gone), (SELECT max(id::text) FROM old)
"""

# Delete a bounded number of dedupe keys whose window is over. Reads: notification_dedupe_until.
PRUNE_KEYS: Final[LiteralString] = """
DELETE FROM delayed_queue_notification_dedupe
WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_notification_dedupe
        WHERE until <= statement_timestamp()
        ORDER BY until
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

# Delete a bounded number of parked requests that were parked before a moment.
# Reads: notification_parked_at.
PRUNE_PARKED: Final[LiteralString] = """
DELETE FROM delayed_queue_notification_parked
WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_notification_parked
        WHERE parked_at < %(before)s
        ORDER BY parked_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""


def prune(age: timedelta) -> int:
    """Delete what ended longer ago than that, a thousand at a time; return how many.

    With the notifications go their deliveries; dedupe keys go when their window is over, parked
    requests by the same age.
    """
    before = read_clock(USING) - age
    while execute(PRUNE_KEYS, {"limit": BATCH}) == BATCH:
        pass
    while execute(PRUNE_PARKED, {"before": before, "limit": BATCH}) == BATCH:
        pass
    return _prune_notifications(before)


def _prune_notifications(before: datetime) -> int:
    total: int = 0
    after = uuid.UUID(int=0)
    while True:
        params = {"before": first_id_at(before), "ended_before": before}
        gone, last = fetch(PRUNE, params | {"after": after, "limit": BATCH})[0]
        total += gone
        if last is None:
            return total
        after = uuid.UUID(last)
