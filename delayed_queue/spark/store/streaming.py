"""Reading through Spark, and leasing for its streams."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from delayed_queue.db.sql import CLOCK
from delayed_queue.queue.store.claim import lease_due, select_due
from delayed_queue.queue.store.finishing import count_gone
from delayed_queue.queue.store.fragments import ALL_TIMES, ATTEMPTS, EXPIRES_AT, HEADERS

# Facts that a job needs at its start: the database's clock, the used and the maximum number of
# connections of its role, and whether the tables exist.
# Reads: no table of ours.
LOOK_AROUND: Final[LiteralString] = """
SELECT
    floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer,
    (
        SELECT count(*)
        FROM pg_stat_get_activity(NULL)
        WHERE datid <> 0
    ),
    to_regclass('delayed_queue') IS NOT NULL,
    to_regclass('delayed_queue_offer_ledger') IS NOT NULL
"""

# The name of the database. Reads: no table of ours.
WHICH_DATABASE: Final[LiteralString] = "SELECT current_database()::text"

# The first and the last id, and the ids that end shares of the messages of a kind, or of all, in a
# sample of pages. Equal spans of ids would give one old message a part of its own.
# Reads: the primary key, its two ends; a few thousand pages of the table.
SAMPLED_CUTS: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    (SELECT id FROM delayed_queue ORDER BY id LIMIT 1),
    (SELECT id FROM delayed_queue ORDER BY id DESC LIMIT 1),
    (
        SELECT percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id)
        FROM delayed_queue
        TABLESAMPLE SYSTEM (LEAST(
            100, 100.0 * 8192 * %(pages)s::bigint / GREATEST(pg_relation_size('delayed_queue'), 1)
        ))
        WHERE %(kind)s::text IS NULL OR "pKind" = %(kind)s
    ),
    now
FROM clock
"""
)

_COLUMNS: Final[LiteralString] = (
    """
SELECT
    id,
    "pKey"::text AS key,
    "pKind"::text AS kind,
    payload,
    "scheduledAt" AS scheduled_at,
    "scheduledAtInitially" AS scheduled_at_initially,
    "createdAt" AS created_at,
    CASE
        WHEN "scheduledAt" <= %(now)s::bigint THEN 'due'
        WHEN "lockUuid" IS NULL THEN 'scheduled'
        ELSE 'leased'
    END AS state,
    """
    + ATTEMPTS
    + """ AS attempts,
    "lockUuid"::text AS lock_uuid,
    ("""
    + HEADERS
    + """)::text AS headers,
    "dueAt" AS due_at,
    "group"::text AS "group",
    """
    + EXPIRES_AT
    + """ AS expires_at
FROM delayed_queue"""
)

# The messages of a range of ids, in any state. The caller wraps it in a SELECT of columns and
# filters, which PostgreSQL flattens, so other columns are not read.
# Reads: the primary key.
READ_RANGE: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE id >= %(first)s::bigint
    AND id < %(last)s::bigint
"""
)

# The leased messages of a kind within a range of ids that had not expired at "now"; wrapped like
# READ_RANGE. "now" is the plan's, so a repeated task gets the same rows; acknowledging the lease
# deletes the others, too. The kind is compared as an expression, here and below, so that
# the planner uses the index of the lease, not that of the kind.
# Reads: delayed_queue__LockUuidPlusIdIndex.
READ_LEASED: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE "lockUuid" = %(lease_id)s
    AND "pKind" || '' = %(kind)s
    AND id >= %(first)s::bigint
    AND id < %(last)s::bigint
    AND ("""
    + EXPIRES_AT
    + """ > %(now)s::bigint) IS NOT FALSE
"""
)

# Lease the earliest due messages for one batch of a stream, and return their number: tasks read
# them, not the driver. "cutoff" is the start of an AvailableNow query, so
# that it ends although more messages arrive; NULL for a continuous one.
# Reads: as CLAIM.
LEASE_DUE: Final[LiteralString] = f"""{CLOCK},
leased AS ({
    lease_due(
        select_due(until="LEAST(now, %(cutoff)s::bigint)"),
        lease_id="%(lease_id)s::varchar",
        returning="id",
    )
})
SELECT count(*)
FROM leased
"""

# The number of due messages that no stream has leased, up to a cap. Two limits as in select_due.
# Reads: delayed_queue__KindPlusScheduledAtIndex, its beginning.
BACKLOG: Final[LiteralString] = (
    CLOCK
    + """
SELECT count(*)
FROM (
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue
        WHERE "scheduledAt" <= (SELECT now FROM clock)
            AND "pKind" = %(kind)s
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(cap)s::integer)
    ) AS earliest
    LIMIT %(cap)s::integer
) AS due
"""
)

