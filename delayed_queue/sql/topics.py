"""Jobs of topics: one key over the kinds of all shards and ways, as the HTTP side sees them.

The kinds of a topic follow from its shards. What looks for one job reads their number in the
statement itself: a number that was read earlier may have grown since.
"""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK, REPLACE

# The kinds of a topic, as topics.kinds names them; one that has no row yet has one shard.
# Elsewhere conditions stand inside COALESCE, where no index serves them, because a key has few
# rows, and a kind or a lease may have many.
_PLACES: Final[LiteralString] = """
places AS MATERIALIZED (
    SELECT ARRAY(
        SELECT
            %(topic)s::text
            || CASE shard WHEN 0 THEN '' ELSE '#' || shard END
            || '|' || way
        FROM generate_series(
            0,
            COALESCE(
                (SELECT shards FROM delayed_queue_topic WHERE name = %(topic)s::text), 1
            ) - 1
        ) AS shard
        CROSS JOIN unnest(ARRAY['json', 'callback']) AS way
    ) AS kinds
)"""

# Hold the jobs, and the number of shards, until the end of the transaction. In a statement of its
# own: what comes after it has a snapshot that sees what earlier holders committed. The caller
# passes the jobs' locks distinct and in order, so that no two can wait for each other.
LOCK_JOBS: Final[LiteralString] = """
SELECT
    pg_advisory_xact_lock_shared(%(topic_lock)s::bigint) IS NULL,
    count(pg_advisory_xact_lock(job))
FROM unnest(%(job_locks)b::bigint[]) AS job
"""

# Hold the number of shards for a change. Waits for those who are adding jobs.
LOCK_TOPIC: Final[LiteralString] = """
SELECT pg_advisory_xact_lock(%(topic_lock)s::bigint) IS NULL
"""

# Reads: topic_name.
CREATE_TOPIC: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_topic (name, "createdAt")
SELECT %(topic)s, now
FROM clock
ON CONFLICT (name) DO NOTHING
RETURNING id
"""
)

# Reads: topic_name.
READ_TOPIC: Final[LiteralString] = """
SELECT name, shards, ladder, jitter, ttr
FROM delayed_queue_topic
WHERE name = %(topic)s
"""

# Reads: topic_name.
TOPICS: Final[LiteralString] = """
SELECT name, shards, ladder, jitter, ttr
FROM (
    SELECT name, shards, ladder, jitter, ttr
    FROM delayed_queue_topic
    WHERE name > %(after)s
    ORDER BY name
    LIMIT (SELECT %(limit)s::integer)
) AS next
ORDER BY name
LIMIT %(limit)s::integer
"""

# Change a topic under LOCK_TOPIC. Reads: topic_name.
CONFIGURE_TOPIC: Final[LiteralString] = """
UPDATE delayed_queue_topic
SET shards = %(shards)s::integer,
    ladder = %(ladder)s,
    jitter = %(jitter)s::float,
    ttr = %(ttr)s::bigint
WHERE name = %(topic)s
RETURNING id
"""

# What is offered, numbered in input order as a batch of messages is; nothing when the topic has
# another number of shards than the kinds were chosen for.
_OFFERED: Final[LiteralString] = """,
topic AS MATERIALIZED (
    SELECT 1
    FROM delayed_queue_topic
    WHERE name = %(topic)s
        AND shards = %(shards)s::integer
),
offered AS MATERIALIZED (
    SELECT
        nextval('delayed_queue_id_seq') AS id,
        job.key,
        job.kind,
        job.payload,
        COALESCE(job.schedule_at, now + job.delay) AS due_at,
        job.headers,
        now AS created_at
    FROM unnest(
        %(keys)b::text[], %(kinds)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[],
        %(delays)b::bigint[], %(headers)s::jsonb[]
    ) AS job (key, kind, payload, schedule_at, delay, headers)
    CROSS JOIN clock
    CROSS JOIN topic
)"""

_COLUMNS: Final[LiteralString] = """
    INSERT INTO delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT id, key, kind, payload, due_at, due_at, created_at, headers
    FROM offered"""

# Add jobs whose ids no job of the topic has, in any kind, dead ones included. The first column
# says whether the shards were right: otherwise nothing was done. A job that is not returned
# exists. To run under LOCK_JOBS: a unique index holds within one kind only. Scalar sub-selects,
# because NOT EXISTS may become a join that reads the whole table.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
ADD_JOBS: Final[LiteralString] = (
    CLOCK
    + _OFFERED
    + """,
