"""Topics, and the answers that idempotency keys replay."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# Keep the plans of what follows in the transaction, and have those that are made on an empty
# table go by its indexes. Only before statements of which a test says that these are then the
# right ones when it has filled. Compiling is off because an index that is forced on the planner
# looks dear enough to it. Until the end of the transaction: the session may be anybody's. It does
# what LIMIT_WAITS does, too, to save a statement; null leaves the limit as it is.
KEEP_PLANS: Final[LiteralString] = """
SELECT
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true),
    set_config(
        'lock_timeout',
        COALESCE(%(patience)s::integer::text, current_setting('lock_timeout')),
        true
    )
"""

# To run under LOCK_TOPIC: a redrive that found no topic holds that in its place.
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