# True if any table of the database names the queue; true if limits or a pause hold its messages
# back from a stream. One descent into each index.
# Reads: delayed_queue__KindPlusScheduledAtIndex, dead_letter_kind_died, limit_kind_group,
# schedule_kind_prefix, delayed_queue_sample_pkey.
QUEUE_RULES: Final[LiteralString] = (
    """
WITH message AS (
    SELECT "pKind"
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND """
    + ALL_TIMES
    + """
    ORDER BY "scheduledAt", id
    LIMIT 1
),
letter AS (
    SELECT "pKind"
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
    ORDER BY "diedAt", id
    LIMIT 1
),
rule AS (
    SELECT "group", "pausedAt"
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
    ORDER BY "group"
    LIMIT 1
),
schedule AS (
    SELECT "pKind"
    FROM delayed_queue_schedule
    WHERE "pKind" = %(kind)s
    ORDER BY "keyPrefix"
    LIMIT 1
),
sample AS (
    SELECT "pKind"
    FROM delayed_queue_sample
    WHERE "pKind" = %(kind)s
    ORDER BY minute
    LIMIT 1
)
SELECT
    EXISTS (SELECT 1 FROM message)
        OR EXISTS (SELECT 1 FROM letter)
        OR EXISTS (SELECT 1 FROM rule)
        OR EXISTS (SELECT 1 FROM schedule)
        OR EXISTS (SELECT 1 FROM sample),
    EXISTS (SELECT 1 FROM rule),
    EXISTS (SELECT 1 FROM rule WHERE "group" = '' AND "pausedAt" IS NOT NULL)
"""
)

# The first and the last id under a lease, and the ids that end equal shares of its messages.
# Reads: delayed_queue__LockUuidPlusIdIndex.
LEASED_CUTS: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    min(id), max(id), percentile_disc(%(shares)s::float8[]) WITHIN GROUP (ORDER BY id),
    (SELECT now FROM clock)
FROM delayed_queue
WHERE "lockUuid" = %(lease_id)s
"""
)

# Count a delivery by a repeated task: the one before has died, maybe because of the message. A
# message that has lost the lease is not changed.
# Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
COUNT_DELIVERY: Final[LiteralString] = """
UPDATE delayed_queue
SET attempts = attempts + 1
WHERE id = %(id)s::bigint
    AND "lockUuid" = %(lease_id)s
RETURNING attempts
"""

# Prolong the lease of a running batch, never shorten it. An expired lease is renewed for messages
# that were not leased again. Reads: delayed_queue__LockUuidPlusIdIndex.
RENEW_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
renewed AS (
    UPDATE delayed_queue
    SET "scheduledAt" = GREATEST(
        "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
    )
    WHERE "lockUuid" = %(lease_id)s
    RETURNING id
)
SELECT count(*)
FROM renewed
"""
)

# Take over a lease of a kind from a dead process. Its current batch keeps the lease id and is
# delivered once more; messages leased ahead, which no task has read, get a new id. The search
# includes both ids, so that a repetition finds the rows that the first try has moved.
# Reads: delayed_queue__LockUuidPlusIdIndex.
TAKE_OVER_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
taken AS (
    UPDATE delayed_queue
    SET "lockUuid" = %(lease_id)s::varchar,
        "scheduledAt" = GREATEST(
            "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
        ),
        attempts = attempts + %(deliveries)s::integer
    WHERE "lockUuid" = ANY (%(lease_ids)s::text[])
        AND "pKind" || '' = %(kind)s
    RETURNING id
)
SELECT count(*)
FROM taken
"""
)

# Reads: the first batch.
HAS_BATCHES: Final[LiteralString] = """
SELECT EXISTS (SELECT 1 FROM delayed_queue_batch)
"""

# Delete the members of batches under a lease, and count them as done; or only those that had
# expired by a time, as expired. Returns their batches.
# Reads: delayed_queue__LockUuidPlusIdIndex, delayed_queue_batch_pkey.
REMOVE_MEMBERS: Final[LiteralString] = count_gone(
    f"""
    DELETE FROM delayed_queue
    WHERE "lockUuid" = %(lease_id)s
        AND COALESCE("batchId" > 0, false)
        AND (%(expired_by)s::bigint IS NULL OR {EXPIRES_AT} <= %(expired_by)s::bigint)
    RETURNING
        "batchId" AS batch, 1 AS number,
        CASE WHEN %(expired_by)s::bigint IS NULL THEN 'done' ELSE 'expired' END AS outcome"""
)


class AroundRow(NamedTuple):
    """The clock, the server's connections, and whether the tables exist."""

    now: int
    most_connections: int
    used_connections: int
    has_queue: bool
    has_ledger: bool


class RulesRow(NamedTuple):
    """Three flags: the queue is known, has limits or a pause, and is paused as a whole."""

    is_known: bool
    has_rules: bool
    is_paused: bool


class CutsRow(NamedTuple):
    """The first and the last id, the ids that end shares between them, and the clock.

    Without a message the ids are None.
    """

    first: int | None
    last: int | None
    cuts: list[int] | None
    now: int