added AS ("""
    + _COLUMNS
    + """
    WHERE COALESCE(
            (
                SELECT false
                FROM delayed_queue
                WHERE "pKey" = offered.key
                    AND "pKind" = ANY (%(places)b::text[])
                LIMIT 1
            ),
            (
                SELECT false
                FROM delayed_queue_dead_letter
                WHERE "pKey" = offered.key
                    AND "pKind" = ANY (%(places)b::text[])
                LIMIT 1
            ),
            true
        )
    ORDER BY key COLLATE "C"
    ON CONFLICT ("pKey", "pKind") DO NOTHING
    RETURNING "pKey", "scheduledAt"
)
SELECT EXISTS (SELECT 1 FROM topic), added."pKey", true, added."scheduledAt", clock.now
FROM clock
LEFT JOIN added ON true
"""
)

# Add jobs or replace those of the same ids, also in another kind of the topic: one that gets or
# loses its url moves. Unlike an offer it compares the headers too, which hold the url. A job
# that is not returned is as it was offered. Dead jobs stay beside. To run under LOCK_JOBS.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
PUT_JOBS: Final[LiteralString] = (
    CLOCK
    + _OFFERED
    + """,
moved AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (ARRAY(
        SELECT elsewhere.id
        FROM offered
        CROSS JOIN LATERAL (
            SELECT id
            FROM delayed_queue
            WHERE "pKey" = offered.key
                AND "pKind" = ANY (%(places)b::text[])
                AND "pKind" <> offered.kind
            OFFSET 0
        ) AS elsewhere
    ))
    RETURNING "pKey"
),
added AS ("""
    + _COLUMNS
    + """
    ORDER BY key COLLATE "C" """
    + REPLACE
    + """
    WHERE stored.payload <> EXCLUDED.payload
        OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
        OR stored.headers IS DISTINCT FROM EXCLUDED.headers
    RETURNING "pKey", xmax = 0 AS created, "scheduledAt"
)
SELECT
    EXISTS (SELECT 1 FROM topic),
    added."pKey",
    added.created AND added."pKey" NOT IN (SELECT "pKey" FROM moved),
    added."scheduledAt",
    clock.now
FROM clock
LEFT JOIN added ON true
"""
)

# The job as it stands: living, or else its newest dead letter, in one snapshot, so that one on
# its way to the dead letters is found in one of the two places.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FIND_JOB: Final[LiteralString] = (
    CLOCK
    + ","
    + _PLACES
    + """
SELECT
    false, message.id, "pKind", "scheduledAt", "createdAt", "lockUuid", attempts, headers::text,
    "lastError", '', now
FROM delayed_queue AS message
CROSS JOIN clock
WHERE "pKey" = %(key)s
    AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
UNION ALL
(
    SELECT
        true, letter.id, "pKind", "diedAt", "createdAt", NULL, attempts, headers::text,
        "lastError", reason, now
    FROM delayed_queue_dead_letter AS letter
    CROSS JOIN clock
    WHERE "pKey" = %(key)s
        AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
)
ORDER BY 1, 2 DESC
LIMIT 1
"""
)

# Delete the job by its id whatever its state, as DROP does a message.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex.
DROP_JOB: Final[LiteralString] = (
    "\nWITH"
    + _PLACES
    + """
DELETE FROM delayed_queue
WHERE "pKey" = %(key)s
    AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
RETURNING id
"""
)

# Delete the dead letters of the job. Reads: topic_name, dead_letter_key.
DROP_DEAD_JOB: Final[LiteralString] = (
    "\nWITH"
    + _PLACES
    + """
