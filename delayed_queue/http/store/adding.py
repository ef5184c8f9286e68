"""Jobs of topics: one key over the kinds of all shards and ways, as the HTTP side sees them.

The kinds of a topic follow from its shards and hosts. What looks for one job reads their numbers in
the statement itself: one that was read earlier may have grown since.
"""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK
from delayed_queue.http.store.fragments import PLACES
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    HEADERS,
    LAST_ERROR,
    REPLACE,
    offering_again,
)

# What is offered, numbered in input order as a batch of messages is; nothing when the topic has
# other shards than the kinds were chosen for.
_OFFERED: Final[LiteralString] = """,
topic AS MATERIALIZED (
    SELECT 1
    FROM delayed_queue_topic
    WHERE name = %(topic)s
        AND shards = %(shards)s::integer
        AND hosts = %(hosts)s::text
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
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt"
    )
    SELECT id, key, kind, payload, due_at, due_at, created_at, headers, created_at
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
# A job that was there to be moved, and was gone when its row had been waited for, is not written,
# and returned without a due time: a transaction that had consumed it may have put it back, in a
# row that this snapshot does not see. The caller asks again for those.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
PUT_JOBS: Final[LiteralString] = (
    CLOCK
    + _OFFERED
    + """,
elsewhere AS MATERIALIZED (
    SELECT offered.key, place.id
    FROM offered
    CROSS JOIN LATERAL (
        SELECT id
        FROM delayed_queue
        WHERE "pKey" = offered.key
            AND "pKind" = ANY (%(places)b::text[])
            AND "pKind" <> offered.kind
        OFFSET 0
    ) AS place
),
moved AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (ARRAY(SELECT id FROM elsewhere))
    RETURNING id, "pKey"
),
missed AS MATERIALIZED (
    SELECT DISTINCT key
    FROM elsewhere
    WHERE id <> ALL (ARRAY(SELECT id FROM moved))
),
added AS ("""
    + _COLUMNS
    + """
    WHERE key <> ALL (ARRAY(SELECT key FROM missed))
    ORDER BY key COLLATE "C" """
    + REPLACE
    + """
    WHERE stored.payload <> EXCLUDED.payload
        OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
        OR CASE WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored.headers END
            IS DISTINCT FROM EXCLUDED.headers
    RETURNING "pKey", xmax = 0 AS created, "scheduledAt"
),
written AS (
    SELECT "pKey", created AND "pKey" NOT IN (SELECT "pKey" FROM moved) AS created, "scheduledAt"
    FROM added
    UNION ALL
    SELECT key, false, NULL
    FROM missed
)
SELECT
    EXISTS (SELECT 1 FROM topic), written."pKey", written.created, written."scheduledAt", clock.now
FROM clock
LEFT JOIN written ON true
"""
)

# The job as it stands: active, or else its newest dead letter, in one snapshot, so that one on
# its way to the dead letters is found in one of the two places.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FIND_JOB: Final[LiteralString] = (
    CLOCK
    + ","
    + PLACES
    + """
SELECT
    false, message.id, "pKind", "scheduledAt", "createdAt", "lockUuid", """
    + ATTEMPTS
    + """,
    ("""
    + HEADERS
    + """)::text, """
    + LAST_ERROR
    + """, '', now
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

# Delete the job by its id whatever its state, as DROP does a message; return how many were found
# and how many deleted. Fewer: one was gone when its row had been waited for, and may have been put
# back by a transaction that had consumed it, in a row that this snapshot does not see.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
DROP_JOB: Final[LiteralString] = (
    "\nWITH"
    + PLACES
    + """,
found AS MATERIALIZED (
    SELECT id
    FROM delayed_queue
    WHERE "pKey" = %(key)s
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
),
dropped AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (ARRAY(SELECT id FROM found))
    RETURNING id
)
SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM dropped)
"""
)

# Delete the dead letters of the job. Reads: topic_name, dead_letter_key.
DROP_DEAD_JOB: Final[LiteralString] = (
    "\nWITH"
    + PLACES
    + """
DELETE FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
RETURNING id
"""
)

# The dead letters of one job. Reads: topic_name, dead_letter_key.
JOB_LETTERS: Final[LiteralString] = (
    "\nWITH"
    + PLACES
    + """
SELECT id
FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
"""
)

# REDRIVE for jobs: a letter whose job is there again in any kind of the topic stays dead. A row for
# each letter that went back. To run under LOCK_JOBS. With %(newest_only)s a letter is passed over
# where the job has a newer one, among the ids or not: it is in a later batch.
# Reads: the primary key of the dead letters, dead_letter_key;
# delayed_queue__PKeyPlusKindUniqueIndex.
KICK_JOBS: Final[LiteralString] = (
    CLOCK
    + ","
    + PLACES
    + """,
locked AS MATERIALIZED (
    SELECT id, "pKind", "pKey", payload, headers, "scheduledAtInitially"
    FROM delayed_queue_dead_letter AS letter
    WHERE id = ANY (%(ids)b::bigint[])
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
        AND NOT (
            %(newest_only)s::boolean
            AND EXISTS (
                SELECT 1
                FROM delayed_queue_dead_letter AS newer
                WHERE newer."pKey" = letter."pKey"
                    AND COALESCE(newer.id > letter.id, false)
                    AND COALESCE(newer."pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
            )
        )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON ("pKey")
        id, "pKind", "pKey", payload, headers, "scheduledAtInitially"
    FROM locked
    ORDER BY "pKey", id DESC
),"""
    + offering_again(
        """CASE WHEN right("pKind", 9) = '|callback' THEN "scheduledAtInitially" ELSE now END"""
    )
    + """
    WHERE COALESCE(
            (
                SELECT false
                FROM delayed_queue AS active
                WHERE active."pKey" = newest."pKey"
                    AND active."pKind" = ANY ((SELECT kinds FROM places)::text[])
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
