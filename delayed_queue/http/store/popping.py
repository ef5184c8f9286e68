"""Jobs of topics as consumers and lists see them: leased, finished, looked at."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK
from delayed_queue.http.store.fragments import PLACES
from delayed_queue.queue.store.fragments import ATTEMPTS, DELIVERED, HEADERS, LAST_ERROR

# Lease due jobs of several kinds, from the first kind that has some on. The loop over the kinds
# stops as soon as the limit is reached, so rows of later kinds are neither read nor locked.
# A job may carry its own ttr in seconds; %(ttr)s in milliseconds takes its place.
# Reads: as CLAIM, one descent for each kind.
POP_JOBS: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "lockUuid" = %(lease_id)s::varchar,
    "dueAt" = "scheduledAt",
    "scheduledAt" = (SELECT now FROM clock) + COALESCE(
        %(ttr)s::bigint,
        CASE
            WHEN "versionAt" <> "createdAt" THEN NULL
            WHEN jsonb_typeof(headers -> 'ttr') = 'number'
            THEN LEAST(GREATEST((headers ->> 'ttr')::numeric * 1000, 1), 86400000)::bigint
        END,
        %(default_ttr)s::bigint
    ),
    """
    + DELIVERED
    + """
WHERE id = ANY (ARRAY(
    SELECT due.id
    FROM unnest(%(kinds)b::text[]) AS queue (kind)
    CROSS JOIN LATERAL (
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = queue.kind
                AND "scheduledAt" <= (SELECT now FROM clock)
                AND NOT EXISTS (
                    SELECT 1 FROM delayed_queue_paused WHERE "pKind" = queue.kind
                )
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS earliest
        LIMIT %(limit)s::integer
    ) AS due
    LIMIT %(limit)s::integer
))
RETURNING id, "pKey", "pKind", payload, "dueAt", "scheduledAt", attempts, headers::text
"""
)

# NEXT_DUE for several kinds: the earliest, or NULL.
# Reads: delayed_queue__KindPlusScheduledAtIndex, one descent for each kind.
NEXT_JOB: Final[LiteralString] = (
    CLOCK
    + """
SELECT min(next."scheduledAt") - (SELECT now FROM clock)
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN LATERAL (
    SELECT "scheduledAt"
    FROM delayed_queue
    WHERE "pKind" = queue.kind
        AND "scheduledAt" > (SELECT now FROM clock)
        AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
    ORDER BY "scheduledAt", id
    LIMIT 1
) AS next
"""
)

# Delete a job that is under the lease, and say whether the topic has, or had, one of that id.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FINISH_JOB: Final[LiteralString] = (
    "\nWITH"
    + PLACES
    + """,
finished AS (
    DELETE FROM delayed_queue
    WHERE "pKey" = %(key)s
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
        AND COALESCE("lockUuid" = %(lease_id)s, false)
    RETURNING id
)
SELECT
    EXISTS (SELECT 1 FROM finished),
    EXISTS (
        SELECT 1
        FROM delayed_queue
        WHERE "pKey" = %(key)s
            AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
    )
    OR EXISTS (
        SELECT 1
        FROM delayed_queue_dead_letter
        WHERE "pKey" = %(key)s
            AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
    )
"""
)

# The dead letters of several kinds in id order, behind the last seen one.
# Reads: dead_letter_kind_id, at most the limit of each kind.
DEAD_JOBS: Final[LiteralString] = """
SELECT
    letter.id, letter."pKind", letter."pKey", letter.payload, letter.headers::text,
    letter.attempts, letter.reason, letter."lastError", letter."createdAt", letter."diedAt"
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, headers, attempts, reason, "lastError", "createdAt", "diedAt"
    FROM (
        SELECT
            id, "pKind", "pKey", payload, headers, attempts, reason, "lastError", "createdAt",
            "diedAt"
        FROM delayed_queue_dead_letter
        WHERE "pKind" = queue.kind
            AND id > %(after)s::bigint
        ORDER BY id
        LIMIT (SELECT %(limit)s::integer)
    ) AS next
    LIMIT %(limit)s::integer
) AS letter
ORDER BY letter.id
LIMIT %(limit)s::integer
"""

# Reads: the primary key of the dead letters.
READ_DEAD_JOB: Final[LiteralString] = """
SELECT
    id, "pKind", "pKey", payload, headers::text, attempts, reason, "lastError", "createdAt",
    "diedAt"
FROM delayed_queue_dead_letter
WHERE id = %(id)s::bigint
"""

# The first jobs of several kinds that are due (before "now"), or not yet: those under a lease or
# the others, among the first %(depth)s of each kind.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
PEEK_JOBS: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    job."pKey", false, job.id, job."pKind", job."scheduledAt", job."createdAt", job."lockUuid",
    job.attempts, job.headers::text, job."lastError", '', now
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN clock
CROSS JOIN LATERAL (
    SELECT
        id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", attempts, headers,
        "lastError"
    FROM (
        SELECT
            id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", """
    + ATTEMPTS
    + """ AS attempts, """
    + HEADERS
    + """ AS headers, """
    + LAST_ERROR
    + """ AS "lastError"
        FROM delayed_queue
        WHERE "pKind" = queue.kind
            AND "scheduledAt" > CASE WHEN %(is_due)s::boolean
                THEN -9223372036854775807 ELSE (SELECT now FROM clock) END
            AND "scheduledAt" <= CASE WHEN %(is_due)s::boolean
                THEN (SELECT now FROM clock) ELSE 9223372036854775807 END
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(depth)s::integer)
    ) AS ahead
    WHERE %(is_due)s::boolean OR ("lockUuid" IS NOT NULL) = %(is_leased)s::boolean
    LIMIT %(limit)s::integer
) AS job
ORDER BY job."scheduledAt", job.id
LIMIT %(limit)s::integer
"""
)