DELETE FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
RETURNING id
"""
)

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
        CASE jsonb_typeof(headers -> 'ttr')
            WHEN 'number'
            THEN LEAST(GREATEST((headers ->> 'ttr')::numeric * 1000, 1), 86400000)::bigint
        END,
        %(default_ttr)s::bigint
    ),
    attempts = attempts + 1
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
    + _PLACES
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

# The dead letters of one job. Reads: topic_name, dead_letter_key.
JOB_LETTERS: Final[LiteralString] = (
    "\nWITH"
    + _PLACES
    + """
SELECT id
FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
"""
)

# REDRIVE for jobs: a letter whose job lives again in any kind of the topic stays dead. A row for
# each letter that went back. To run under LOCK_JOBS.
# Reads: the primary key of the dead letters; delayed_queue__PKeyPlusKindUniqueIndex.
KICK_JOBS: Final[LiteralString] = (
    CLOCK
    + ","
    + _PLACES
    + """,
locked AS MATERIALIZED (
    SELECT id, "pKind", "pKey", payload, headers
    FROM delayed_queue_dead_letter
    WHERE id = ANY (%(ids)b::bigint[])
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON ("pKey") id, "pKind", "pKey", payload, headers
    FROM locked
    ORDER BY "pKey", id DESC
),
offered AS (
    INSERT INTO delayed_queue (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT "pKey", "pKind", payload, now, now, now, headers
    FROM newest
    CROSS JOIN clock
    WHERE COALESCE(
            (
                SELECT false
                FROM delayed_queue AS living
                WHERE living."pKey" = newest."pKey"
                    AND living."pKind" = ANY ((SELECT kinds FROM places)::text[])
                LIMIT 1
            ),
            true
        )
    ORDER BY "pKey" COLLATE "C"
    ON CONFLICT ("pKey", "pKind") DO NOTHING
    RETURNING "pKey", "pKind"
)
DELETE FROM delayed_queue_dead_letter AS letter
USING newest, offered
WHERE letter.id = newest.id
    AND newest."pKey" = offered."pKey"
    AND newest."pKind" = offered."pKind"
RETURNING letter.id, letter."pKind"
"""
)

# The first jobs of several kinds that are due (before "now"), or not yet: those under a lease or
# the others, among the first %(depth)s of each kind.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
PEEK_JOBS: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    false, job.id, job."pKind", job."scheduledAt", job."createdAt", job."lockUuid", job.attempts,
    job.headers::text, job."lastError", '', now, job."pKey"
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN clock
CROSS JOIN LATERAL (
    SELECT
        id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", attempts, headers,
        "lastError"
    FROM (
        SELECT
            id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", attempts, headers,
            "lastError"
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

# Hold an idempotency key until the end of the transaction, or say that another request does.
TRY_KEY: Final[LiteralString] = "SELECT pg_try_advisory_xact_lock(%(lock)s::bigint)"

# The answer kept under a key, younger than the age. Reads: idempotency_scope_key.
READ_ANSWER: Final[LiteralString] = (
    CLOCK
    + """
SELECT "requestHash", status, answer
FROM delayed_queue_idempotency_key
WHERE scope = %(scope)s
    AND key = %(key)s
    AND "createdAt" > (SELECT now FROM clock) - %(age)s::bigint
"""
)

# Keep an answer under TRY_KEY, in the place of one too old to be replayed.
# Reads: idempotency_scope_key.
SAVE_ANSWER: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_idempotency_key (
    scope, key, "requestHash", status, answer, "createdAt"
)
SELECT %(scope)s, %(key)s, %(request_hash)s::bytea, %(status)s, %(answer)s, now
FROM clock
ON CONFLICT (scope, key) DO UPDATE
SET "requestHash" = EXCLUDED."requestHash",
    status = EXCLUDED.status,
    answer = EXCLUDED.answer,
    "createdAt" = EXCLUDED."createdAt"
"""
)

# Delete answers older than the age, one bounded bite at a time. Two limits as in a claim.
# Reads: idempotency_created.
PRUNE_ANSWERS: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_idempotency_key
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_idempotency_key
        WHERE "createdAt" <= (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "createdAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
"""
)
