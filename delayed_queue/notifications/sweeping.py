"""Statements that end what no dispatcher will; each names the states it leads out of."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.notifications import fragments

# Mark a bounded number of waiting notifications whose time is over, so that lists tell the truth
# before a dispatcher comes to them; the queue's messages then find nothing to do. What another
# transaction holds is being sent, cancelled or expired. Reads: notification_expires.
EXPIRE: Final[LiteralString] = """
UPDATE notifications_notification
SET
    status = 'EXPIRED',
    ended_at = clock_timestamp(),
    outcome = CASE WHEN outcome = 'in doubt' THEN 'expired, in doubt' ELSE 'expired' END
WHERE id = ANY (ARRAY(
        SELECT id
        FROM notifications_notification
        WHERE status = 'ENQUEUED'
            AND expires_at <= statement_timestamp()
        ORDER BY expires_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
RETURNING id, status, callback_url
"""

# Fail what is still open though its message became a dead letter: of a handler that killed its
# process each time, nobody else writes the end. One that was PROCESSING may have been sent, and a
# delivery tells so. Looks at the newest letters of one queue only, and locks in the order of ids.
# Whether its message lives is asked of each letter: NOT EXISTS may be a join with all messages.
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
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted, letter.reason
    FROM notifications_notification AS n
    JOIN letter ON n.id = letter."pKey"::uuid
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = letter."pKey"
                AND m."pKind" = %(kind)s
        ) IS NULL
    ORDER BY n.id
    FOR UPDATE OF n
),"""
    + fragments.INTERRUPTED
    + """
UPDATE notifications_notification AS n
SET
    status = 'FAILED',
    lease_id = NULL,
    ended_at = clock_timestamp(),
    outcome = 'given up: ' || held.reason
        || CASE
            WHEN held.was_interrupted OR n.outcome = 'in doubt' THEN ', in doubt'
            ELSE ''
        END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status, n.callback_url
"""
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
            AND m."pKind"
                = 'notifications-' || waiting.priority || '-' || waiting.channel || '|json'
    ) IS NULL AS is_lost
FROM (
    SELECT id, priority, channel
    FROM notifications_notification
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
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted
    FROM unnest(%(ids)s::uuid[]) AS lost (id)
    JOIN notifications_notification AS n ON n.id = lost.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = n.id::text
                AND m."pKind" = 'notifications-' || n.priority || '-' || n.channel || '|json'
        ) IS NULL
    ORDER BY n.id
    FOR UPDATE OF n
),"""
    + fragments.INTERRUPTED
    + """
UPDATE notifications_notification AS n
SET
    status = 'FAILED',
    lease_id = NULL,
    ended_at = clock_timestamp(),
    outcome = 'its message is gone'
        || CASE
            WHEN held.was_interrupted OR n.outcome = 'in doubt' THEN ', in doubt'
            ELSE ''
        END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status, n.callback_url
"""
)
